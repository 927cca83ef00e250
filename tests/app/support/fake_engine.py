"""An engine without a model: says what a script tells it, one byte a token, through the real tokenizer, template,
stop strings, reasoning split and event streams. Fast, and the same every time."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace

from tokenizers import AddedToken, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as RustTokenizer

from octavo.engine.engine import EngineStatus, ModelInfo
from octavo.engine.errors import ContextOverflowError, EngineClosedError, QueueFullError, RequestError
from octavo.engine.memory.census import PageCensus
from octavo.engine.request import (
    Delta,
    Event,
    Finished,
    PrefillProgress,
    SamplingParams,
    Started,
    Timings,
    TokenLogprob,
    Usage,
)
from octavo.engine.stream import EventStream, RequestHandle
from octavo.engine.text.output import OutputText
from octavo.engine.text.reasoning import ReasoningFormat
from octavo.engine.text.template import ChatTemplate
from octavo.engine.text.tokenizer import Tokenizer

CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
THINKING = CHATML + "{# <think> and </think> enclose the reasoning #}"
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<think>", "</think>")
PAGE = 16


def byte_tokenizer(template: str = CHATML) -> Tokenizer:
    """One token a byte, and the control tokens of the template."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = RustTokenizer(models.BPE(vocab={mark: i for i, mark in enumerate(alphabet)}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL])
    return Tokenizer(
        SimpleNamespace(
            backend_tokenizer=backend,
            chat_template=template,
            special_tokens_map={"eos_token": "<|im_end|>"},
            bos_token_id=None,
            eos_token_id=backend.token_to_id("<|im_end|>"),
        )
    )


def last_user_text(prompt: str) -> str:
    return prompt.rpartition("<|im_start|>user\n")[2].partition("<|im_end|>")[0]


def say_back(prompt: str) -> str:
    """The script most tests use: the model repeats what the user said last."""
    return f"You said: {last_user_text(prompt) or prompt}"


@dataclass(eq=False)
class _Running:
    id: str
    prompt: tuple[int, ...]
    params: SamplingParams
    stream: EventStream
    output: OutputText
    script: list[int]
    limit: int
    submitted_s: float
    cached: int = 0
    done: list[int] = field(default_factory=list)
    first_s: float = 0.0
    started: bool = False


