"""Runs the engine requests of one API call: one a choice, merged as they come or collected until they end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from octavo.app.api.errors import ApiError, unavailable
from octavo.engine.errors import QueueFullError, RequestError
from octavo.engine.request import Delta, Event, Finished, SamplingParams, TokenLogprob, speedup

if TYPE_CHECKING:
    from octavo.engine.engine import Engine, RequestHandle
    from octavo.engine.text.reasoning import ReasoningFormat

MODEL_GONE = "The model was unloaded during this request, or Octavo was closed."


@dataclass(slots=True)
class Choice:
    """What one choice has so far."""

    text: str = ""
    reasoning: str = ""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    finished: Finished | None = None

    def take(self, event: Event) -> None:
        if isinstance(event, Delta):
            self.text += event.text
            self.reasoning += event.reasoning
            self.token_ids.extend(event.token_ids)
            self.logprobs.extend(event.logprobs)
        elif isinstance(event, Finished):
            self.finished = event


class Generation:
    """The requests of one call. All are handed in at once or none; `abort` ends those that still run."""

    def __init__(
        self,
        engine: Engine,
        prompts: Sequence[Sequence[int]],
        params: Sequence[SamplingParams],
        *,
        reasoning: ReasoningFormat | None = None,
        reasoning_open: bool = False,
    ) -> None:
        """Choice i continues `prompts[i]` by `params[i]`.

        Raises what Engine.submit raises, and RequestError for more choices than the engine ever takes at a time.
        """
        _require_room(engine, len(prompts))
        self._engine = engine
        self._handles: list[RequestHandle] = []
        try:
            for prompt, its_params in zip(prompts, params, strict=True):
                self._handles.append(
                    engine.submit(prompt, its_params, reasoning=reasoning, reasoning_open=reasoning_open)
                )
        except BaseException:
            self.abort()
            raise

    def abort(self) -> None:
        for handle in self._handles:
            handle.abort()

    async def events(self) -> AsyncIterator[tuple[int, Event]]:
        """Events of all choices as they come, each with its choice's index. Raises ApiError if a choice fails."""
        if len(self._handles) == 1:
            async for event in self._handles[0].stream():
                yield 0, self._checked(event)
            return
        queue: asyncio.Queue[tuple[int, Event | None]] = asyncio.Queue()

        async def forward(index: int, handle: RequestHandle) -> None:
            try:
                async for event in handle.stream():
                    queue.put_nowait((index, event))
            finally:
                queue.put_nowait((index, None))

        tasks = [asyncio.create_task(forward(index, handle)) for index, handle in enumerate(self._handles)]
        try:
            running = len(tasks)
            while running:
                index, news = await queue.get()
                if news is None:
                    running -= 1
                else:
                    yield index, self._checked(news)
        finally:
            for task in tasks:
                task.cancel()

    async def collect(self) -> list[Choice]:
        """All choices, ended. Aborts the rest if one fails or the caller is cancelled."""
        choices = [Choice() for _ in self._handles]
        try:
            async for index, event in self.events():
                choices[index].take(event)
        finally:
            self.abort()
        if any(choice.finished is None for choice in choices):
            raise unavailable(MODEL_GONE, "engine_closed")
        return choices

    def _checked(self, event: Event) -> Event:
        """A choice that cannot end well ends the call: OpenAI's finish reasons know no failure."""
        if isinstance(event, Finished):
            if event.reason == "error":
                if self._engine.status().state == "closed":
                    raise unavailable(MODEL_GONE, "engine_closed")
                message = event.error or "The engine could not finish this request."
                raise ApiError(500, message, code="server_error", kind="server_error")
            if event.reason == "aborted":
                message = "The request was stopped by the server."
                raise ApiError(503, message, code="aborted", kind="service_unavailable")
        return event


def _require_room(engine: Engine, count: int) -> None:
    """Raise before any of `count` requests is handed in if not all can be; one alone is the engine's to refuse."""
    if count == 1:
        return
    now = engine.status()
    running, waiting = now.settings["max_running"], now.settings["queue_limit"]
    slots = now.settings.get("slots")  # chats that hold memory at once, where each reserves its whole context
    assert isinstance(running, int)
    assert isinstance(waiting, int)
    most = (min(running, slots) if isinstance(slots, int) else running) + waiting
    if count > most:
        raise RequestError(
            f"The request asks for {count} replies; at most {most} can run and wait at a time.",
            remedy="Send it in several requests, or set engine.queue_limit higher.",
        )
    if count > most - sum(now.requests.get(state, 0) for state in ("running", "waiting", "swapped")):
        raise QueueFullError(waiting)


def usage(finished: Sequence[Finished], *, choices_a_prompt: int = 1) -> dict[str, Any]:
    """OpenAI's usage object; a prompt counts once however many choices continue it. Its predictions are guesses."""
    first = finished[::choices_a_prompt]
    prompt = sum(one.usage.prompt_tokens for one in first)
    completion = sum(one.usage.completion_tokens for one in finished)
    accepted = sum(one.usage.accepted_tokens for one in finished)
    rejected = sum(one.usage.draft_tokens for one in finished) - accepted
    saved = sum(one.usage.saved_steps for one in finished)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": sum(one.usage.cached_tokens for one in first)},
        "completion_tokens_details": {
            "accepted_prediction_tokens": accepted,
            "rejected_prediction_tokens": rejected,
            "prediction_speedup": round(speedup(completion, saved), 3),
        },
    }
