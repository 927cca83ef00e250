"""Guessing with a model: a small one beside the large one, or the first layers of the large one itself.

The guesser draws with the request's own seed and settings at the same positions: where its scores resemble the large
model's, so do its draws, at any temperature. Penalties and bias are left out of them; that costs right guesses only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from octavo.engine.errors import OctavoError
from octavo.engine.memory.pool import PagePool
from octavo.engine.request import Request, SamplingParams
from octavo.engine.schedule.scheduler import common_prefix
from octavo.engine.speculate.base import Drafter
from octavo.engine.speculate.guesser import Guesser

FEW_BEHIND = 8  # tokens a guesser catches up with one by one, from captured steps, rather than as a prompt


@dataclass(slots=True)
class _Mirror:
    """A request as the guesser sees it: a request of its own, in a row of its own."""

    request: Request
    source_epoch: int


class ModelDrafter(Drafter):
    """A small model with a paged cache of its own. `window`: tokens it can see; longer texts get no guesses.

    What it has read of a text is kept while the request runs; a text that went another way is read again from there.
    """

    name = "draft"

    def __init__(self, guesser: Guesser, pool: PagePool, page_size: int, window: int, rows: int, chunk: int) -> None:
        self._guesser, self._pool = guesser, pool
        self._page_size, self._window, self._chunk = page_size, window, chunk
        self._free_rows = list(range(rows))
        self._mirrors: dict[str, _Mirror] = {}
        self._epochs = 0

    def propose(self, wanted: Sequence[tuple[Request, int]]) -> Mapping[str, tuple[int, ...]]:
        works: list[tuple[Request, Request, int]] = []
        for request, count in wanted:
            count = min(count, self._window - len(request.tokens))
            mirror = self._mirror(request) if count > 0 else None
            if mirror is not None and self._reserve(mirror, len(request.tokens) + count):
                works.append((request, mirror, count))
        if not works:
            return {}
        for _, mirror, _ in works:
            self._read(mirror)
        counts = {mirror.id: count for _, mirror, count in works}
        drawn = self._guesser.draw([mirror for _, mirror, _ in works], counts)
        for _, mirror, _ in works:
            mirror.tokens.extend(drawn[mirror.id])
            mirror.num_computed = len(mirror.tokens) - 1
        return {request.id: tuple(drawn[mirror.id][:count]) for request, mirror, count in works}

    def forget(self, request: Request) -> None:
        mirror = self._mirrors.pop(request.id, None)
        if mirror is not None:
            self._pool.release(mirror.request.pages[0])
            assert mirror.request.row is not None
            self._free_rows.append(mirror.request.row)

    def _mirror(self, request: Request) -> Request | None:
        """The guesser's copy, brought up to the request's text; None while all its rows are taken."""
        known = self._mirrors.get(request.id)
        if known is None:
            if not self._free_rows:
                return None
            self._epochs += 1
            made = Request(f"draft of {request.id}", request.prompt_ids, _plain(request.params), request.arrival_s)
            made.row, made.epoch, made.pages = self._free_rows.pop(), self._epochs, [[]]
            made.limit = self._window + 1
            known = self._mirrors[request.id] = _Mirror(made, request.epoch)
        mirror = known.request
        same = common_prefix(mirror.tokens, request.tokens, min(len(mirror.tokens), len(request.tokens)))
        mirror.num_computed = min(mirror.num_computed, same, len(request.tokens) - 1)
        mirror.tokens = list(request.tokens)
        mirror.forget_planned()
        return mirror

    def _reserve(self, mirror: Request, tokens: int) -> bool:
        missing = -(-tokens // self._page_size) - len(mirror.pages[0])
        if missing > self._pool.num_free:
            return False
        if missing > 0:
            mirror.pages[0].extend(self._pool.allocate(missing))
            mirror.pages_changed += 1
        return True

    def _read(self, mirror: Request) -> None:
        """Reads the text up to its last token."""
        while (left := len(mirror.tokens) - 1 - mirror.num_computed) > 0:
            count = 1 if left <= FEW_BEHIND else min(left, self._chunk)
            self._guesser.read(mirror, count)
            mirror.num_computed += count


class EarlyExitDrafter(Drafter):
    """The large model's own first layers and its head (Elhoushi et al., "LayerSkip", 2024): no second model and no
    second cache, since the keys of these layers are those of the whole model. Pays only for models trained to.

    `reserve(request, tokens)` gets the request free pages for so many tokens, or says that there are none.
    """

    name = "self"

    def __init__(self, guesser: Guesser, reserve: Callable[[Request, int], bool]) -> None:
        self._guesser, self._reserve = guesser, reserve

    def propose(self, wanted: Sequence[tuple[Request, int]]) -> Mapping[str, tuple[int, ...]]:
        mirrors, counts = [], {}
        for request, count in wanted:
            if self._reserve(request, len(request.tokens) + count):
                mirror = replace(request, params=_plain(request.params), limit=len(request.tokens) + count + 1)
                mirror.forget_planned()
                mirrors.append(mirror)
                counts[mirror.id] = count
        return self._guesser.draw(mirrors, counts) if mirrors else {}


class FirstOf(Drafter):
    """Several drafters: each is asked for what those before it have no guess for."""

    name = "auto"

    def __init__(self, drafters: Sequence[Drafter]) -> None:
        self._drafters = tuple(drafters)
        self._guessed: dict[str, Drafter] = {}  # who did so last, by request

    def propose(self, wanted: Sequence[tuple[Request, int]]) -> Mapping[str, tuple[int, ...]]:
        found: dict[str, tuple[int, ...]] = {}
        for drafter in self._drafters:
            left = [(request, count) for request, count in wanted if request.id not in found]
            if left:
                guesses = drafter.propose(left)
                found.update(guesses)
                self._guessed.update(dict.fromkeys(guesses, drafter))
        return found

    def beyond(self, request: Request, after: int, count: int) -> tuple[int, ...]:
        return self._guessed[request.id].beyond(request, after, count)

    def chance(self, request: Request) -> float:
        return next((chance for drafter in self._drafters if (chance := drafter.chance(request)) > 0), 0.0)

    def forget(self, request: Request) -> None:
        self._guessed.pop(request.id, None)
        for drafter in self._drafters:
            drafter.forget(request)


class VocabularyMismatch(OctavoError):
    """A draft model whose token ids mean other tokens."""


def check_vocabulary(target: Mapping[str, int], draft: Mapping[str, int]) -> None:
    """Raises VocabularyMismatch naming the first id at which two tokenizers' vocabularies differ. Tokens that one of
    them has beyond the other's end are no difference."""
    mine = {number: token for token, number in target.items()}
    theirs = {number: token for token, number in draft.items()}
    for number in range(min(max(mine), max(theirs)) + 1):
        if mine.get(number) != theirs.get(number):
            raise VocabularyMismatch(
                f"The draft model has another vocabulary: token {number} is {theirs.get(number)!r} there and "
                f"{mine.get(number)!r} in the model.",
                remedy="Choose a draft model of the same family, or another speculation.mode.",
            )


def _plain(params: SamplingParams) -> SamplingParams:
    """The parameters a guess is drawn with."""
    return replace(
        params,
        repetition_penalty=1.0,
        presence_penalty=0.0,
        frequency_penalty=0.0,
        logit_bias=(),
        logprobs=None,
        prompt_logprobs=None,
        stop=(),
    )
