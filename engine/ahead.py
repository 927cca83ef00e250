"""Planning ahead: when the next step may be launched behind those under way, and how large it is."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from octavo.engine.guessing import Guessing
from octavo.engine.run.base import Pending, Runner
from octavo.engine.run.step import StepResult
from octavo.engine.schedule.plan import StepPlan
from octavo.engine.schedule.scheduler import Scheduler

AHEAD_S = 0.030  # work queued on the device at most before the next step is planned
AHEAD_WHILE_WAITING_S = 0.012  # the same while a request waits to be let in
LOOK_AGAIN_S = 0.001  # while a long step is under way behind which nothing is queued yet
REPEATED_S = 0.008  # a repeated step is about so long: readers are woken no more often anyway
CHECKED_S = 0.018  # a step that checks guesses several times is about so long


@dataclass(frozen=True, slots=True)
class Flight:
    """A step under way. `launched_s`: when work on it began, guessing included; `expected_s`: how long it should take,
    0 if nobody knows."""

    plan: StepPlan
    pending: Pending
    launched_s: float
    expected_s: float


class StepsAhead:
    """The steps under way, the oldest first in `flights`, and the plan of the next one."""

    def __init__(self, scheduler: Scheduler, runner: Runner, guessing: Guessing, clock: Callable[[], float]) -> None:
        self.flights: deque[Flight] = deque()
        self._scheduler = scheduler
        self._runner = runner
        self._guessing = guessing
        self._clock = clock
        self._last_done_s = 0.0
        self._check_s: float | None = None  # what the last check of guesses took

    def may_launch(self) -> bool:
        """Whether another step may be launched now."""
        return not self.flights or (self._has_room() and self._too_early_s() <= 0)

    def plan(self) -> StepPlan | None:
        """The next step; None if nothing can run, or it has to wait for what is under way."""
        behind = self._checking()
        checks = self._checks()
        guesses = self._guessing.propose(bool(self.flights), behind, checks)
        if guesses is None or (behind is not None and not guesses):
            return None
        return self._scheduler.schedule(
            self._clock(),
            may_preempt=not self.flights,
            max_repeats=checks if guesses else self._repeats(),
            guesses=guesses,
            behind=behind,
        )

    def add(self, plan: StepPlan, pending: Pending, launched_s: float) -> None:
        """A step was launched."""
        expected = self._scheduler.budget.estimate_s(plan.num_prompt_tokens, plan.repeats)
        self.flights.append(Flight(plan, pending, launched_s, expected or 0.0))

    def wait_to_launch(self) -> bool:
        """Sleeps until so little of a long step is left that the next one may be queued behind it, so that the device
        goes on without a pause; False if there is nothing to wait for."""
        if not self._has_room() or self._too_early_s() <= 0:
            return False
        while self._too_early_s() > 0 and not self.flights[0].pending.done():
            time.sleep(min(LOOK_AGAIN_S, max(0.0, self._too_early_s())))
        return True

    def observe(self, flight: Flight, result: StepResult) -> None:
        """Learns from a step that has just landed how long steps take."""
        now, plan = self._clock(), flight.plan
        seconds = (now - max(flight.launched_s, self._last_done_s)) / plan.repeats
        if plan.num_guesses:
            self._check_s = seconds
        else:
            # what the device needs, without the host's part where that can be told apart
            device_s = seconds if result.device_s is None else result.device_s / plan.repeats
            self._scheduler.budget.observe(plan.num_prompt_tokens, plan.num_decode_rows, device_s)
        self._guessing.observe_step(plan, (now - self._last_done_s) / plan.repeats)
        self._last_done_s = now

    def _has_room(self) -> bool:
        behind = self._checking()
        if behind is not None and not (len(self.flights) == 1 and self._runner.can_continue(behind)):
            return False
        return not (len(self.flights) > self._runner.run_ahead or self._scheduler.stalled)

    def _checking(self) -> StepPlan | None:
        """The newest step under way, if it checks guesses."""
        return self.flights[-1].plan if self.flights and self.flights[-1].plan.num_guesses else None

    def _too_early_s(self) -> float:
        """How much longer what is under way should take than may be queued."""
        flights = self.flights
        begun = max(flights[0].launched_s, self._last_done_s)
        first = max(0.0, flights[0].expected_s - (self._clock() - begun))
        queued = first + sum(flight.expected_s for flight in flights) - flights[0].expected_s
        return queued - (AHEAD_WHILE_WAITING_S if self._scheduler.waiting else AHEAD_S)

    def _repeats(self) -> int:
        """How often a step of decode rows alone may be run in one launch."""
        return _times(REPEATED_S, self._scheduler.budget.estimate_s(0), self._runner.max_repeats)

    def _checks(self) -> int:
        """How often guesses may be checked before the results are looked at."""
        step_s = self._scheduler.budget.estimate_s(0) if self._check_s is None else self._check_s
        return _times(CHECKED_S, step_s, self._runner.max_checks)


def _times(total_s: float, step_s: float | None, most: int) -> int:
    """How many steps make about so long a launch; one if nobody knows how long they are."""
    return 1 if step_s is None else max(1, min(most, round(total_s / max(step_s, 1e-6))))
