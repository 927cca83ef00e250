"""Prompt lookup: what followed the last time the same few tokens stood in the chat (Saxena, "Prompt Lookup Decoding",
2023). Costs a search through the text and no model; pays where a reply quotes or rewrites what was said before."""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from octavo.engine.request import Request
from octavo.engine.speculate.base import Drafter

LONGEST = 8  # tokens of the suffix that is looked for first
SHORTEST = 2  # one token alone recurs too often to say anything
FOLLOWED = 8  # tokens for which a copy is followed past a place where it differs
REACH = 1 << 16  # tokens looked back


@dataclass(slots=True)
class _Text:
    """A request's tokens as bytes, which the C library searches ten times faster than Python could."""

    epoch: int
    words: array[int] = field(default_factory=lambda: array("i"))
    source: int = 0  # place whose token the next one should repeat, while the text follows an earlier part of itself
    seen: int = 0  # tokens of the text when `source` was set

    def extend_to(self, tokens: Sequence[int]) -> bytes:
        self.words.extend(tokens[len(self.words) :])
        return self.words[-REACH:].tobytes()


class NgramDrafter(Drafter):
    """The longest suffix of at most LONGEST tokens that occurred before, and of its places the latest one.

    Where a copy puts one word in another's place, no suffix fits for a moment: the guess goes on behind the old one.
    """

    name = "ngram"
    wakes_itself = True

    def __init__(self, longest: int = LONGEST, shortest: int = SHORTEST) -> None:
        self._longest, self._shortest = longest, shortest
        self._texts: dict[str, _Text] = {}

    def propose(self, wanted: Sequence[tuple[Request, int]]) -> Mapping[str, tuple[int, ...]]:
        found = {request.id: self._continuation(request, count) for request, count in wanted}
        return {request_id: tokens for request_id, tokens in found.items() if tokens}

    def beyond(self, request: Request, after: int, count: int) -> tuple[int, ...]:
        text = self._texts[request.id]
        begin = text.source + len(text.words) - text.seen + after
        return tuple(text.words[begin : begin + count])

    def has_guess(self, request: Request) -> bool:
        return bool(self._continuation(request, 1))

    def forget(self, request: Request) -> None:
        self._texts.pop(request.id, None)

    def _continuation(self, request: Request, count: int) -> tuple[int, ...]:
        text = self._texts.get(request.id)
        if text is None or text.epoch != request.epoch:
            text = self._texts[request.id] = _Text(request.epoch)
        data = text.extend_to(request.tokens)
        size = text.words.itemsize
        longest = min(self._longest, len(data) // size - 1)
        end = len(data) - size  # a match must be followed by at least one token
        dropped = len(text.words) - len(data) // size
        for length in range(longest, self._shortest - 1, -1):
            place = _last_aligned(data, data[len(data) - length * size :], end, size)
            if place >= 0:
                text.source, text.seen = dropped + place // size + length, len(text.words)
                return tuple(text.words[text.source : text.source + count])
        if text.source and len(text.words) - text.seen <= FOLLOWED:
            begin = text.source + len(text.words) - text.seen
            return tuple(text.words[begin : begin + count])
        return ()


def _last_aligned(data: bytes, pattern: bytes, end: int, size: int) -> int:
    """Where `pattern` begins for the last time before `end`, at a multiple of `size`; -1 if nowhere."""
    while (place := data.rfind(pattern, 0, end)) >= 0 and place % size:
        end = place + len(pattern) - 1
    return place
