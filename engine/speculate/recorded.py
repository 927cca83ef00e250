"""Guesses read from a recording, wrong as often as wanted: measures what speculation is worth at a given acceptance."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

from octavo.engine.request import Request
from octavo.engine.speculate.base import Drafter


class RecordedDrafter(Drafter):
    """Knows the replies to some prompts beforehand. Each guess is right with probability `acceptance` if those before
    it were."""

    name = "recorded"

    def __init__(self, replies: Mapping[tuple[int, ...], Sequence[int]], acceptance: float, seed: int = 0) -> None:
        self._replies, self._acceptance = dict(replies), acceptance
        self._random = random.Random(seed)

    def propose(self, wanted: Sequence[tuple[Request, int]]) -> Mapping[str, tuple[int, ...]]:
        found = {}
        for request, count in wanted:
            if tokens := self._guess(request, 0, count):
                found[request.id] = tokens
        return found

    def beyond(self, request: Request, after: int, count: int) -> tuple[int, ...]:
        return self._guess(request, after, count)

    def _guess(self, request: Request, after: int, count: int) -> tuple[int, ...]:
        reply = self._replies.get(request.prompt_ids, ())
        begin = request.num_generated + after
        tokens = list(reply[begin : begin + count])
        for place, token in enumerate(tokens):
            if self._random.random() >= self._acceptance:
                tokens[place] = token + 1 if token == 0 else token - 1
        return tuple(tokens)
