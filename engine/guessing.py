"""Who guesses tokens for the next step, if anybody does, and what became of the guesses."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

from octavo.engine.counters import Counters
from octavo.engine.request import Request
from octavo.engine.schedule.plan import Guesses, RowWork, StepPlan, count_checks
from octavo.engine.schedule.scheduler import Scheduler
from octavo.engine.speculate import Speculator

log = logging.getLogger(__name__)


class Guessing:
    """A speculator that can be replaced, and is given up for good once it fails: a guess is never worth a reply."""

    def __init__(self, speculator: Speculator | None, scheduler: Scheduler, counters: Counters) -> None:
        self.speculator = speculator
        self._scheduler = scheduler
        self._counters = counters

    def propose(self, is_under_way: bool, behind: StepPlan | None, checks: int) -> Mapping[str, Guesses] | None:
        """Guesses for the next step, for up to `checks` checks in a row; `behind`: the step with guesses it follows.

        None if the step must wait until nothing is under way, so that guessing can begin.
        """
        speculator, scheduler = self.speculator, self._scheduler
        if speculator is None or scheduler.waiting:
            return {}
        decoding = [request for request in scheduler.running if request.num_unplanned <= 1]
        if len(decoding) < len(scheduler.running):
            return {}
        try:
            if not is_under_way:
                return speculator.propose(decoding, checks)
            if behind is not None:
                return speculator.propose_further(decoding, behind.repeats, checks)
            return None if speculator.is_promising(decoding) else {}
        except Exception:
            log.exception("tokens could not be guessed; from here on they are computed one at a time")
            self.speculator = None
            return {}

    def observe_step(self, plan: StepPlan, seconds: float) -> None:
        """How long each repetition of a step took, from landing to landing: the host's part, which a step with guesses
        cannot hide, is compared as well."""
        if self.speculator is not None and not plan.num_prompt_tokens:
            self.speculator.observe_step(seconds, len(plan.rows), plan.num_guesses)

    def count(self, work: RowWork, tokens: Sequence[int], taken: int) -> None:
        """Counts what the guesses of a row were good for, of whose tokens the first `taken` became text."""
        request, counters = work.request, self._counters
        for before, guessed, right in count_checks(work, tokens):
            used = max(0, min(taken - before, right))
            request.num_drafted += guessed
            request.num_accepted += used
            counters.draft_tokens += guessed
            counters.accepted_tokens += used
            if self.speculator is not None:
                cost = self.speculator.cost(guessed)
                request.saved_steps += used - cost
                counters.guess_cost_steps += cost
                self.speculator.observe(request, guessed, right)

    def forget(self, request: Request) -> None:
        """The request has ended."""
        if self.speculator is not None:
            self.speculator.forget(request)
