"""An engine without a model that speaks sixty pieces a second to each chat, by what the user's message asks for."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from fake_engine import THINKING, byte_tokenizer, last_user_text

from octavo.engine.engine import EngineStatus, ModelInfo
from octavo.engine.memory.census import PageCensus
from octavo.engine.request import (
    Delta,
    Event,
    Finished,
    FinishReason,
    PrefillProgress,
    SamplingParams,
    Started,
    Timings,
    Usage,
)
from octavo.engine.stream import EventStream, RequestHandle
from octavo.engine.text.reasoning import ReasoningFormat
from octavo.engine.text.template import ChatTemplate

# text, ("reasoning", text), ("read", done, total) or ("guess", drafted, accepted)
Piece = str | tuple[str, str] | tuple[str, int, int]
PIECES_PER_S = 60
HELD_AT = 20  # pieces after which a held reply waits
PAGES, PAGE_SIZE = 400, 16


@dataclass(eq=False)
class _Running:
    id: str
    prompt_tokens: int
    stream: EventStream
    script: Iterator[Piece]
    submitted_s: float
    first_s: float | None = None
    steps: int = 0
    tokens: list[int] = field(default_factory=list)
    guessed: tuple[int, int] = (0, 0)  # tokens that were drafted, and those that were accepted


class ScriptedEngine:
    """`script(user text)` yields what the model says, a piece a step, each made when it is said.

    While `held()` no reply gets further than `HELD_AT` pieces: what it looks like in the middle can be looked at for as
    long as that takes.
    """

    def __init__(
        self,
        script: Callable[[str], Iterator[Piece]],
        pieces_per_s: float = PIECES_PER_S,
        device: str = "cpu",
        held: Callable[[], bool] = lambda: False,
    ) -> None:
        self.tokenizer = byte_tokenizer(THINKING)
        self.template = ChatTemplate(self.tokenizer)
        self.context_length = 8192
        self.info = ModelInfo(
            name="Scripted-135M-Instruct",
            architecture="llama",
            format="Q4_1 as bfloat16",
            dtype="bfloat16",
            device=device,
            context_length=self.context_length,
            vocab_size=self.tokenizer.vocab_size,
            weight_bytes=269_000_000,
            kv_bytes=2_147_483_648,
            chat_bytes=188_743_680,
        )
        self._script = script
        self._held = held
        self._step_s = 1 / pieces_per_s
        self._running: list[_Running] = []
        self._wake = threading.Condition()
        self._closed = False
        self._count = 0
        self._said = 0
        self._failed = 0
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def submit(
        self,
        prompt_ids: Sequence[int],
        params: SamplingParams | None = None,
        *,
        request_id: str | None = None,
        reasoning: ReasoningFormat | None = None,
        reasoning_open: bool = False,
    ) -> RequestHandle:
        text = last_user_text(self.tokenizer.decode(prompt_ids, skip_special=False))
        with self._wake:
            self._count += 1
            running = _Running(
                request_id or f"request-{self._count}",
                len(prompt_ids),
                EventStream(),
                self._script(text),
                time.monotonic(),
            )
            self._running.append(running)
            self._emit(running, Started(running.id, running.prompt_tokens, running.prompt_tokens // 2))
            self._wake.notify_all()
        return RequestHandle(running.id, running.prompt_tokens, running.stream, self.abort)

    def abort(self, request_id: str) -> None:
        with self._wake:
            for running in tuple(self._running):
                if running.id == request_id:
                    self._end(running, "aborted")

    def status(self) -> EngineStatus:
        counters = (
            *("steps", "prompt_tokens", "cached_prompt_tokens", "generated_tokens", "draft_tokens"),
            *("accepted_tokens", "preemptions", "aborted", "failed"),
        )
        used = sum(len(owned) for owned in self._owned().values())
        return EngineStatus(
            state="ready",
            pages={
                "total": PAGES,
                "free": PAGES - used,
                "cached": 0,
                "used": used,
                "shared": 0,
                "page_size": PAGE_SIZE,
            },
            requests={"running": len(self._running), "waiting": 0, "swapped": 0},
            counters=dict.fromkeys(counters, 0) | {"generated_tokens": self._said, "failed": self._failed},
            settings={},
            progress_s=0.0,
        )

    def census(self, most_cells: int) -> PageCensus:
        """A page a cell; the running replies follow each other."""
        owners = [(name,) for name, owned in self._owned().items() for _ in owned]
        cells = [(1, 0, 0)] * len(owners) + [(0, 0, 0)] * (PAGES - len(owners))
        return PageCensus(PAGES, 1, cells, owners + [()] * (PAGES - len(owners)))

    def _owned(self) -> dict[str, range]:
        sizes = {run.id: run.prompt_tokens + len(run.tokens) for run in tuple(self._running)}
        return {name: range(-(-size // PAGE_SIZE)) for name, size in sizes.items()}

    def close(self) -> None:
        with self._wake:
            self._closed = True
            for running in tuple(self._running):
                self._end(running, "aborted")
            self._wake.notify_all()
        self._thread.join(5)

    def _run(self) -> None:
        due = time.monotonic()
        while True:
            with self._wake:
                while not self._running and not self._closed:
                    self._wake.wait()
                    due = time.monotonic()
                if self._closed:
                    return
                for running in tuple(self._running):
                    self._step(running)
            due += self._step_s
            time.sleep(max(0.0, due - time.monotonic()))

    def _step(self, running: _Running) -> None:
        if running.steps >= HELD_AT and self._held():
            return
        running.steps += 1
        try:
            piece = next(running.script)
        except StopIteration:
            self._end(running, "stop")
            return
        except Exception as error:
            self._end(running, "error", str(error))
            return
        if isinstance(piece, tuple) and piece[0] == "read":
            _, done, total = piece
            self._emit(running, PrefillProgress(running.id, int(done), int(total), int(total) // 3))
            return
        if isinstance(piece, tuple) and piece[0] == "guess":
            running.guessed = (int(piece[1]), int(piece[2]))
            return
        running.first_s = running.first_s or time.monotonic()
        running.tokens.append(0)
        self._said += 1
        if isinstance(piece, tuple):
            self._emit(running, Delta(running.id, reasoning=str(piece[1])))
        else:
            self._emit(running, Delta(running.id, text=piece, token_ids=(0,)))

    def _end(self, running: _Running, reason: FinishReason, error: str | None = None) -> None:
        self._running.remove(running)
        self._failed += reason == "error"
        now = time.monotonic()
        first_s = running.first_s or now
        count = len(running.tokens)
        speed = (count - 1) / (now - first_s) if count > 1 and now > first_s else 0.0
        saved = count / 2 if running.guessed[0] else 0.0
        usage = Usage(running.prompt_tokens, running.prompt_tokens // 2, count, *running.guessed, saved)
        timings = Timings(0.0, first_s - running.submitted_s, now - running.submitted_s, speed)
        self._emit(running, Finished(running.id, reason, usage, timings, error=error))

    def _emit(self, running: _Running, event: Event) -> None:
        running.stream.push(event)
        running.stream.wake()
