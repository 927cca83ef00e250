"""/v1/chat/completions in OpenAI's form, streamed and not, with reasoning as a field of its own."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from fastapi import APIRouter, Request, Response

from octavo.app.api.body import MOST_CHOICES, Body, read_body, wrong
from octavo.app.api.generate import Choice, Generation, usage
from octavo.app.api.logprobs import chat_logprobs
from octavo.app.api.models import engine_for
from octavo.app.api.sampling import choices_of, request_params
from octavo.app.api.sse import EventStream, plain_answer
from octavo.engine.request import Delta, Finished

if TYPE_CHECKING:
    from octavo.app.config import Settings
    from octavo.engine.engine import Engine

MOST_LOGPROBS = 20
UNSUPPORTED: dict[str, tuple[Any, ...]] = {
    "tools": ([],),
    "functions": ([],),
    "tool_choice": ("none", "auto"),
    "function_call": ("none", "auto"),
    "response_format": ({"type": "text"},),
    "modalities": (["text"],),
    "audio": (),
    "prediction": (),
    "web_search_options": (),
    "guided_json": (),
    "guided_regex": (),
    "guided_choice": (),
    "guided_grammar": (),
    "structured_outputs": (),
}

router = APIRouter()


@dataclass(frozen=True, slots=True)
class _Call:
    """What one request asks for, beyond its prompt."""

    engine: Engine
    id: str
    created_s: int
    stream: bool
    include_usage: bool
    choices: int
    top_logprobs: int | None  # None: no logprobs

    def head(self, kind: str) -> dict[str, Any]:
        return {"id": self.id, "object": kind, "created": self.created_s, "model": self.engine.info.name}

    def logprobs(self, entries: Any) -> dict[str, Any] | None:
        if self.top_logprobs is None:
            return None
        return chat_logprobs(self.engine.tokenizer, entries, self.top_logprobs)


@router.post("/v1/chat/completions")
async def chat_completions(request: Request) -> Response:
    """A reply to a list of messages."""
    body = await read_body(request)
    engine = await engine_for(request.app.state.host, body)
    call, generation = await _start(body, engine, request.app.state.settings)
    if call.stream:
        return EventStream(_chunks(call, generation), generation.abort)
    return await plain_answer(request, generation.collect(), partial(_answer, call), generation.abort)


async def _start(body: Body, engine: Engine, settings: Settings) -> tuple[_Call, Generation]:
    body.refuse(UNSUPPORTED)
    messages = body.get("messages")
    if not isinstance(messages, list):
        raise wrong("messages", messages, "a list of messages")
    options = body.table("stream_options")
    count = body.whole("n", 1, MOST_CHOICES) or 1
    limit = body.whole("max_completion_tokens", 1) or body.whole("max_tokens", 1)
    wants_logprobs = body.flag("logprobs")
    top = body.whole("top_logprobs", 0, MOST_LOGPROBS)
    if top is not None and not wants_logprobs:
        raise wrong("top_logprobs", top, "left out unless logprobs is true")
    call = _Call(
        engine=engine,
        id=f"chatcmpl-{uuid.uuid4().hex}",
        created_s=int(time.time()),
        stream=body.flag("stream"),
        include_usage=options is not None and options.flag("include_usage"),
        choices=count,
        top_logprobs=(top or 0) if wants_logprobs else None,
    )
    params = request_params(body, engine, settings, max_tokens=limit, logprobs=call.top_logprobs)
    template = engine.template
    params = replace(params, stop=(*params.stop, *template.stop_strings))
    extra = dict(body.get("chat_template_kwargs") or {}) if body.table("chat_template_kwargs") else {}
    extra |= body.named(["reasoning_effort"])
    continues = body.flag("continue_final_message")
    prompt = await asyncio.to_thread(template.render, messages, continue_final=continues, extra=extra)
    generation = Generation(
        engine,
        [prompt.ids] * count,
        choices_of(params, count),
        reasoning=template.reasoning,
        reasoning_open=prompt.reasoning_open,
    )
    return call, generation


def _answer(call: _Call, choices: list[Choice]) -> dict[str, Any]:
    return {
        **call.head("chat.completion"),
        "choices": [
            {
                "index": index,
                "message": _message(choice),
                "logprobs": call.logprobs(choice.logprobs),
                "finish_reason": choice.finished.reason if choice.finished else None,
            }
            for index, choice in enumerate(choices)
        ],
        "usage": usage([choice.finished for choice in choices if choice.finished], choices_a_prompt=call.choices),
    }


def _message(choice: Choice) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": choice.text, "refusal": None}
    if choice.reasoning:
        message["reasoning_content"] = choice.reasoning
    return message


async def _chunks(call: _Call, generation: Generation) -> AsyncIterator[dict[str, Any]]:
    finished: dict[int, Finished] = {}

    def chunk(index: int, delta: dict[str, Any], reason: str | None = None, logprobs: Any = None) -> dict[str, Any]:
        choice = {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": reason}
        value = {**call.head("chat.completion.chunk"), "choices": [choice]}
        return {**value, "usage": None} if call.include_usage else value

    for index in range(call.choices):
        yield chunk(index, {"role": "assistant", "content": ""})
    async for index, event in generation.events():
        if isinstance(event, Delta):
            logprobs = call.logprobs(event.logprobs) if event.logprobs else None
            if event.reasoning:
                yield chunk(index, {"reasoning_content": event.reasoning}, logprobs=None if event.text else logprobs)
            if event.text or (logprobs and not event.reasoning):
                yield chunk(index, {"content": event.text}, logprobs=logprobs)
        elif isinstance(event, Finished):
            finished[index] = event
            yield chunk(index, {}, event.reason)
    if call.include_usage:
        totals = usage([finished[index] for index in sorted(finished)], choices_a_prompt=call.choices)
        yield {**call.head("chat.completion.chunk"), "choices": [], "usage": totals}
