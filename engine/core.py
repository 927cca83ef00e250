"""The engine without its thread: requests in, one step at a time, events out. Deterministic, for tests to drive."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch

from octavo.engine.request import (
    Delta,
    Event,
    Finished,
    FinishReason,
    PrefillProgress,
    Request,
    Started,
    Timings,
    TokenLogprob,
    Usage,
)
from octavo.engine.run.step import StepResult
from octavo.engine.schedule.plan import Guesses, PlanAgain, RowWork, StepPlan, count_checks
from octavo.engine.schedule.scheduler import Scheduler
from octavo.engine.speculate import Speculator
from octavo.engine.text.output import OutputText, Piece

log = logging.getLogger(__name__)

MIN_CHUNK_AFTER_OOM = 64  # below this many prompt tokens a step the device's memory is truly full
OUT_OF_MEMORY = "The device ran out of memory; use a smaller engine.kv_memory or model.context_length."
AHEAD_S = 0.030  # work queued on the device at most before the next step is planned
AHEAD_WHILE_WAITING_S = 0.012  # the same while a request waits to be let in
LOOK_AGAIN_S = 0.001  # while a long step is under way behind which nothing is queued yet
REPEATED_S = 0.008  # a repeated step is about so long: readers are woken no more often anyway
CHECKED_S = 0.018  # a step that checks guesses several times is about so long
NO_TEXT = Piece()
NOT_FINITE = "The model produced scores that are not numbers, so this reply was ended; try another dtype or checkpoint."


class Pending(Protocol):
    """A step under way."""

    def done(self) -> bool:
        """Whether `wait` would return at once."""
        ...

    def wait(self) -> StepResult: ...


class Runner(Protocol):
    """What the core needs of a runner; tests put a fake one here.

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


@dataclass(slots=True)
class Counters:
    """Totals since the engine was built."""

    steps: int = 0
    prompt_tokens: int = 0
    cached_prompt_tokens: int = 0
    generated_tokens: int = 0
    draft_tokens: int = 0
    accepted_tokens: int = 0
    guess_cost_steps: float = 0.0  # estimate: what checking guesses took longer, in plain steps
    aborted: int = 0
    failed: int = 0


@dataclass(slots=True, eq=False)
class _Live:
    """A request with what the core keeps beside it."""

    request: Request
    output: OutputText | None
    started_s: float | None = None
    first_token_s: float | None = None
    prompt_logprobs: list[TokenLogprob | None] = field(default_factory=lambda: [None])


@dataclass(frozen=True, slots=True)
class _Flight:
    """A step under way. `launched_s`: when work on it began, guessing included; `expected_s`: how long it should take,
    0 if nobody knows."""

    plan: StepPlan
    pending: Pending
    launched_s: float
    expected_s: float


