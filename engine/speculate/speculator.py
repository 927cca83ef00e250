"""Decides before each step who guesses how many tokens, and learns from what came of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from octavo.engine.request import Request
from octavo.engine.schedule.plan import Guesses
from octavo.engine.speculate.base import Drafter
from octavo.engine.speculate.window import Window

MOST_ROWS = 8  # in larger batches a step is bound by arithmetic sooner than by reading the weights, which guesses share
FIRST_COST = 0.06  # of one more token in a step, as a share of a plain step, before any was measured
MEMORY = 0.9


class Speculator:
    """One engine's speculation: a drafter, a window for every request, and the measured cost of a wider step.

    `longest`: guesses a request gets at most, or with `always` every time.
    """

    def __init__(self, drafter: Drafter, longest: int, most_rows: int = MOST_ROWS, *, always: bool = False) -> None:
        self.drafter = drafter
        self.longest = longest
        self._always = always
        self._most_rows = most_rows
        self._windows: dict[str, Window] = {}
        self._plain_s: float | None = None
        self._cost = FIRST_COST

    def is_promising(self, running: Sequence[Request]) -> bool:
        """Whether some request should be guessed for as soon as nothing is under way."""
        if not 0 < len(running) <= self._most_rows:
            return False
        return any(self._size(request) > 0 and self.drafter.has_guess(request) for request in running)

    def propose(self, running: Sequence[Request], checks: int = 1) -> Mapping[str, Guesses]:
        """Guesses for the requests that decode, by id, for up to so many checks in a row. Nothing may be under way."""
        if not 0 < len(running) <= self._most_rows:
            return {}
        wanted = [(request, size) for request in running if (size := self._size(request)) > 0]
        found = self.drafter.propose(wanted) if wanted else {}
        guesses = {}
        for request, _ in wanted:
            if tokens := found.get(request.id):
                beyond: tuple[int, ...] = ()
                if checks > 1 and (self._always or self._window(request).is_trusted):
                    room = request.limit - len(request.tokens) - 1 - len(tokens)
                    further = min(room, (checks - 1) * (len(tokens) + 1))
                    beyond = self.drafter.beyond(request, len(tokens), further) if further > 0 else ()
                guesses[request.id] = Guesses((*tokens, *beyond), len(tokens))
        return guesses

    def observe(self, request: Request, guessed: int, right: int) -> None:
        """What a step's guesses for a request came to."""
        self._window(request).observe(guessed, right)

    def observe_step(self, seconds: float, rows: int, guessed: int) -> None:
        """How long a step of `rows` decoding requests took that checked `guessed` tokens altogether."""
        if guessed == 0:
            self._plain_s = seconds if self._plain_s is None else MEMORY * self._plain_s + (1 - MEMORY) * seconds
        elif self._plain_s:
            cost = max(0.0, (seconds / self._plain_s - 1) * rows / guessed)
            self._cost = MEMORY * self._cost + (1 - MEMORY) * min(cost, 1.0)

    def forget(self, request: Request) -> None:
        """The request has ended or left its row."""
        self.drafter.forget(request)
        if request.id in self._windows:
            del self._windows[request.id]

    def _size(self, request: Request) -> int:
        room = request.limit - len(request.tokens) - 1  # the step's own token comes after the guesses
        if not request.num_generated or room <= 0:
            return 0
        if self._always:
            return min(room, self.longest)
        return min(room, self._window(request).size(self.longest, len(request.tokens), self._cost))

    def _window(self, request: Request) -> Window:
        return self._windows.setdefault(request.id, Window())
