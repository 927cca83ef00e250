"""What the engine asks of a drafter, whichever kind it is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence

from octavo.engine.request import Request

FIRST_CHANCE = 0.6  # of a guess of which nothing is known: what small models reach beside large ones of their family


class Drafter(ABC):
    """Guesses tokens that a request will say next. A wrong guess costs time and never changes a text.

    Guesses follow `request.tokens`, all of which are certain when `propose` is called.
    """

    name: str

    @abstractmethod
    def propose(self, wanted: Sequence[tuple[Request, int]]) -> Mapping[str, tuple[int, ...]]:
        """Up to so many tokens for each request, by request id; left out where there is no guess."""

    def beyond(self, request: Request, after: int, count: int) -> tuple[int, ...]:
        """Up to so many guesses that follow the `after` ones just proposed for the request, from a drafter that need
        not know what becomes of those. Place for place: they hold also behind one that was wrong."""
        return ()

    def chance(self, request: Request) -> float:
        """How likely the first token guessed for this request would be right, as far as that can be told without
        guessing; 0 if `propose` would have nothing."""
        return FIRST_CHANCE

    def forget(self, request: Request) -> None:  # noqa: B027 - a drafter without state has nothing to forget
        """The request has left its row."""
