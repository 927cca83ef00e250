"""Decides before each step who guesses how many tokens, and learns from what came of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from octavo.engine.request import Request
from octavo.engine.schedule.plan import Guesses
from octavo.engine.speculate.base import Drafter
from octavo.engine.speculate.cost import StepCost
from octavo.engine.speculate.window import Window

MOST_ROWS = 8  # in larger batches a step is bound by arithmetic sooner than by reading the weights, which guesses share


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
        self._cost = StepCost()
        self._waiting: dict[str, float] = {}  # chances of requests whose guess steps wait for
        self._guessing: dict[str, float] = {}  # chances of the last guesses
        self._rows = 0

    def is_promising(self, running: Sequence[Request]) -> bool:
        """Whether some request will probably be guessed for once the tokens under way are known, so that nothing more
        should be launched before."""
        if not 0 < len(running) <= self._most_rows:
            return False
        self._rows = len(running)
        for request in running:
            chance = self.drafter.chance(request)
            if self._size(request, chance) > 0 and self._is_worth_waiting(request, chance):
                self._waiting[request.id] = chance
                return True
            self._wait_no_more(request)
        return False

    def propose(self, running: Sequence[Request], checks: int = 1) -> Mapping[str, Guesses]:
        """Guesses for the requests that decode, by id, for up to so many checks in a row. Nothing may be under way."""
        self._guessing.clear()
        if not 0 < len(running) <= self._most_rows:
            return {}
        self._rows = len(running)
        chances = {request.id: self.drafter.chance(request) for request in running}
        wanted = [(request, size) for request in running if (size := self._size(request, chances[request.id])) > 0]
        found = self.drafter.propose(wanted) if wanted else {}
        guesses = {}
        for request in running:
            tokens = found.get(request.id, ())
            if tokens:
                self._guessing[request.id] = chances[request.id]
                guesses[request.id] = Guesses((*tokens, *self._beyond(request, len(tokens), checks)), len(tokens))
            else:
                self._wait_no_more(request)
        self._waiting.clear()
        return guesses

    def propose_further(self, running: Sequence[Request], under_way: int, checks: int) -> Mapping[str, Guesses]:
        """Guesses for up to so many checks behind those under way, whose results nobody has seen: they follow the text
        as it is known, so that the first of them are for what is being checked."""
        guesses = {}
        for request in running:
            chance = self._guessing.get(request.id, 0.0)
            size = self._size(request, chance)
            if size > 0 and self._checks(request, size, under_way + checks) > under_way:
                room = request.limit - len(request.tokens) - 1
                count = min(room, (under_way + checks) * (size + 1) - 1)
                if tokens := self.drafter.beyond(request, 0, count):
                    guesses[request.id] = Guesses(tokens, size)
        return guesses

    def cost(self, guessed: int) -> float:
        """What checking so many guesses of a request takes beyond a plain step, in plain steps."""
        return self._cost.of_rows(self._rows).of(guessed) if guessed else 0.0

    def observe(self, request: Request, guessed: int, right: int) -> None:
        """What a check of a request's guesses came to."""
        cost = self._cost.of_rows(self._rows)
        self._window(request).observe(len(request.tokens), self._guessing[request.id], guessed, right, cost)

    def observe_step(self, seconds: float, rows: int, guessed: int) -> None:
        """How long a step of `rows` decoding requests took that checked `guessed` tokens altogether."""
        self._cost.observe(seconds, rows, guessed, max(1, len(self._guessing)))

    def forget(self, request: Request) -> None:
        """The request has ended or left its row."""
        self.drafter.forget(request)
        self._cost.request_ended()
        for record in (self._windows, self._waiting, self._guessing):
            record.pop(request.id, None)

    def _size(self, request: Request, chance: float) -> int:
        room = request.limit - len(request.tokens) - 1  # the step's own token comes after the guesses
        if not request.num_generated or room <= 0 or chance <= 0:
            return 0
        longest = min(room, self.longest)
        if self._always:
            return longest
        return self._window(request).size(longest, len(request.tokens), chance, self._cost.of_rows(self._rows))

    def _is_worth_waiting(self, request: Request, chance: float) -> bool:
        known = len(request.tokens)
        under_way, cost = request.len_planned - known, self._cost.of_rows(self._rows)
        return self._always or self._window(request).is_worth_waiting(under_way, known, chance, cost)

    def _beyond(self, request: Request, guessed: int, checks: int) -> tuple[int, ...]:
        """What further checks of the same step look at."""
        checks = self._checks(request, guessed, checks)
        room = request.limit - len(request.tokens) - 1 - guessed
        count = min(room, (checks - 1) * (guessed + 1))
        return self.drafter.beyond(request, guessed, count) if count > 0 else ()

    def _checks(self, request: Request, guessed: int, most: int) -> int:
        """How often in a row so many guesses may be checked before anybody looks."""
        if self._always:
            return most
        chance, cost = self._guessing[request.id], self._cost.of_rows(self._rows)
        return self._window(request).checks(guessed, most, len(request.tokens), chance, cost)

    def _wait_no_more(self, request: Request) -> None:
        """If the step waited for this request's guess, it did so in vain."""
        chance = self._waiting.pop(request.id, None)
        if chance is not None:
            self._window(request).observe(len(request.tokens), chance, 0, 0, self._cost.of_rows(self._rows))

    def _window(self, request: Request) -> Window:
        return self._windows.setdefault(request.id, Window())
