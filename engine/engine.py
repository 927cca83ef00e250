"""The engine's door: submit, abort, status, close. Behind it one thread runs the steps and sleeps when idle."""

from __future__ import annotations

import dataclasses
import logging
import secrets
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from octavo.engine import interpreter
from octavo.engine.config import EngineConfig
from octavo.engine.core import EngineCore
from octavo.engine.errors import ContextOverflowError, EngineClosedError, QueueFullError, RequestError
from octavo.engine.memory.census import PageCensus, take_census
from octavo.engine.request import Event, Finished, Request, SamplingParams
from octavo.engine.schedule.scheduler import count_pages
from octavo.engine.speculate import Drafter, Speculator
from octavo.engine.stream import EventStream, RequestHandle, Waker
from octavo.engine.text.output import OutputText
from octavo.engine.text.reasoning import ReasoningFormat
from octavo.engine.text.template import ChatTemplate
from octavo.engine.text.tokenizer import Tokenizer

log = logging.getLogger(__name__)

NO_TOKENIZER = "This model has no tokenizer; only token ids can be sent to it."
TAKE_TOKENIZER = "Send ids, or load a model that has one."
OWN_IDS = "Send ids of this model's own tokenizer: other models have other ones."
SNAPSHOT_INTERVAL_S = 0.1  # counting pages takes time: often enough for a monitor, too seldom to be felt


@dataclass(frozen=True, slots=True)
class LoadProgress:
    """How far a load is: `done` of `total` in the stage's own unit (bytes for weights), total 0 if unknown."""

    stage: str
    done: int
    total: int


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """What runs, for people and for status pages. Sizes in bytes, lengths in tokens."""

    name: str
    architecture: str
    format: str  # "bfloat16", or the checkpoint's own and what it runs as, such as "Q4_1 as int4"
    dtype: str
    device: str
    context_length: int
    vocab_size: int
    weight_bytes: int
    kv_bytes: int
    kv_dtype: str = ""  # number format of cached keys and values
    notices: tuple[str, ...] = ()
    generation_defaults: dict[str, object] = field(default_factory=dict)
    longest_context: int = 0  # that the model itself can have; 0: not known
    chat_bytes: int = 0  # cached keys and values of one chat as long as the context; kv_bytes are those of all


@dataclass(frozen=True, slots=True)
class EngineStatus:
    """A picture of the engine, at most SNAPSHOT_INTERVAL_S old while it works."""

    state: Literal["ready", "failed", "closed"]
    pages: dict[str, int]  # total, free, cached, used, shared, page_size
    requests: dict[str, int]  # running, waiting, swapped
    counters: dict[str, int]
    settings: dict[str, object]
    progress_s: float  # seconds since the last step while work waits, else 0


@dataclass(frozen=True, slots=True)
class EngineParts:
    """What an engine is made of; engine/assemble.py builds it from a checkpoint, tests from fakes."""

    core: Callable[[Callable[[str, Event], None]], EngineCore]  # given the sink for events
    config: EngineConfig
    info: ModelInfo
    page_size: int
    max_running: int  # requests that can run at once: rows, or slots if there are fewer
    tokenizer: Tokenizer | None = None
    template: ChatTemplate | None = None
    end_ids: frozenset[int] = frozenset()
    settings: dict[str, object] = field(default_factory=dict)
    prepare_thread: Callable[[], None] = lambda: None  # run in the engine's thread: the current device is a thread's
    release: Callable[[], None] = lambda: None  # ends what was started beside the engine; may be called twice


