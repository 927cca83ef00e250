"""A model that says a hash of what it read, and a drafter that knows it."""

from __future__ import annotations

import random
from collections.abc import Sequence

from octavo.engine.request import Request
from octavo.engine.speculate import Drafter

VOCAB = 97


def next_token(tokens: list[int]) -> int:
    """The fake model: a token for a sequence."""
    value = 7
    for token in tokens:
        value = (value * 31 + token + 1) % 1_000_003
    return value % VOCAB


class Oracle(Drafter):
    """Guesses what the fake model will say, and at random goes wrong or says nothing."""

    name = "oracle"

    def __init__(self, seed: int, right: float = 0.7) -> None:
        self._random, self._right = random.Random(seed), right

    def propose(self, wanted: Sequence[tuple[Request, int]]) -> dict[str, tuple[int, ...]]:
        guesses = {}
        for request, count in wanted:
            text = list(request.tokens)
            for _ in range(count):
                text.append(next_token(text) if self._random.random() < self._right else self._random.randrange(VOCAB))
            if self._random.random() < 0.9:
                guesses[request.id] = tuple(text[len(request.tokens) :])
        return guesses
