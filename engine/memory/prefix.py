"""What the scheduler asks of a prefix cache, whichever kind it is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from octavo.engine.memory.pool import PagePool


@dataclass(frozen=True, slots=True)
class Match:
    """The part of a prompt whose keys and values are already in pages. The receiver owns one reference to each page.

    `pages` has one list a cache group; a windowed group's list may begin with holes (TRASH_PAGE).
    """

    num_tokens: int
    pages: list[list[int]] = field(default_factory=list)
    handle: object | None = None


class PrefixCache(ABC):
    """Keeps pages of finished and running requests so that later ones with the same beginning use them.

    The token sequence is the key; page j stands for tokens [j * page_size, (j + 1) * page_size).
    """

    def __init__(self, pools: Sequence[PagePool], page_size: int) -> None:
        self.pools = tuple(pools)
        self.page_size = page_size

    @abstractmethod
    def peek(self, tokens: Sequence[int]) -> int:
        """How many tokens `match` would find; changes nothing."""

    @abstractmethod
    def match(self, tokens: Sequence[int]) -> Match:
        """Finds the longest usable cached beginning, shorter than `tokens`, and takes it for the caller."""

    @abstractmethod
    def extend(
        self, handle: object | None, tokens: Sequence[int], pages: Sequence[Sequence[int]], num_certain: int
    ) -> object | None:
        """Offers the full pages among the first `num_certain` tokens of a running request; returns its new handle."""

    def adopt(self, handle: object | None, before: object | None, pages: Sequence[list[int]]) -> bool:
        """Replaces a running request's pages by those that the cache has of the same tokens, so that chats that say
        the same hold it once; True if there were any. `before`: the handle that `extend` was called with."""
        return False

    @abstractmethod
    def finish(
        self, handle: object | None, tokens: Sequence[int], pages: Sequence[Sequence[int]], num_certain: int
    ) -> None:
        """A request left its pages: keeps what later ones can use and gives back the caller's references.

        `num_certain` 0 keeps nothing new (a failed request).
        """

    @abstractmethod
    def num_evictable(self, group: int) -> int:
        """Pages of a group that `evict` could free now."""

    @abstractmethod
    def evict(self, group: int, count: int) -> int:
        """Frees at least `count` pages of a group if it can, least recently used first; returns how many it freed."""

    @abstractmethod
    def cached_pages(self, group: int) -> Iterator[int]:
        """Every page of the group that the cache refers to."""

    @abstractmethod
    def clear(self) -> None:
        """Forgets everything no running request holds."""

    def check_integrity(self) -> None:  # noqa: B027 - a cache without inner structure has nothing to check
        """Raises RuntimeError if the cache's own structure is broken."""


class NoCache(PrefixCache):
    """prefix_sharing off: nothing is found, nothing is kept."""

    def peek(self, tokens: Sequence[int]) -> int:
        return 0

    def match(self, tokens: Sequence[int]) -> Match:
        return Match(0, [[] for _ in self.pools])

    def extend(
        self, handle: object | None, tokens: Sequence[int], pages: Sequence[Sequence[int]], num_certain: int
    ) -> object | None:
        return None

    def finish(
        self, handle: object | None, tokens: Sequence[int], pages: Sequence[Sequence[int]], num_certain: int
    ) -> None:
        for pool, held in zip(self.pools, pages, strict=True):
            pool.release(held)

    def num_evictable(self, group: int) -> int:
        return 0

    def evict(self, group: int, count: int) -> int:
        return 0

    def cached_pages(self, group: int) -> Iterator[int]:
        return iter(())

    def clear(self) -> None:
        return None