class Engine:
    """One model, one thread, any number of requests in one continuously re-formed batch."""

    def __init__(self, parts: EngineParts) -> None:
        self.config = parts.config
        self.info = parts.info
        self._parts = parts
        self._core: EngineCore = parts.core(self._emit)
        self._streams: dict[str, EventStream] = {}
        self._waker = Waker()
        self._inbox: deque[Callable[[], None]] = deque()
        self._news = threading.Condition()
        self._settled = threading.Event()
        self._state: Literal["ready", "failed", "closed"] = "ready"
        self._last_step_s = time.monotonic()
        self._snapshot_s = 0.0
        self._snapshot: tuple[dict[str, int], dict[str, int], dict[str, int]] = ({}, {}, {})
        self._take_snapshot()
        self._thread = threading.Thread(target=self._run, name="octavo-engine", daemon=True)
        self._thread.start()

    @classmethod
    def load(
        cls,
        source: str | Path,
        config: EngineConfig | None = None,
        *,
        progress: Callable[[LoadProgress], None] | None = None,
    ) -> Engine:
        """Builds an engine from a folder, a .gguf file, or "shape:NAME" (random weights of that shape).

        Raises the errors of engine/errors.py. An exception from `progress` cancels the load. Nothing stays half-loaded.
        """
        from octavo.engine.assemble import assemble

        parts = assemble(source, config or EngineConfig(), progress or (lambda _: None))
        interpreter.calm_down()
        try:
            return cls(parts)
        except BaseException:
            parts.release()
            raise

    @property
    def tokenizer(self) -> Tokenizer:
        """The model's tokenizer; RequestError for models without one (random weights)."""
        if self._parts.tokenizer is None:
            raise RequestError(NO_TOKENIZER, remedy=TAKE_TOKENIZER)
        return self._parts.tokenizer

    @property
    def template(self) -> ChatTemplate:
        """The model's chat template; RequestError for models without a tokenizer."""
        if self._parts.template is None:
            raise RequestError(NO_TOKENIZER, remedy=TAKE_TOKENIZER)
        return self._parts.template

    @property
    def context_length(self) -> int:
        """Tokens of one chat at most, prompt and reply together."""
        return self.info.context_length

    # -- callers' threads ---------------------------------------------------------------------------------------------

    def submit(
        self,
        prompt_ids: Sequence[int],
        params: SamplingParams | None = None,
        *,
        request_id: str | None = None,
        reasoning: ReasoningFormat | None = None,
        reasoning_open: bool = False,
    ) -> RequestHandle:
        """Queues a request and returns at once. `reasoning` splits the reply; with `reasoning_open` it starts inside.

        Raises ContextOverflowError, RequestError, QueueFullError, EngineClosedError.
        """
        params = params or SamplingParams()
        if params.seed is None:
            params = dataclasses.replace(params, seed=secrets.randbits(63))
        prompt = tuple(prompt_ids)
        self._check(prompt, params)
        request = Request(request_id or uuid.uuid4().hex, prompt, params, time.monotonic())
        longest = self.context_length - request.num_prompt
        wanted = longest if params.max_tokens is None else min(params.max_tokens, longest)
        request.limit = request.num_prompt + wanted
        output = None
        if self._parts.tokenizer is not None:
            output = OutputText(
                self._parts.tokenizer,
                list(prompt),
                stops=params.stop,
                reasoning=reasoning,
                reasoning_open=reasoning_open,
            )
        ends = frozenset(params.stop_token_ids) | (frozenset() if params.ignore_eos else self._parts.end_ids)
        stream = EventStream()
        with self._news:
            self._require_ready()
            if request.id in self._streams:
                raise RequestError(
                    f"A request with the id {request.id!r} is running already.",
                    field="request_id",
                    remedy="Wait for its end, or send another id.",
                )
            if len(self._streams) >= self._parts.max_running + self.config.queue_limit:
                raise QueueFullError(self.config.queue_limit)
            self._streams[request.id] = stream
            self._settled.clear()
            self._inbox.append(lambda: self._core.submit(request, ends, output))
            self._news.notify()
        return RequestHandle(request.id, request.num_prompt, stream, self.abort)

    def abort(self, request_id: str) -> None:
        """Ends a request: no further step includes it, its stream ends with Finished("aborted")."""
        with self._news:
            self._inbox.append(lambda: self._core.abort(request_id))
            self._news.notify()

    def guess_with(self, drafter: Drafter | None, longest: int, *, always: bool = False) -> None:
        """From the next step on, lets `drafter` guess up to `longest` tokens of each reply, or with `always` so many
        whether it pays or not. For measuring."""
        speculator = None if drafter is None else Speculator(drafter, longest, always=always)
        with self._news:
            self._inbox.append(lambda: self._core.guess_with(speculator))
            self._news.notify()

    def status(self) -> EngineStatus:
        """A picture of now, from any thread, without waiting for the engine's."""
        pages, requests, counters = self._snapshot
        core = self._core
        waiting = core is not None and (core.has_work or bool(self._inbox))
        return EngineStatus(
            state=self._state,
            pages=pages,
            requests=requests,
            counters=counters,
            settings=self._parts.settings,
            progress_s=time.monotonic() - self._last_step_s if waiting and self._state == "ready" else 0.0,
        )

    def settle(self, timeout_s: float | None = None) -> bool:
        """Waits until no request is left and everything was prepared that the ones so far would have gained from
        (captured graphs, on CUDA); False if that takes longer."""
        return self._settled.wait(timeout_s)

    def census(self, most_cells: int, timeout_s: float = 1.0) -> PageCensus | None:
        """Where every page is now, counted between two steps; None if the engine does not come to it in time."""
        done = threading.Event()
        found: list[PageCensus] = []

        def count() -> None:
            scheduler = self._core.scheduler
            found.append(take_census(scheduler.pools, scheduler.running, most_cells))
            done.set()

        with self._news:
            if self._state != "ready":
                return None
            self._inbox.append(count)
            self._news.notify()
        done.wait(timeout_s)
        return found[0] if found else None

    def close(self) -> None:
        """Ends all requests and the thread, and lets go of the model's memory. May be called twice."""
        with self._news:
            if self._state != "closed":
                self._state = "closed"
                self._settled.set()
                self._news.notify()
        self._parts.release()
        if threading.current_thread() is not self._thread:
            self._thread.join()
        interpreter.look_at_all()
        self._core = None  # type: ignore[assignment]  # frees weights and cache
        self._parts = dataclasses.replace(self._parts, core=_gone)

    def _check(self, prompt: tuple[int, ...], params: SamplingParams) -> None:
        if not prompt:
            raise RequestError("The prompt is empty.", field="prompt", remedy="Send at least one token.")
        if min(prompt) < 0 or max(prompt) >= self.info.vocab_size:
            bad = next(token for token in prompt if not 0 <= token < self.info.vocab_size)
            raise RequestError(
                f"Token id {bad} is outside the vocabulary of {self.info.vocab_size}.", field="prompt", remedy=OWN_IDS
            )
        scoring_only = params.max_tokens == 0 and params.prompt_logprobs is not None
        if params.max_tokens is not None and params.max_tokens < 1 and not scoring_only:
            raise RequestError(
                "max_tokens must be at least 1.",
                field="max_tokens",
                remedy="Leave it out to go on to the context's end.",
            )
        if len(prompt) >= self.context_length + scoring_only:
            raise ContextOverflowError(len(prompt), self.context_length)

    def _require_ready(self) -> None:
        if self._state == "closed":
            raise EngineClosedError("The engine was closed.", remedy="Load a model first.")
        if self._state == "failed":
            raise EngineClosedError("The engine has failed.", remedy="Load the model again; the log has the cause.")

    # -- the engine's thread ------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            self._parts.prepare_thread()
            while self._take_messages():
                self._last_step_s = time.monotonic()
                if not self._core.step(self._waker.flush) and self._core.has_work:
                    # Everything waits for something (a page, a prefix): look again soon rather than at once.
                    time.sleep(0.001)
                if not self._core.is_under_way:  # what comes next may take as long as a step
                    self._waker.flush()
                if time.monotonic() - self._snapshot_s > SNAPSHOT_INTERVAL_S:
                    self._take_snapshot()
        except Exception as error:
            log.exception("the engine thread ended")
            self._state = "failed"
            self._end_all(f"The engine has failed: {error}")
            return
        self._end_all("The engine was closed.")

    def _take_messages(self) -> bool:
        """Handles what callers sent; sleeps while there is nothing to do. False when the engine is to end."""
        prepared = False
        while True:
            with self._news:
                messages = list(self._inbox)
                self._inbox.clear()
                idle = not messages and not self._core.has_work and self._state == "ready"
                if idle:
                    self._waker.flush(now=True)
                if idle and prepared:
                    self._take_snapshot()
                    self._core.scheduler.check_integrity()
                    self._settled.set()
                    self._news.wait()
                    continue
            if idle:
                prepared = not self._core.prepare_next()
                continue
            for handle in messages:
                handle()
            if messages:
                self._waker.flush(now=True)
            if self._state != "ready":
                return False
            if self._core.has_work:
                return True

    def _emit(self, request_id: str, event: Event) -> None:
        stream = self._streams.get(request_id)
        if stream is None:
            return
        ended = isinstance(event, Finished)
        if ended:
            del self._streams[request_id]  # first: whoever reads of the end may ask again at once
        stream.push(event)
        self._waker.add(stream, urgent=ended)

    def _end_all(self, message: str) -> None:
        try:
            self._core.fail_all(message)
            self._core.drain()  # nothing on the device may still use what is freed next
        except Exception:  # the scheduler itself may be what broke; nobody must wait for ever
            log.exception("requests could not be ended in order")
        with self._news:
            self._inbox.clear()
            left = list(self._streams)
        for request_id in left:  # submitted, never taken in
            self._core.refuse(request_id, message)
        self._waker.flush(now=True)

    def _take_snapshot(self) -> None:
        scheduler, now = self._core.scheduler, time.monotonic()
        counts = [count_pages(scheduler.running, group) for group in range(len(scheduler.pools))]
        total = sum(pool.total for pool in scheduler.pools)
        free = sum(pool.num_free for pool in scheduler.pools)
        used = sum(count for count, _ in counts)
        pages = {
            "total": total,
            "free": free,
            "cached": total - free - used,
            "used": used,
            "shared": sum(shared for _, shared in counts),
            "page_size": self._parts.page_size,
        }
        requests = {"running": len(scheduler.running), "waiting": len(scheduler.waiting), "swapped": 0}
        totals = dataclasses.asdict(self._core.counters) | {"preemptions": scheduler.num_preemptions}
        counters = {name: round(total) for name, total in totals.items()}
        self._snapshot, self._snapshot_s = (pages, requests, counters), now


def _gone(_: object) -> EngineCore:
    raise EngineClosedError("The engine was closed.", remedy="Load a model first.")
