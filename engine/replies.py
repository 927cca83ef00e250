"""Taking results: what a step computed becomes text, events and, at a request's end, its account."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from octavo.engine.counters import Counters
from octavo.engine.guessing import Guessing
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

NO_TEXT = Piece()
NOT_FINITE = "The model produced scores that are not numbers, so this reply was ended; try another dtype or checkpoint."


@dataclass(slots=True, eq=False)
class _Live:
    """A request with what is kept beside it."""

    request: Request
    output: OutputText | None
    started_s: float | None = None
    first_token_s: float | None = None
    prompt_logprobs: list[TokenLogprob | None] = field(default_factory=lambda: [None])


class Replies:
    """The replies under way. `emit(request_id, event)` receives all events in order; the last one is Finished."""

    def __init__(
        self,
        scheduler: Scheduler,
        guessing: Guessing,
        counters: Counters,
        emit: Callable[[str, Event], None],
        describe_token: Callable[[int], str],
        clock: Callable[[], float],
    ) -> None:
        self._scheduler = scheduler
        self._guessing = guessing
        self._counters = counters
        self._emit = emit
        self._describe_token = describe_token
        self._clock = clock
        self._live: dict[str, _Live] = {}

    def add(self, request: Request, output: OutputText | None) -> None:
        """A reply may begin; without `output` it has no text, only tokens."""
        self._live[request.id] = _Live(request, output)

    def announce(self, plan: StepPlan) -> None:
        """Tells of the requests whose first step this is."""
        now = self._clock()
        for work in plan.rows:
            live = self._live[work.request.id]
            if live.started_s is None:
                request = work.request
                live.started_s = now
                self._counters.prompt_tokens += request.num_prompt
                self._counters.cached_prompt_tokens += request.cached_tokens
                self._emit(request.id, Started(request.id, request.num_prompt, request.cached_tokens))

    def take(self, plan: StepPlan, result: StepResult) -> None:
        """Takes a step's results, but for those of requests that ended or left their row meanwhile."""
        for index, work in enumerate(plan.rows):
            live = self._live.get(work.request.id)
            if live is not None and work.request.epoch == work.epoch:
                self._take(live, work, result, index)

    def abort(self, request_id: str) -> None:
        """Ends a request, unless it has ended."""
        live = self._live.get(request_id)
        if live is not None:
            self._counters.aborted += 1
            self._finish(live, "aborted")

    def fail(self, requests: Iterable[Request], message: str) -> None:
        """Ends these requests, as far as they have not ended, with an error."""
        for request in list(requests):
            live = self._live.get(request.id)
            if live is not None:
                self._finish(live, "error", error=message)

    def fail_all(self, message: str) -> None:
        """Ends every request with an error."""
        for live in list(self._live.values()):
            self._finish(live, "error", error=message)

    def refuse(self, request_id: str, message: str) -> None:
        """Ends a request that was never taken in."""
        usage, timings = Usage(0, 0, 0), Timings(0.0, 0.0, 0.0, 0.0)
        self._emit(request_id, Finished(request_id, "error", usage, timings, error=message))

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
        self._scheduler.commit(work, ())
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
        self._counters.generated_tokens += len(taken)
        if work.draft:
            self._guessing.count(work, tokens, len(taken))
        self._scheduler.commit(work, taken)
        if work.begin < request.num_prompt:
            self._tell_progress(request)
        self._emit(request.id, Delta(request.id, piece.text, piece.reasoning, taken, logprobs[: len(taken)]))
        if piece.matched_stop is not None:
            self._finish(live, "stop", stopped_by=piece.matched_stop)
        elif ended is not None:
            self._finish(live, "stop", stopped_by=self._describe_token(taken[-1]))
        elif len(request.tokens) >= request.limit:
            self._finish(live, "length")

    def _finish(
        self, live: _Live, reason: FinishReason, *, stopped_by: str | None = None, error: str | None = None
    ) -> None:
        request = live.request
        del self._live[request.id]
        if error is not None:
            self._counters.failed += 1
        self._scheduler.remove(request, keep_pages=error is None)
        self._guessing.forget(request)
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
