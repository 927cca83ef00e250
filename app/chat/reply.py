"""One reply while it is being written: from waiting for the model to its last token, whoever watches or not."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from octavo.app.chat.cuts import SENTENCES, Cut
from octavo.app.chat.errors import ChatError
from octavo.app.chat.patience import patiently
from octavo.app.chat.store import ChatStore, StoreError
from octavo.app.chat.types import Append, Ended, LiveEvent, Message, MessageStatus, Notice, Progress, Remark, ReplyStats
from octavo.app.host import ModelHost
from octavo.engine.errors import OctavoError, QueueFullError
from octavo.engine.request import Delta, Finished, PrefillProgress, SamplingParams, Started

if TYPE_CHECKING:
    from octavo.app.chat.context import Prompt
    from octavo.engine.engine import Engine, RequestHandle

log = logging.getLogger(__name__)

COALESCE_S = 0.025  # deltas within this time become one event; app/ui/live decides how often each tab is told
SAVE_EVERY_S = 2.0  # partial text is on disk at least this often
PROMPT_PATIENCE_S = 1.0  # how long a reply waits for another process to let go of the file before it begins
PLACE_EVERY_S = 0.5  # how often a waiting reply's place in the queue is looked up
ABORT_GRACE_S = 2.0  # an engine that has not ended an aborted request by then is not waited for

MODEL_GONE = "The model was unloaded or changed while this was written. What is there is kept: continue it, or retry."

Publish = Callable[[LiveEvent], None]
Prepare = Callable[["Engine"], tuple["Prompt", SamplingParams]]


@dataclass(slots=True)
class _Outcome:
    status: MessageStatus
    error: str | None = None
    stats: ReplyStats | None = None
    code: str | None = None  # of the error


class Reply:
    """A running reply, or one that goes on: it begins with the text of `message`.

    `prepare` makes its prompt and sampling values once there is an engine, in a worker thread; may raise OctavoError.
    """

    def __init__(
        self, message: Message, *, store: ChatStore, host: ModelHost, prepare: Prepare, publish: Publish
    ) -> None:
        self._message = message
        self._store = store
        self._host = host
        self._prepare = prepare
        self._publish = publish
        self._text = [message.content]
        self._reasoning = [message.reasoning]
        self._token_ids = list(message.token_ids)
        self._unsent_text: list[str] = []
        self._unsent_reasoning: list[str] = []
        self._flush_timer: asyncio.TimerHandle | None = None
        self._sent_s = 0.0
        self._save_timer: asyncio.TimerHandle | None = None
        self._progress: Progress | None = None
        self._notices: list[Notice] = []
        self._handle: RequestHandle | None = None
        self._task: asyncio.Task[None] | None = None
        self._left_out_turns = 0
        self._started: Started | None = None
        self._submitted_s = 0.0
        self._first_s = 0.0  # of the first token, and of the last one
        self._last_s = 0.0
        self._grown = False  # has got text or thoughts in this run
        self._begun = False
        self._stopped = False
        self._cut: Cut | None = None

    @property
    def request_id(self) -> str | None:
        """The engine's name for it, once the engine has it."""
        return None if self._handle is None else self._handle.id

    @property
    def message(self) -> Message:
        """The reply so far."""
        return replace(
            self._message,
            content="".join(self._text),
            reasoning="".join(self._reasoning),
            token_ids=tuple(self._token_ids),
        )

    def opening(self) -> list[LiveEvent]:
        """What someone who begins to watch now needs to know besides the message itself."""
        waiting = [self._progress] if self._progress is not None and not self._grown else []
        return [*self._notices, *waiting]

    def start(self, on_end: Callable[[Message], None]) -> None:
        """Begin, on the running loop. `on_end` is called once, with all of it, just before the Ended event."""
        self._task = asyncio.create_task(self._run(on_end), name=f"reply-{self._message.id}")

    def stop(self, cut: Cut | None = None) -> None:
        """End it soon with what it has; `cut` says what ends it, if nobody asked for that. The engine frees its pages
        first where it can."""
        task = self._task
        if not self._stopped:
            self._cut = cut
        self._stopped = True
        if task is None or task.done() or not self._begun:  # a task cancelled before its first step would run nothing
            return
        if self._handle is None:
            task.cancel()
            return
        self._handle.abort()
        task.get_loop().call_later(ABORT_GRACE_S, task.cancel)

    async def wait(self) -> None:
        """Return when the reply has ended."""
        if self._task is not None:
            await asyncio.wait([self._task])

    async def _run(self, on_end: Callable[[Message], None]) -> None:
        self._begun = True
        try:
            outcome = _Outcome("stopped") if self._stopped else await self._generate()
        except asyncio.CancelledError:
            outcome = _Outcome("stopped", stats=self._own_stats())
        except OctavoError as error:
            outcome = _Outcome("failed", error=str(error), code=getattr(error, "code", None))
        except Exception as error:
            log.exception("A reply failed")
            sentence = f"The reply failed unexpectedly ({type(error).__name__})."
            outcome = _Outcome("failed", error=sentence, code="unexpected")
        if outcome.status == "stopped" and self._cut is not None:
            outcome.error, outcome.code = SENTENCES[self._cut], self._cut
        if self._handle is not None and outcome.status != "complete":  # perhaps left before the engine has ended it
            self._handle.abort()
        self._flush()
        if self._save_timer is not None:
            self._save_timer.cancel()
        message = replace(
            self.message,
            status=outcome.status,
            error=outcome.error,
            error_code=outcome.code or None,
            stats=self._all_stats(outcome.stats),
        )
        try:
            on_end(message)
        finally:
            self._publish(Ended(message))

    async def _generate(self) -> _Outcome:
        engine = await self._engine()
        prompt, params = await asyncio.to_thread(self._prepare, engine)
        self._left_out_turns = prompt.left_out_turns
        for remark in prompt.remarks:
            self._notice(remark)
        await self._keep_prompt(prompt)
        self._handle = await self._submit(engine, prompt, params)
        self._submitted_s = time.monotonic()
        place = asyncio.create_task(self._watch_place(engine))
        try:
            async for event in self._handle.stream():
                if isinstance(event, Delta):
                    place.cancel()
                    self._take(event)
                elif isinstance(event, Started):
                    place.cancel()
                    self._started = event
                    self._say(self._reading(event.cached_tokens, event.prompt_tokens, event.cached_tokens))
                elif isinstance(event, PrefillProgress):
                    self._say(self._reading(event.done, event.total, event.cached))
                else:
                    return self._outcome(event, engine)
        finally:
            place.cancel()
        raise ChatError("The engine ended without finishing this reply.", remedy="Regenerate it.", code="engine_ended")

    async def _keep_prompt(self, prompt: Prompt) -> None:
        try:
            await patiently(
                lambda: self._store.set_prompt(self._message.id, prompt.ids, base_id=prompt.base_id),
                seconds=PROMPT_PATIENCE_S,
            )
        except StoreError:  # without them the next prompt is made from the text: slower, but no reason to fail
            log.exception("The ids of a prompt could not be saved")
        self._token_ids.clear()  # those of a reply that goes on are in its prompt now

    async def _engine(self) -> Engine:
        """The engine, once the model is loaded."""
        self._host.wake()
        if self._host.state in ("loading", "unloading"):
            await self._host.wait_until_settled(self._say_loading)
        engine = self._host.engine
        if engine is None:
            if self._host.error is not None:
                raise ChatError("The model could not be loaded:", remedy=self._host.error)
            raise ChatError("No model is loaded.", remedy="Choose one, then regenerate this reply.", code="no_model")
        return engine

    def _say_loading(self) -> None:
        progress = self._host.progress
        done, total = (0, 0) if progress is None else (progress.done, progress.total)
        self._say(Progress(self._message.id, "loading", done, total))

    async def _submit(self, engine: Engine, prompt: Prompt, params: SamplingParams) -> RequestHandle:
        """Hand it to the engine; where the queue is full, wait for room: a chat has nobody else who would try again."""
        while True:
            try:
                return engine.submit(
                    prompt.ids, params, reasoning=prompt.reasoning, reasoning_open=prompt.reasoning_open
                )
            except QueueFullError as error:
                self._say(Progress(self._message.id, "waiting", place=engine.status().requests["waiting"] + 1))
                await asyncio.sleep(error.retry_after_s)

    async def _watch_place(self, engine: Engine) -> None:
        """Say how many requests at most are before this one, until it starts."""
        place: int | None = None
        while True:
            waiting = engine.status().requests["waiting"]
            now = waiting if place is None else min(place, waiting)
            if now != place:
                self._say(Progress(self._message.id, "waiting", place=now))
            place = now
            await asyncio.sleep(PLACE_EVERY_S)

    def _reading(self, done: int, total: int, cached: int) -> Progress:
        return Progress(self._message.id, "reading", done, total, cached)

    def _outcome(self, event: Finished, engine: Engine) -> _Outcome:
        stats = ReplyStats(
            decode_tok_s=event.timings.decode_tok_s,
            first_token_s=event.timings.first_token_s,
            prompt_tokens=event.usage.prompt_tokens,
            cached_tokens=event.usage.cached_tokens,
            completion_tokens=event.usage.completion_tokens,
            reason=event.reason,
            stopped_by=event.stopped_by,
            left_out_turns=self._left_out_turns,
            draft_tokens=event.usage.draft_tokens,
            accepted_tokens=event.usage.accepted_tokens,
            speedup=event.usage.speedup,
        )
        if event.reason in ("error", "aborted") and not self._stopped and self._host.engine is not engine:
            return _Outcome("failed", MODEL_GONE, stats, "model_gone")
        if event.reason == "error":
            return _Outcome("failed", event.error or "The engine could not finish this reply.", stats)
        return _Outcome("stopped" if event.reason == "aborted" else "complete", None, stats)

    def _all_stats(self, stats: ReplyStats | None) -> ReplyStats | None:
        """Of the whole reply, where it went on after what it had before."""
        earlier = self._message.stats
        if stats is None or earlier is None:
            return stats or earlier
        return stats.after(earlier)

    def _own_stats(self) -> ReplyStats | None:
        """What was seen of a reply that was left before the engine said what it did; None without a token."""
        if self._started is None or not self._token_ids:
            return None
        count, writing_s = len(self._token_ids), self._last_s - self._first_s
        return ReplyStats(
            decode_tok_s=(count - 1) / writing_s if writing_s > 0 else 0.0,
            first_token_s=self._first_s - self._submitted_s,
            prompt_tokens=self._started.prompt_tokens,
            cached_tokens=self._started.cached_tokens,
            completion_tokens=count,
            reason="aborted",
            left_out_turns=self._left_out_turns,
        )

    def _say(self, progress: Progress) -> None:
        if progress != self._progress:
            self._progress = progress
            self._publish(progress)

    def _notice(self, remark: Remark) -> None:
        notice = Notice(self._message.id, remark)
        self._notices.append(notice)
        self._publish(notice)

    def _take(self, delta: Delta) -> None:
        self._last_s = time.monotonic()
        self._first_s = self._first_s or self._last_s
        self._token_ids.extend(delta.token_ids)
        if delta.text:
            self._unsent_text.append(delta.text)
        if delta.reasoning:
            self._unsent_reasoning.append(delta.reasoning)
        if not (delta.text or delta.reasoning):
            return
        loop = asyncio.get_running_loop()
        due_s = self._sent_s + COALESCE_S - time.monotonic()
        if due_s <= 0:
            self._flush()
        elif self._flush_timer is None:
            self._flush_timer = loop.call_later(due_s, self._flush)
        if self._save_timer is None:
            self._save_timer = loop.call_later(SAVE_EVERY_S, self._save)

    def _flush(self) -> None:
        """Send what came since the last time. The state changes first: a new watcher's snapshot holds all of it."""
        if self._flush_timer is not None:
            self._flush_timer.cancel()
            self._flush_timer = None
        text, reasoning = "".join(self._unsent_text), "".join(self._unsent_reasoning)
        self._unsent_text.clear()
        self._unsent_reasoning.clear()
        if not (text or reasoning):
            return
        self._grown = True
        self._sent_s = time.monotonic()
        if text:
            self._text.append(text)
        if reasoning:
            self._reasoning.append(reasoning)
        self._publish(Append(self._message.id, text, reasoning))

    def _save(self) -> None:
        self._save_timer = None
        self._flush()  # or what came last would be saved by the next text only, and there may be none for long
        message = self.message
        try:
            self._store.save_partial(message.id, message.content, message.reasoning, message.token_ids)
        except StoreError as error:
            log.warning("The partial text of a reply could not be saved yet: %s", error)
            self._save_timer = asyncio.get_running_loop().call_later(SAVE_EVERY_S, self._save)