class EngineCore:
    """Runs submitted requests step by step. Every method is called from one thread.

    `emit(request_id, event)` receives all events in order; the last one of a request is Finished.
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
        self._emit = emit
        self._speculator = speculator
        self._describe_token = describe_token
        self._clock = clock
        self._live: dict[str, _Live] = {}
        self._flights: deque[_Flight] = deque()
        self._last_done_s = 0.0
        self._check_s: float | None = None  # what the last check of guesses took

    @property
    def has_work(self) -> bool:
        return self.scheduler.has_work or bool(self._flights)

    @property
    def is_under_way(self) -> bool:
        """Whether a launched step's results are still to be taken."""
        return bool(self._flights)

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
        self._speculator = speculator

    def submit(self, request: Request, end_ids: frozenset[int], output: OutputText | None) -> None:
        """Queues a request; `end_ids` end the reply. `request.limit` is already the most tokens it may reach."""
        request.end_ids = end_ids
        self._live[request.id] = _Live(request, output)
        self.scheduler.add(request)

    def abort(self, request_id: str) -> None:
        """Ends a request; its pages are free before the next step is planned. Unknown ids are no error."""
        live = self._live.get(request_id)
        if live is not None:
            self.counters.aborted += 1
            self._finish(live, "aborted")

    def fail_all(self, message: str) -> None:
        """Ends every request with an error."""
        for live in list(self._live.values()):
            self._finish(live, "error", error=message)

    def refuse(self, request_id: str, message: str) -> None:
        """Ends a request that was never taken in."""
        usage, timings = Usage(0, 0, 0), Timings(0.0, 0.0, 0.0, 0.0)
        self._emit(request_id, Finished(request_id, "error", usage, timings, error=message))

    def step(self, before_waiting: Callable[[], None] = lambda: None) -> bool:
        """Launches what may run ahead and takes the oldest step's results; False if nothing could run. In between, with
        the device at work and nothing to do here, it calls `before_waiting`."""
        failed = self._launch_ahead()
        if not self._flights:
            return failed
        before_waiting()
        if not failed and self._wait_to_launch():
            self._launch_ahead()
        self._land()
        return True

    def drain(self) -> None:
        """Takes the results of every step under way, launching none."""
        while self._flights:
            self._land()

    def _land(self) -> None:
        """Waits for the oldest step under way and takes its results."""
        flight = self._flights.popleft()
        try:
            result = flight.pending.wait()
        except Exception as error:  # one broken step must not take the engine from everybody
            log.exception("a step failed")
            self._fail((work.request for work in flight.plan.rows), f"The engine failed in this step: {error}")
            return
        self._account(flight, result)
        for index, work in enumerate(flight.plan.rows):
            live = self._live.get(work.request.id)
            if live is not None and work.request.epoch == work.epoch:
                self._take(live, work, result, index)

    def _launch_ahead(self) -> bool:
        """Launches steps until enough work is queued; True if instead a request had to be failed."""
        scheduler = self.scheduler
        while self._may_launch():
            asked = self._clock()
            guesses = self._guesses()
            behind = self._checking()
            if guesses is None or (behind is not None and not guesses):
                return False
            repeats = self._checks() if guesses else self._repeats()
            plan = scheduler.schedule(
                self._clock(), may_preempt=not self._flights, max_repeats=repeats, guesses=guesses, behind=behind
            )
            if plan is None:
                if scheduler.running and not self._flights:
                    self._fail(scheduler.running[:1], "The KV cache is too small for this chat.")
                    return True
                return False
            self._announce(plan)
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
            except Exception as error:  # as in `step`
                log.exception("a step could not be launched")
                self._fail((work.request for work in plan.rows), f"The engine failed in this step: {error}")
                return True
            expected = scheduler.budget.estimate_s(plan.num_prompt_tokens, plan.repeats)
            self._flights.append(_Flight(plan, pending, asked if plan.num_guesses else began, expected or 0.0))
        return False

    def _may_launch(self) -> bool:
        return not self._flights or (self._has_room_ahead() and self._too_early_s() <= 0)

    def _has_room_ahead(self) -> bool:
        flights = self._flights
        behind = self._checking()
        if behind is not None and not (len(flights) == 1 and self._runner.can_continue(behind)):
            return False
        return not (len(flights) > self._runner.run_ahead or self.scheduler.stalled)

    def _checking(self) -> StepPlan | None:
        """The newest step under way, if it checks guesses."""
        return self._flights[-1].plan if self._flights and self._flights[-1].plan.num_guesses else None

    def _too_early_s(self) -> float:
        """How much longer what is under way should take than may be queued."""
        flights = self._flights
        begun = max(flights[0].launched_s, self._last_done_s)
        first = max(0.0, flights[0].expected_s - (self._clock() - begun))
        queued = first + sum(flight.expected_s for flight in flights) - flights[0].expected_s
        return queued - (AHEAD_WHILE_WAITING_S if self.scheduler.waiting else AHEAD_S)

    def _wait_to_launch(self) -> bool:
        """Sleeps until so little of a long step is left that the next one may be queued behind it, so that the device
        goes on without a pause; False if there is nothing to wait for."""
        if not self._has_room_ahead() or self._too_early_s() <= 0:
            return False
        while self._too_early_s() > 0 and not self._flights[0].pending.done():
            time.sleep(min(LOOK_AGAIN_S, max(0.0, self._too_early_s())))
        return True

    def _guesses(self) -> Mapping[str, Guesses] | None:
        """Guesses for the next step; None if it must wait until nothing is under way, so that guessing can begin."""
        speculator, scheduler = self._speculator, self.scheduler
        if speculator is None or scheduler.waiting:
            return {}
        decoding = [request for request in scheduler.running if request.num_unplanned <= 1]
        if len(decoding) < len(scheduler.running):
            return {}
        try:
            if not self._flights:
                return speculator.propose(decoding, self._checks())
            if self._checking() is not None:
                return speculator.propose_further(decoding, self._flights[0].plan.repeats, self._checks())
            return None if speculator.is_promising(decoding) else {}
        except Exception:  # a guess is never worth a reply
            log.exception("tokens could not be guessed; from here on they are computed one at a time")
            self._speculator = None
            return {}

    def _repeats(self) -> int:
        step_s = self.scheduler.budget.estimate_s(0)
        if step_s is None:
            return 1
        return max(1, min(self._runner.max_repeats, round(REPEATED_S / max(step_s, 1e-6))))

    def _checks(self) -> int:
        """How often guesses may be checked before the results are looked at."""
        step_s = self.scheduler.budget.estimate_s(0) if self._check_s is None else self._check_s
        if step_s is None:
            return 1
        return max(1, min(self._runner.max_checks, round(CHECKED_S / max(step_s, 1e-6))))

    def _account(self, flight: _Flight, result: StepResult) -> None:
        now, plan = self._clock(), flight.plan
        self.counters.steps += plan.repeats
        seconds = (now - max(flight.launched_s, self._last_done_s)) / plan.repeats
        if plan.num_guesses:
            self._check_s = seconds
        else:
            # what the device needs, without the host's part where that can be told apart
            device_s = seconds if result.device_s is None else result.device_s / plan.repeats
            self.scheduler.budget.observe(plan.num_prompt_tokens, plan.num_decode_rows, device_s)
        if self._speculator is not None and not plan.num_prompt_tokens:
            # from landing to landing: the host's part, which a step with guesses cannot hide, is compared as well
            paced_s = (now - self._last_done_s) / plan.repeats
            self._speculator.observe_step(paced_s, len(plan.rows), plan.num_guesses)
        self._last_done_s = now

    # -- before a step ------------------------------------------------------------------------------------------------

    def _announce(self, plan: StepPlan) -> None:
        now = self._clock()
        for work in plan.rows:
            live = self._live[work.request.id]
            if live.started_s is None:
                request = work.request
                live.started_s = now
                self.counters.prompt_tokens += request.num_prompt
                self.counters.cached_prompt_tokens += request.cached_tokens
                self._emit(request.id, Started(request.id, request.num_prompt, request.cached_tokens))

    def _out_of_memory(self, plan: StepPlan) -> None:
        """The device ran out of memory: read prompts in smaller chunks, or give up on the youngest request."""
        torch.cuda.empty_cache()
        budget = self.scheduler.budget
        if plan.num_tokens > MIN_CHUNK_AFTER_OOM and budget.max_chunk > MIN_CHUNK_AFTER_OOM:
            budget.max_chunk = max(MIN_CHUNK_AFTER_OOM, budget.max_chunk // 2)
            log.warning("out of device memory; prompts are now read %d tokens at a time", budget.max_chunk)
            return
        self._fail(self.scheduler.running[-1:], OUT_OF_MEMORY)

    def _fail(self, requests: Iterable[Request], message: str) -> None:
        for request in list(requests):
            live = self._live.get(request.id)
            if live is not None:
                self._finish(live, "error", error=message)

    # -- after a step -------------------------------------------------------------------------------------------------

    def _take(self, live: _Live, work: RowWork, result: StepResult, index: int) -> None:
        request = work.request
        work = work.placed(len(request.tokens))
        tokens, finite = result.tokens[index], result.finite[index]
        if finite and work.samples and (not tokens or work.begin + work.certain != len(request.tokens)):
            raise RuntimeError(f"{len(tokens)} tokens for {work.begin + work.certain} came at {len(request.tokens)}")
        if not finite and not tokens:
            self._finish(live, "error", error=result.errors.get(index, NOT_FINITE))
            return
        if request.params.prompt_logprobs is not None:
            known = len(live.prompt_logprobs) - (work.begin + 1)
            live.prompt_logprobs.extend(result.prompt_logprobs[index][max(0, known) :])
        if tokens:
            self._deliver(live, work, tokens, result.logprobs[index])
            if not finite and request.id in self._live:
                self._finish(live, "error", error=result.errors.get(index, NOT_FINITE))
            return
        self.scheduler.commit(work, ())
        if work.begin < request.num_prompt:
            self._tell_progress(request)
        if request.num_computed >= request.limit:
            self._finish(live, "length")

    def _tell_progress(self, request: Request) -> None:
        done = min(request.num_computed, request.num_prompt)
        self._emit(request.id, PrefillProgress(request.id, done, request.num_prompt, request.cached_tokens))

    def _deliver(self, live: _Live, work: RowWork, tokens: tuple[int, ...], logprobs: tuple[TokenLogprob, ...]) -> None:
        """Takes a row's new tokens as far as they count: up to an end token, a stop string or the limit."""
        request = live.request
        if live.first_token_s is None:
            live.first_token_s = self._clock()
        tokens = tokens[: request.limit - len(request.tokens)]
        ended = None
        if not request.end_ids.isdisjoint(tokens):
            ended = next(place for place, token in enumerate(tokens) if token in request.end_ids)
        taken = tokens if ended is None else tokens[: ended + 1]
        piece = NO_TEXT
        if live.output is not None and ended != 0:
            piece = live.output.push(tokens[:ended])
        if piece.matched_stop is not None:
            taken = tokens[: piece.used]
        self.counters.generated_tokens += len(taken)
        if work.draft:
            self._count_guesses(work, tokens, len(taken))
        self.scheduler.commit(work, taken)
        if work.begin < request.num_prompt:
            self._tell_progress(request)
        self._emit(request.id, Delta(request.id, piece.text, piece.reasoning, taken, logprobs[: len(taken)]))
        if piece.matched_stop is not None:
            self._finish(live, "stop", stopped_by=piece.matched_stop)
        elif ended is not None:
            self._finish(live, "stop", stopped_by=self._describe_token(taken[-1]))
        elif len(request.tokens) >= request.limit:
            self._finish(live, "length")

    def _count_guesses(self, work: RowWork, tokens: Sequence[int], taken: int) -> None:
        request = work.request
        for before, guessed, right in count_checks(work, tokens):
            used = max(0, min(taken - before, right))
            request.num_drafted += guessed
            request.num_accepted += used
            self.counters.draft_tokens += guessed
            self.counters.accepted_tokens += used
            if self._speculator is not None:
                cost = self._speculator.cost(guessed)
                request.saved_steps += used - cost
                self.counters.guess_cost_steps += cost
                self._speculator.observe(request, guessed, right)

    def _finish(
        self, live: _Live, reason: FinishReason, *, stopped_by: str | None = None, error: str | None = None
    ) -> None:
        request = live.request
        del self._live[request.id]
        if error is not None:
            self.counters.failed += 1
        self.scheduler.remove(request, keep_pages=error is None)
        if self._speculator is not None:
            self._speculator.forget(request)
        if live.output is not None:
            rest = live.output.finish()
            if rest.text or rest.reasoning:
                self._emit(request.id, Delta(request.id, rest.text, rest.reasoning))
            if rest.matched_stop is not None and reason == "length":  # what was held back completed a stop string
                reason, stopped_by = "stop", rest.matched_stop
        prompt_logprobs = tuple(live.prompt_logprobs) if request.params.prompt_logprobs is not None else None
        usage = Usage(
            request.num_prompt,
            request.cached_tokens,
            request.num_generated,
            request.num_drafted,
            request.num_accepted,
            request.saved_steps,
        )
        timings = self._timings(live)
        self._emit(request.id, Finished(request.id, reason, usage, timings, stopped_by, error, prompt_logprobs))

    def _timings(self, live: _Live) -> Timings:
        now, arrival = self._clock(), live.request.arrival_s
        started = now if live.started_s is None else live.started_s
        first = now if live.first_token_s is None else live.first_token_s
        after, seconds = live.request.num_generated - 1, now - first
        return Timings(
            queue_s=started - arrival,
            first_token_s=first - arrival,
            total_s=now - arrival,
            decode_tok_s=after / seconds if after > 0 and seconds > 0 else 0.0,
        )
