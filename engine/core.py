"""The engine without its thread: requests in, one step at a time, events out. Deterministic, for tests to drive."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
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
from octavo.engine.schedule.plan import RowWork, StepPlan
from octavo.engine.schedule.scheduler import Scheduler
from octavo.engine.text.output import OutputText, Piece

log = logging.getLogger(__name__)

MIN_CHUNK_AFTER_OOM = 64  # below this many prompt tokens a step the device's memory is truly full
OUT_OF_MEMORY = "The device ran out of memory; use a smaller engine.kv_memory or model.context_length."
NOT_FINITE = "The model produced scores that are not numbers, so this reply was ended; try another dtype or checkpoint."


class Pending(Protocol):
    """A step under way."""

    def wait(self) -> StepResult: ...


class Runner(Protocol):
    """What the core needs of a runner; tests put a fake one here."""

    def launch(self, plan: StepPlan) -> Pending: ...


@dataclass(slots=True)
class Counters:
    """Totals since the engine was built."""

    steps: int = 0
    prompt_tokens: int = 0
    cached_prompt_tokens: int = 0
    generated_tokens: int = 0
    draft_tokens: int = 0
    accepted_tokens: int = 0
    aborted: int = 0
    failed: int = 0


@dataclass(slots=True, eq=False)
class _Live:
    """A request with what the core keeps beside it."""

    request: Request
    end_ids: frozenset[int]  # tokens that end the reply
    output: OutputText | None
    started_s: float | None = None
    first_token_s: float | None = None
    prompt_logprobs: list[TokenLogprob | None] = field(default_factory=lambda: [None])


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
        describe_token: Callable[[int], str] = str,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.scheduler = scheduler
        self.counters = Counters()
        self._runner = runner
        self._emit = emit
        self._describe_token = describe_token
        self._clock = clock
        self._live: dict[str, _Live] = {}

    @property
    def has_work(self) -> bool:
        return self.scheduler.has_work

    def submit(self, request: Request, end_ids: frozenset[int], output: OutputText | None) -> None:
        """Queues a request. `request.limit` is already the most tokens it may reach."""
        self._live[request.id] = _Live(request, end_ids, output)
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

    def step(self) -> bool:
        """Plans and runs one step; False if nothing could run."""
        plan = self.scheduler.schedule(self._clock())
        if plan is None:
            if self.scheduler.running:
                self._fail(self.scheduler.running[:1], "The KV cache is too small for this chat.")
                return True
            return False
        self._announce(plan)
        began = self._clock()
        try:
            result = self._runner.launch(plan).wait()
        except torch.cuda.OutOfMemoryError:
            self._out_of_memory(plan)
            return True
        except Exception as error:  # one broken step must not take the engine from everybody
            log.exception("a step failed")
            self._fail((work.request for work in plan.rows), f"The engine failed in this step: {error}")
            return True
        self.counters.steps += 1
        prompt_tokens = sum(work.count for work in plan.rows[plan.num_decode_rows :])
        self.scheduler.budget.observe(prompt_tokens, plan.num_decode_rows, self._clock() - began)
        for index, work in enumerate(plan.rows):
            if work.request.epoch == work.epoch and work.request.id in self._live:
                self._take(work, result, index)
        return True

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

    def _take(self, work: RowWork, result: StepResult, index: int) -> None:
        request, live = work.request, self._live[work.request.id]
        if not result.finite[index]:
            self._finish(live, "error", error=result.errors.get(index, NOT_FINITE))
            return
        token = result.tokens[index]
        if request.params.prompt_logprobs is not None:
            known = len(live.prompt_logprobs) - (work.begin + 1)
            live.prompt_logprobs.extend(result.prompt_logprobs[index][max(0, known) :])
        self.scheduler.commit(work, token)
        if work.begin < request.num_prompt:
            done = min(request.num_computed, request.num_prompt)
            self._emit(request.id, PrefillProgress(request.id, done, request.num_prompt, request.cached_tokens))
        if token is not None:
            self._deliver(live, token, result.logprobs[index])
        elif request.num_computed >= request.limit:
            self._finish(live, "length")

    def _deliver(self, live: _Live, token: int, logprob: TokenLogprob | None) -> None:
        request = live.request
        if live.first_token_s is None:
            live.first_token_s = self._clock()
        self.counters.generated_tokens += 1
        ended = token in live.end_ids
        piece = Piece() if live.output is None or ended else live.output.push((token,))
        logprobs = (logprob,) if logprob is not None else ()
        self._emit(request.id, Delta(request.id, piece.text, piece.reasoning, (token,), logprobs))
        if ended:
            self._finish(live, "stop", stopped_by=self._describe_token(token))
        elif piece.matched_stop is not None:
            self._finish(live, "stop", stopped_by=piece.matched_stop)
        elif len(request.tokens) >= request.limit:
            self._finish(live, "length")

    def _finish(
        self, live: _Live, reason: FinishReason, *, stopped_by: str | None = None, error: str | None = None
    ) -> None:
        request = live.request
        del self._live[request.id]
        if error is not None:
            self.counters.failed += 1
        self.scheduler.remove(request, keep_pages=error is None)
        if live.output is not None:
            rest = live.output.finish()
            if rest.text or rest.reasoning:
                self._emit(request.id, Delta(request.id, rest.text, rest.reasoning))
            if rest.matched_stop is not None and reason == "length":  # what was held back completed a stop string
                reason, stopped_by = "stop", rest.matched_stop
        prompt_logprobs = tuple(live.prompt_logprobs) if request.params.prompt_logprobs is not None else None
        usage = Usage(request.num_prompt, request.cached_tokens, request.num_generated)
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
