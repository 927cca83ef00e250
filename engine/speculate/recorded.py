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
            reply = self._replies.get(request.prompt_ids, ())
            tokens = list(reply[request.num_generated : request.num_generated + count])
            for place in range(len(tokens)):
                if self._random.random() >= self._acceptance:
                    tokens[place] = tokens[place] + 1 if tokens[place] == 0 else tokens[place] - 1
                    break
            if tokens:
                found[request.id] = tuple(tokens)
        return found