class FakeEngine:
    """Has the interface of Engine. `script(prompt text) -> reply text`; an Exception from it fails that request alone.

    `hold()` stops all steps until `release()`, `hold(after=n)` those of requests that have n tokens; `token_s` is the
    time a step takes.
    """

    def __init__(
        self,
        script: Callable[[str], str] = say_back,
        *,
        context_length: int = 4096,
        token_s: float = 0.0,
        max_running: int = 64,
        queue_limit: int = 256,
        template: str = CHATML,
        name: str = "fake-model",
        notices: tuple[str, ...] = (),
        generation_defaults: dict[str, object] | None = None,
    ) -> None:
        self.tokenizer = byte_tokenizer(template)
        self.template = ChatTemplate(self.tokenizer)
        self.context_length = context_length
        self.info = ModelInfo(
            name=name,
            architecture="fake",
            format="float32",
            dtype="float32",
            device="cpu",
            context_length=context_length,
            vocab_size=self.tokenizer.vocab_size,
            weight_bytes=1,
            kv_bytes=1,
            notices=notices,
            generation_defaults=generation_defaults or {},
        )
        self.submitted: list[tuple[tuple[int, ...], SamplingParams]] = []
        self.prompts: list[str] = []
        self.finished: list[Finished] = []
        self.progress_s = 0.0
        self._script = script
        self._token_s = token_s
        self._max_running = max_running
        self._queue_limit = queue_limit
        self._waiting: list[_Running] = []
        self._running: list[_Running] = []
        self._cache: list[tuple[int, ...]] = []
        self._counters = dict.fromkeys(
            (
                *("steps", "prompt_tokens", "cached_prompt_tokens", "generated_tokens"),
                *("draft_tokens", "accepted_tokens", "preemptions", "aborted", "failed"),
            ),
            0,
        )
        self._lock = threading.Condition()
        self._held_at: int | None = None  # tokens with which a request waits
        self._closed = False
        self._count = 0
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    # The interface of Engine

    def submit(
        self,
        prompt_ids: Sequence[int],
        params: SamplingParams | None = None,
        *,
        request_id: str | None = None,
        reasoning: ReasoningFormat | None = None,
        reasoning_open: bool = False,
    ) -> RequestHandle:
        params, prompt = params or SamplingParams(), tuple(prompt_ids)
        scoring = params.max_tokens == 0 and params.prompt_logprobs is not None
        if not prompt:
            raise RequestError("The prompt is empty.", field="prompt")
        if any(not 0 <= token < self.info.vocab_size for token in prompt):
            raise RequestError("A token id is outside the vocabulary.", field="prompt")
        if params.max_tokens == 0 and not scoring:
            raise RequestError("max_tokens must be at least 1.", field="max_tokens")
        if len(prompt) >= self.context_length + scoring:
            raise ContextOverflowError(len(prompt), self.context_length)
        text = self.tokenizer.decode(prompt, skip_special=False)
        room = self.context_length - len(prompt)
        with self._lock:
            if self._closed:
                raise EngineClosedError("The engine was closed.")
            if len(self._waiting) >= self._queue_limit:
                raise QueueFullError(self._queue_limit)
            self._count += 1
            self.submitted.append((prompt, params))
            self.prompts.append(text)
            running = _Running(
                id=request_id or f"request-{self._count}",
                prompt=prompt,
                params=params,
                stream=EventStream(),
                output=OutputText(
                    self.tokenizer, prompt, stops=params.stop, reasoning=reasoning, reasoning_open=reasoning_open
                ),
                script=[],
                limit=room if params.max_tokens is None else min(room, params.max_tokens),
                submitted_s=time.monotonic(),
            )
            try:
                running.script = self.tokenizer.encode(self._script(text), allow_control=True)
                running.script.append(self.tokenizer.eos_id or 0)
            except Exception as error:
                self._end(running, "error", error=str(error))
                return RequestHandle(running.id, len(prompt), running.stream, self.abort)
            self._waiting.append(running)
            self._lock.notify_all()
        return RequestHandle(running.id, len(prompt), running.stream, self.abort)

    def abort(self, request_id: str) -> None:
        with self._lock:
            for group in (self._waiting, self._running):
                for running in tuple(group):
                    if running.id == request_id:
                        group.remove(running)
                        self._counters["aborted"] += 1
                        self._end(running, "aborted")

    def status(self) -> EngineStatus:
        with self._lock:
            used = sum(-(-(len(r.prompt) + len(r.done)) // PAGE) for r in self._running)
            return EngineStatus(
                state="closed" if self._closed else "ready",
                pages={"total": 1000, "free": 1000 - used, "cached": 0, "used": used, "shared": 0, "page_size": PAGE},
                requests={"running": len(self._running), "waiting": len(self._waiting), "swapped": 0},
                counters=dict(self._counters),
                settings={
                    "paged_attention": True,
                    "fusion": True,
                    "max_running": self._max_running,
                    "queue_limit": self._queue_limit,
                },
                progress_s=self.progress_s,
            )

    def census(self, most_cells: int) -> PageCensus:
        """The running requests one after the other, a page a cell."""
        with self._lock:
            owners = [(r.id,) for r in self._running for _ in range(-(-(len(r.prompt) + len(r.done)) // PAGE))]
        cells = [(1, 0, 0)] * len(owners) + [(0, 0, 0)] * (1000 - len(owners))
        return PageCensus(1000, 1, cells, owners + [()] * (1000 - len(owners)))

    def close(self) -> None:
        with self._lock:
            self._closed = True
            for running in (*self._waiting, *self._running):
                self._end(running, "error", error="The engine was closed.")
            self._waiting.clear()
            self._running.clear()
            self._lock.notify_all()
        self._thread.join()

    # For tests

    def hold(self, *, after: int = 0) -> None:
        with self._lock:
            self._held_at = after
            self._lock.notify_all()

    def release(self) -> None:
        with self._lock:
            self._held_at = None
            self._lock.notify_all()

    def forget(self) -> None:
        with self._lock:
            for memory in (self.submitted, self.prompts, self.finished, self._cache):
                memory.clear()

    @property
    def is_idle(self) -> bool:
        with self._lock:
            return not self._waiting and not self._running

    # The thread

    def _run(self) -> None:
        while True:
            with self._lock:
                self._lock.wait_for(lambda: self._closed or self._admits or self._due)
                if self._closed:
                    return
                while self._admits:
                    self._running.append(self._waiting.pop(0))
                self._counters["steps"] += 1
                for running in self._due:
                    self._step(running)
            if self._token_s:
                time.sleep(self._token_s)

    @property
    def _admits(self) -> bool:
        return bool(self._waiting) and len(self._running) < self._max_running and self._held_at != 0

    @property
    def _due(self) -> tuple[_Running, ...]:
        return tuple(run for run in self._running if self._held_at is None or len(run.done) < self._held_at)

    def _step(self, running: _Running) -> None:
        if not running.started:
            running.started = True
            running.cached = max((_shared(old, running.prompt) for old in self._cache), default=0)
            self._counters["prompt_tokens"] += len(running.prompt)
            self._counters["cached_prompt_tokens"] += running.cached
            total = len(running.prompt)
            self._emit(running, Started(running.id, total, running.cached))
            self._emit(running, PrefillProgress(running.id, total, total, running.cached))
        if running.limit == 0:
            self._finish(running, "length")
            return
        token = running.script[len(running.done)]
        if len(running.done) + 1 == len(running.script) and running.params.ignore_eos:
            running.script[-1:] = [running.script[0], running.script[-1]]
            token = running.script[len(running.done)]
        running.done.append(token)
        running.first_s = running.first_s or time.monotonic()
        self._counters["generated_tokens"] += 1
        if token == self.tokenizer.eos_id or token in running.params.stop_token_ids:
            piece = running.output.finish()
            self._emit(
                running, Delta(running.id, piece.text, piece.reasoning, (token,), self._logprobs(running, token))
            )
            self._finish(running, "stop", stopped_by=self.tokenizer.token_text(token))
            return
        piece = running.output.push([token])
        self._emit(running, Delta(running.id, piece.text, piece.reasoning, (token,), self._logprobs(running, token)))
        if piece.matched_stop is not None:
            self._finish(running, "stop", stopped_by=piece.matched_stop)
        elif len(running.done) >= running.limit:
            piece = running.output.finish()
            self._emit(running, Delta(running.id, piece.text, piece.reasoning))
            self._finish(running, "length")

    def _logprobs(self, running: _Running, token: int) -> tuple[TokenLogprob, ...]:
        return () if running.params.logprobs is None else (self._logprob(token, running.params.logprobs),)

    def _logprob(self, token: int, top: int) -> TokenLogprob:
        others = tuple(((token + i) % self.info.vocab_size, -0.5 - i) for i in range(top))
        return TokenLogprob(token, -0.5, others)

    def _finish(self, running: _Running, reason: str, stopped_by: str | None = None) -> None:
        self._running.remove(running)
        self._cache.append(running.prompt + tuple(running.done))
        self._end(running, reason, stopped_by=stopped_by)

    def _end(self, running: _Running, reason: str, *, stopped_by: str | None = None, error: str | None = None) -> None:
        now = time.monotonic()
        first_s = running.first_s or now
        scores = None
        if running.params.prompt_logprobs is not None:
            top = running.params.prompt_logprobs
            scores = (None, *(self._logprob(token, top) for token in running.prompt[1:]))
        finished = Finished(
            running.id,
            reason,  # type: ignore[arg-type]
            Usage(len(running.prompt), running.cached, len(running.done)),
            Timings(0.0, first_s - running.submitted_s, now - running.submitted_s, 100.0),
            stopped_by=stopped_by,
            error=error,
            prompt_logprobs=scores,
        )
        self.finished.append(finished)
        self._emit(running, finished)

    def _emit(self, running: _Running, event: Event) -> None:
        running.stream.push(event)
        running.stream.wake()


def endless() -> FakeEngine:
    """An engine whose replies take minutes: they are there to be ended."""
    return FakeEngine(lambda _: "word " * 20_000, token_s=0.001, context_length=200_000)


def _shared(old: tuple[int, ...], new: tuple[int, ...]) -> int:
    count = 0
    for mine, other in zip(old, new[:-1]):
        if mine != other:
            break
        count += 1
    return count // PAGE * PAGE
