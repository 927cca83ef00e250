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
        guesses = {request.id: self._guess(request.tokens, count) for request, count in wanted}
        return {name: tokens for name, tokens in guesses.items() if self._random.random() < 0.9}

    def beyond(self, request: Request, after: int, count: int) -> tuple[int, ...]:
        text = list(request.tokens)
        for _ in range(after):
            text.append(next_token(text))
        return self._guess(text, count)

    def _guess(self, tokens: Sequence[int], count: int) -> tuple[int, ...]:
        """Wrong guesses stand in the place of right ones, so that those after them can be right again."""
        text, guesses = list(tokens), []
        for _ in range(count):
            text.append(next_token(text))
            guesses.append(text[-1] if self._random.random() < self._right else self._random.randrange(VOCAB))
        return tuple(guesses)
