"""The engine without its thread: requests in, one step at a time, events out. Deterministic, for tests to drive."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

import torch

from octavo.engine.ahead import StepsAhead
from octavo.engine.counters import Counters
from octavo.engine.guessing import Guessing
from octavo.engine.replies import Replies
from octavo.engine.request import Event, Request
from octavo.engine.run.base import Runner
from octavo.engine.schedule.plan import PlanAgain, StepPlan
from octavo.engine.schedule.scheduler import Scheduler
from octavo.engine.speculate import Speculator
from octavo.engine.text.output import OutputText

log = logging.getLogger(__name__)

MIN_CHUNK_AFTER_OOM = 64  # below this many prompt tokens a step the device's memory is truly full
OUT_OF_MEMORY = "The device ran out of memory; use a smaller engine.kv_memory or model.context_length."


class EngineCore:
    """Runs submitted requests step by step. Every method is called from one thread.

    `emit(request_id, event)` receives all events in order; the last one of a request is Finished. When a step is
    planned is decided in ahead.py, what becomes of its results in replies.py.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        runner: Runner,
        emit: Callable[[str, Event], None],
        *,
        speculator: Speculator | None = None,
        describe_token: Callable[[int], str] = str,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.scheduler = scheduler
        self.counters = Counters()
        self._runner = runner
        self._clock = clock
        self._guessing = Guessing(speculator, scheduler, self.counters)
        self._ahead = StepsAhead(scheduler, runner, self._guessing, clock)
        self._replies = Replies(scheduler, self._guessing, self.counters, emit, describe_token, clock)

    @property
    def has_work(self) -> bool:
        return self.scheduler.has_work or self.is_under_way

    @property
    def is_under_way(self) -> bool:
        """Whether a launched step's results are still to be taken."""
        return bool(self._ahead.flights)

    def prepare_next(self) -> bool:
        """Uses idle time, less than half a second of it; False if there is nothing to prepare."""
        try:
            return self._runner.prepare_next()
        except Exception:  # what was not prepared is made when it is needed, or done without
            log.exception("a step could not be prepared")
            return False

    def guess_with(self, speculator: Speculator | None) -> None:
        """Replaces who guesses; nothing may wait for the old one's guesses."""
        self.drain()
        self._guessing.speculator = speculator

    def submit(self, request: Request, end_ids: frozenset[int], output: OutputText | None) -> None:
        """Queues a request; `end_ids` end the reply. `request.limit` is already the most tokens it may reach."""
        request.end_ids = end_ids
        self._replies.add(request, output)
        self.scheduler.add(request)

    def abort(self, request_id: str) -> None:
        """Ends a request; its pages are free before the next step is planned. Unknown ids are no error."""
        self._replies.abort(request_id)

    def fail_all(self, message: str) -> None:
        """Ends every request with an error."""
        self._replies.fail_all(message)

    def refuse(self, request_id: str, message: str) -> None:
        """Ends a request that was never taken in."""
        self._replies.refuse(request_id, message)

    def step(self, before_waiting: Callable[[], None] = lambda: None) -> bool:
        """Launches what may run ahead and takes the oldest step's results; False if nothing could run. In between, with
        the device at work and nothing to do here, it calls `before_waiting`."""
        failed = self._launch_ahead()
        if not self.is_under_way:
            return failed
        before_waiting()
        if not failed and self._ahead.wait_to_launch():
            self._launch_ahead()
        self._land()
        return True

    def drain(self) -> None:
        """Takes the results of every step under way, launching none."""
        while self.is_under_way:
            self._land()

    def _land(self) -> None:
        """Waits for the oldest step under way and takes its results."""
        flight = self._ahead.flights.popleft()
        try:
            result = flight.pending.wait()
        except Exception as error:  # one broken step must not take the engine from everybody
            log.exception("a step failed")
            self._fail_step(flight.plan, error)
            return
        self.counters.steps += flight.plan.repeats
        self._ahead.observe(flight, result)
        self._replies.take(flight.plan, result)

    def _launch_ahead(self) -> bool:
        """Launches steps until enough work is queued; True if instead a request had to be failed."""
        scheduler, ahead = self.scheduler, self._ahead
        while ahead.may_launch():
            asked = self._clock()
            plan = ahead.plan()
            if plan is None:
                if scheduler.running and not self.is_under_way:
                    self._replies.fail(scheduler.running[:1], "The KV cache is too small for this chat.")
                    return True
                return False
            self._replies.announce(plan)
            began = self._clock()
            try:
                pending = self._runner.launch(plan)
            except PlanAgain:
                self.drain()
                scheduler.forget_planned()
                continue
            except torch.cuda.OutOfMemoryError:
                self.drain()
                scheduler.forget_planned()
                self._out_of_memory(plan)
                return True
            except Exception as error:  # as in `_land`
                log.exception("a step could not be launched")
                self._fail_step(plan, error)
                return True
            ahead.add(plan, pending, asked if plan.num_guesses else began)
        return False

    def _fail_step(self, plan: StepPlan, error: Exception) -> None:
        self._replies.fail((work.request for work in plan.rows), f"The engine failed in this step: {error}")

    def _out_of_memory(self, plan: StepPlan) -> None:
        """The device ran out of memory: read prompts in smaller chunks, or give up on the youngest request."""
        torch.cuda.empty_cache()
        budget = self.scheduler.budget
        if plan.num_tokens > MIN_CHUNK_AFTER_OOM and budget.max_chunk > MIN_CHUNK_AFTER_OOM:
            budget.max_chunk = max(MIN_CHUNK_AFTER_OOM, budget.max_chunk // 2)
            log.warning("out of device memory; prompts are now read %d tokens at a time", budget.max_chunk)
            return
        self._replies.fail(self.scheduler.running[-1:], OUT_OF_MEMORY)
