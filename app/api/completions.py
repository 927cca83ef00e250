"""/v1/completions in OpenAI's older form: raw prompts, also as token ids, and scoring by echo with logprobs."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from fastapi import APIRouter, Request, Response

from octavo.app.api.body import MOST_CHOICES, Body, read_body, wrong
from octavo.app.api.errors import ApiError
from octavo.app.api.generate import Choice, Generation, usage
from octavo.app.api.logprobs import completion_logprobs
from octavo.app.api.models import engine_for
from octavo.app.api.sampling import choices_of, request_params
from octavo.app.api.sse import EventStream, plain_answer
from octavo.engine.errors import ContextOverflowError
from octavo.engine.request import Delta, Finished, TokenLogprob

if TYPE_CHECKING:
    from octavo.app.config import Settings
    from octavo.engine.engine import Engine

DEFAULT_MAX_TOKENS = 16  # OpenAI's
MOST_LOGPROBS = 20
MOST_PROMPTS = 1024
UNSUPPORTED: dict[str, tuple[Any, ...]] = {
    "suffix": ("",),
    "best_of": (1,),
    "guided_json": (),
    "guided_regex": (),
    "guided_choice": (),
    "guided_grammar": (),
    "structured_outputs": (),
    "response_format": ({"type": "text"},),
}

router = APIRouter()


@dataclass(frozen=True, slots=True)
class _Prompt:
    text: str
    ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Call:
    """What one request asks for. Choice i continues `prompts[i // choices]`."""

    engine: Engine
    prompts: tuple[_Prompt, ...]
    id: str
    created_s: int
    stream: bool
    include_usage: bool
    choices: int  # a prompt
    echo: bool
    logprobs: int | None

    def head(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "object": "text_completion",
            "created": self.created_s,
            "model": self.engine.info.name,
        }

    def prompt(self, index: int) -> _Prompt:
        return self.prompts[index // self.choices]


@router.post("/v1/completions")
async def completions(request: Request) -> Response:
    """Continues one or more prompts, or scores them."""
    body = await read_body(request)
    engine = await engine_for(request.app.state.host, body)
    call, generation = await _start(body, engine, request.app.state.settings)
    if call.stream:
        return EventStream(_chunks(call, generation), generation.abort)
    return await plain_answer(request, generation.collect(), partial(_answer, call), generation.abort)


async def _start(body: Body, engine: Engine, settings: Settings) -> tuple[_Call, Generation]:
    body.refuse(UNSUPPORTED)
    options = body.table("stream_options")
    limit = body.whole("max_tokens", 0)
    call = _Call(
        engine=engine,
        prompts=tuple(await asyncio.to_thread(read_prompts, engine, body.get("prompt"))),
        id=f"cmpl-{uuid.uuid4().hex}",
        created_s=int(time.time()),
        stream=body.flag("stream"),
        include_usage=options is not None and options.flag("include_usage"),
        choices=body.whole("n", 1, MOST_CHOICES) or 1,
        echo=body.flag("echo"),
        logprobs=body.whole("logprobs", 0, MOST_LOGPROBS),
    )
    if call.stream and call.echo and call.logprobs is not None:
        message = "echo with logprobs cannot be streamed. Leave stream out."
        raise ApiError(400, message, param="stream", code="unsupported_parameter")
    scores = call.echo and call.logprobs is not None
    params = request_params(
        body,
        engine,
        settings,
        allow_zero_tokens=True,
        max_tokens=DEFAULT_MAX_TOKENS if limit is None else limit,
        logprobs=call.logprobs,
        prompt_logprobs=call.logprobs if scores else 0 if limit == 0 else None,
    )
    prompts = [prompt.ids for prompt in call.prompts for _ in range(call.choices)]
    try:
        return call, Generation(engine, prompts, choices_of(params, call.choices) * len(call.prompts))
    except ContextOverflowError as error:
        raise ApiError(400, str(error), param="prompt", code="context_length_exceeded") from error


def read_prompts(engine: Engine, prompt: Any) -> list[_Prompt]:
    """The request's prompts: a text, a list of texts, a list of token ids, or a list of such lists."""
    if isinstance(prompt, str) or _is_ids(prompt):
        return [_read_prompt(engine, prompt)]
    if not isinstance(prompt, list) or not prompt:
        raise wrong("prompt", prompt, "a text, a list of texts, or token ids")
    if len(prompt) > MOST_PROMPTS:
        raise ApiError(400, f"prompt has {len(prompt)} entries; at most {MOST_PROMPTS} are taken.", param="prompt")
    return [_read_prompt(engine, one) for one in prompt]


def _read_prompt(engine: Engine, prompt: Any) -> _Prompt:
    if isinstance(prompt, str):
        return _Prompt(prompt, tuple(engine.tokenizer.encode_prompt(prompt)))
    if _is_ids(prompt):
        return _Prompt(engine.tokenizer.decode(prompt), tuple(prompt))
    raise wrong("prompt", prompt, "a text, a list of texts, or token ids")


def _is_ids(prompt: Any) -> bool:
    return (
        isinstance(prompt, list)
        and bool(prompt)
        and all(isinstance(token, int) and not isinstance(token, bool) for token in prompt)
    )


def _answer(call: _Call, choices: list[Choice]) -> dict[str, Any]:
    return {
        **call.head(),
        "choices": [
            {
                "index": index,
                "text": (call.prompt(index).text if call.echo else "") + choice.text,
                "logprobs": _logprobs(call, index, choice),
                "finish_reason": choice.finished.reason if choice.finished else None,
            }
            for index, choice in enumerate(choices)
        ],
        "usage": usage([choice.finished for choice in choices if choice.finished], choices_a_prompt=call.choices),
    }


def _logprobs(call: _Call, index: int, choice: Choice) -> dict[str, Any] | None:
    if call.logprobs is None:
        return None
    entries: list[tuple[int, TokenLogprob | None]] = [(entry.token_id, entry) for entry in choice.logprobs]
    if call.echo and choice.finished is not None:
        ids = call.prompt(index).ids
        scores: Sequence[TokenLogprob | None] = choice.finished.prompt_logprobs or [None] * len(ids)
        entries = [*zip(ids, scores, strict=True), *entries]
    return completion_logprobs(call.engine.tokenizer, entries, call.logprobs)


async def _chunks(call: _Call, generation: Generation) -> AsyncIterator[dict[str, Any]]:
    finished: dict[int, Finished] = {}
    sent = [0] * (len(call.prompts) * call.choices)  # characters of each choice

    def chunk(index: int, text: str, reason: str | None = None, logprobs: Any = None) -> dict[str, Any]:
        choice = {"index": index, "text": text, "logprobs": logprobs, "finish_reason": reason}
        value = {**call.head(), "choices": [choice]}
        sent[index] += len(text)
        return {**value, "usage": None} if call.include_usage else value

    if call.echo:
        for index in range(len(sent)):
            yield chunk(index, call.prompt(index).text)
    async for index, event in generation.events():
        if isinstance(event, Delta):
            logprobs = None
            if call.logprobs is not None and event.logprobs:
                entries = [(entry.token_id, entry) for entry in event.logprobs]
                logprobs = completion_logprobs(call.engine.tokenizer, entries, call.logprobs, offset=sent[index])
            if event.text or logprobs:
                yield chunk(index, event.text, logprobs=logprobs)
        elif isinstance(event, Finished):
            finished[index] = event
            yield chunk(index, "", event.reason)
    if call.include_usage:
        totals = usage([finished[index] for index in sorted(finished)], choices_a_prompt=call.choices)
        yield {**call.head(), "choices": [], "usage": totals}
