"""paged_attention off: a chat's keys and values lie in one slot as long as the whole context (one page of that size).

A finished chat keeps its slot until another needs it, and its next turn continues there. Nothing is shared.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from itertools import takewhile

from octavo.engine.memory.pool import PagePool
from octavo.engine.memory.prefix import Match, PrefixCache


class SlotCache(PrefixCache):
    """Remembers which tokens each idle slot holds. A match hands the slot over; nobody else can find it meanwhile."""

    def __init__(self, pools: Sequence[PagePool], page_size: int) -> None:
        super().__init__(pools, page_size)
        self._idle: OrderedDict[tuple[int, ...], tuple[int, ...]] = OrderedDict()  # slot -> its tokens, oldest first

    def peek(self, tokens: Sequence[int]) -> int:
        found = self._best(tokens)
        return found[1] if found else 0

    def match(self, tokens: Sequence[int]) -> Match:
        found = self._best(tokens)
        if found is None:
            return Match(0, [[] for _ in self.pools])
        slot, same = found
        del self._idle[slot]
        return Match(same, [[page] for page in slot])

    def _best(self, tokens: Sequence[int]) -> tuple[tuple[int, ...], int] | None:
        best: tuple[tuple[int, ...], int] | None = None
        for slot, held in self._idle.items():
            same = min(_common(held, tokens), len(tokens) - 1)
            # A slot that shares only a system prompt belongs to another chat: leave it while there is room.
            mine = same * 2 > len(held) or (same > 0 and not all(pool.num_free for pool in self.pools))
            if mine and (best is None or same >= best[1]):
                best = slot, same
        return best

    def extend(
        self, handle: object | None, tokens: Sequence[int], pages: Sequence[Sequence[int]], num_certain: int
    ) -> object | None:
        return None

    def finish(
        self, handle: object | None, tokens: Sequence[int], pages: Sequence[Sequence[int]], num_certain: int
    ) -> None:
        if num_certain and all(pages):
            self._idle[tuple(held[0] for held in pages)] = tuple(tokens[:num_certain])
        else:
            for pool, held in zip(self.pools, pages, strict=True):
                pool.release(held)

    def num_evictable(self, group: int) -> int:
        return len(self._idle)

    def evict(self, group: int, count: int) -> int:
        freed = 0
        while freed < count and self._idle:
            slot, _ = self._idle.popitem(last=False)
            for pool, page in zip(self.pools, slot, strict=True):
                pool.release([page])
            freed += 1
        return freed

    def cached_pages(self, group: int) -> Iterator[int]:
        return (slot[group] for slot in self._idle)

    def clear(self) -> None:
        self.evict(0, len(self._idle))


def _common(a: Sequence[int], b: Sequence[int]) -> int:
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(a, b, strict=False)))
