"""What checking guesses costs, told from the times of steps."""

from __future__ import annotations

import statistics
from collections import deque
from dataclasses import dataclass

FIRST_FIXED, FIRST_EACH = 0.10, 0.05  # a 135M model on two CPU cores: steps with 0, 1, 3, 5 guesses 14, 16, 18, 18 ms
PLAIN_STEPS = 9  # their median is what a step takes just now; single ones suffer from what else the machine does
FEWEST_PLAIN = 3
RATE = 0.2  # share of its error that a measured step takes from the estimate
DOUBTED = 0.1  # share of the way back to the first estimate after every reply
LEAST = 0.01  # no guess is free, whatever was measured
LARGEST_ERROR = 0.3  # of a plain step; beyond that a step was disturbed, compiled or captured


@dataclass(frozen=True, slots=True)
class Cost:
    """Time of a step with guesses beyond a plain one of as many rows, for each row that guesses, in plain steps a row:
    `fixed` for guessing at all and `each` for every guess."""

    fixed: float = FIRST_FIXED
    each: float = FIRST_EACH

    def of(self, guesses: float) -> float:
        """Of a step in which a row has so many guesses, one at least."""
        return self.fixed + self.each * guesses

    def doubted(self) -> Cost:
        """The same, a little nearer to the first."""
        return Cost(self.fixed + DOUBTED * (FIRST_FIXED - self.fixed), self.each + DOUBTED * (FIRST_EACH - self.each))


class StepCost:
    """Learns the cost for every number of rows.

    A step with guesses is compared with the plain ones before it; where those are few, nothing is learned.
    """

    def __init__(self) -> None:
        self._costs: dict[int, Cost] = {}
        self._plain_s: deque[float] = deque(maxlen=PLAIN_STEPS)
        self._plain_rows = 0

    def of_rows(self, rows: int) -> Cost:
        """In a step of so many rows."""
        return self._costs.get(rows, Cost())

    def observe(self, seconds: float, rows: int, guessed: int, guessing: int) -> None:
        """A step of `rows` rows took so long, `guessing` of which had `guessed` guesses altogether."""
        if rows != self._plain_rows:
            self._plain_s.clear()
            self._plain_rows = rows
        if guessed == 0:
            self._plain_s.append(seconds)
        elif len(self._plain_s) >= FEWEST_PLAIN and (plain_s := statistics.median(self._plain_s)) > 0:
            beyond = (seconds / plain_s - 1) * rows / guessing
            self._costs[rows] = _moved(self.of_rows(rows), guessed / guessing, beyond)

    def request_ended(self) -> None:
        """Other requests' steps take another time; and a disturbed measurement must not end guessing for ever."""
        self._plain_s.clear()
        self._costs = {rows: cost.doubted() for rows, cost in self._costs.items()}


def _moved(cost: Cost, guesses: float, measured: float) -> Cost:
    """Nearer to a measurement, by least mean squares (Widrow and Hoff, "Adaptive Switching Circuits", 1960)."""
    error = max(-LARGEST_ERROR, min(LARGEST_ERROR, measured - cost.of(guesses)))
    move = RATE * error / (1 + guesses * guesses)
    return Cost(max(LEAST, cost.fixed + move), max(LEAST, cost.each + move * guesses))
