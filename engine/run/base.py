"""What the core needs of a runner; tests put a fake one here."""

from __future__ import annotations

from typing import Protocol

from octavo.engine.run.step import StepResult
from octavo.engine.schedule.plan import StepPlan


class Runner(Protocol):
    """Runs planned steps.

    `run_ahead`: steps that may be under way besides the oldest one; 0 where a step is done when `launch` returns.
    `prepare_next` uses idle time for what later steps will need and says whether there may be more of it.
    `max_repeats`: how often a step of decode rows alone can be run in one launch, `max_checks`: one with guesses.
    """

    run_ahead: int
    max_repeats: int
    max_checks: int

    def launch(self, plan: StepPlan) -> Pending: ...

    def can_continue(self, plan: StepPlan) -> bool:
        """Whether a step may begin where this one with guesses, launched last, ends."""
        ...

    def prepare_next(self) -> bool: ...


class Pending(Protocol):
    """A step under way."""

    def done(self) -> bool:
        """Whether `wait` would return at once."""
        ...

    def wait(self) -> StepResult: ...
