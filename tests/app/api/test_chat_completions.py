"""/v1/chat/completions, as the real openai client sees it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from fake_engine import THINKING, FakeEngine
from openai import OpenAI

HI: Any = [{"role": "user", "content": "hi"}]


def test_a_reply_comes_in_openais_form(client: OpenAI) -> None:
    reply = client.chat.completions.create(model="default", messages=[{"role": "user", "content": "hi"}])
    assert reply.object == "chat.completion"
    assert reply.model == "fake-model"
    assert reply.choices[0].message.role == "assistant"
    assert reply.choices[0].message.content == "You said: hi"
    assert reply.choices[0].finish_reason == "stop"
    assert reply.usage is not None
    assert reply.usage.completion_tokens == len("You said: hi") + 1
    assert reply.usage.total_tokens == reply.usage.prompt_tokens + reply.usage.completion_tokens
    assert reply.usage.completion_tokens_details is not None
    assert reply.usage.completion_tokens_details.accepted_prediction_tokens == 0
    assert reply.usage.completion_tokens_details.rejected_prediction_tokens == 0
    assert reply.usage.completion_tokens_details.model_extra == {"prediction_speedup": 1.0}


def test_a_streamed_reply_has_the_same_text_and_usage(client: OpenAI) -> None:
    plain = client.chat.completions.create(model="default", messages=[{"role": "user", "content": "hi"}])
    chunks = list(
        client.chat.completions.create(
            model="default",
            messages=[{"role": "user", "content": "hi"}],
            stream=True,
            stream_options={"include_usage": True},
        )
    )
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == "You said: hi"
    assert chunks[0].choices[0].delta.role == "assistant"
    assert [c.choices[0].finish_reason for c in chunks if c.choices and c.choices[0].finish_reason] == ["stop"]
    assert len({c.id for c in chunks}) == 1
    last = chunks[-1]
    assert last.choices == []
    assert last.usage is not None
    assert plain.usage is not None
    assert last.usage.total_tokens == plain.usage.total_tokens
    assert all(c.usage is None for c in chunks[:-1])


@pytest.mark.parametrize("options", [{}, {"stream_options": {"include_usage": False}}])
def test_a_stream_carries_no_usage_unless_asked(client: OpenAI, options: dict[str, Any]) -> None:
    chunks = list(client.chat.completions.create(model="default", messages=HI, stream=True, **options))
    assert all(c.usage is None for c in chunks)
    assert all(c.choices for c in chunks)


def test_a_stream_ends_with_done(http: httpx.Client) -> None:
    answer = http.post("/v1/chat/completions", json={"model": "default", "messages": HI, "stream": True})
    assert answer.headers["content-type"].startswith("text/event-stream")
    events = [line for line in answer.text.split("\n\n") if line]
    assert events[-1] == "data: [DONE]"
    assert all(json.loads(event.removeprefix("data: "))["object"] == "chat.completion.chunk" for event in events[:-1])


def test_n_gives_so_many_choices_and_counts_the_prompt_once(client: OpenAI, engine: FakeEngine) -> None:
    one = client.chat.completions.create(model="default", messages=HI, seed=7)
    three = client.chat.completions.create(model="default", messages=HI, n=3, seed=7)
    assert [choice.index for choice in three.choices] == [0, 1, 2]
    assert one.usage is not None
    assert three.usage is not None
    assert three.usage.prompt_tokens == one.usage.prompt_tokens
    assert three.usage.completion_tokens == 3 * one.usage.completion_tokens
    assert [params.seed for _, params in engine.submitted] == [7, 7, 8, 9]


def test_n_choices_stream_side_by_side(client: OpenAI) -> None:
    texts = {0: "", 1: ""}
    ends = {}
    for chunk in client.chat.completions.create(model="default", messages=HI, n=2, stream=True):
        choice = chunk.choices[0]
        texts[choice.index] += choice.delta.content or ""
        if choice.finish_reason:
            ends[choice.index] = choice.finish_reason
    assert texts == {0: "You said: hi", 1: "You said: hi"}
    assert ends == {0: "stop", 1: "stop"}


def test_logprobs_carry_bytes_and_alternatives(client: OpenAI, engine: FakeEngine) -> None:
    reply = client.chat.completions.create(
        model="default", messages=[{"role": "user", "content": "é"}], logprobs=True, top_logprobs=2
    )
    logprobs = reply.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.content is not None
    content = logprobs.content[:-1]  # the last is the end token
    assert b"".join(bytes(entry.bytes or []) for entry in content).decode() == "You said: é"
    assert all(len(entry.top_logprobs) == 2 for entry in content)
    assert content[-1].token == "bytes:\\xa9"  # half a character
    assert content[0].token == "Y"
    assert content[0].logprob == -0.5


def test_streamed_logprobs_are_those_of_the_whole_reply(client: OpenAI) -> None:
    plain = client.chat.completions.create(model="default", messages=HI, logprobs=True)
    assert plain.choices[0].logprobs is not None
    streamed = []
    for chunk in client.chat.completions.create(model="default", messages=HI, logprobs=True, stream=True):
        logprobs = chunk.choices[0].logprobs
        streamed += (logprobs.content or []) if logprobs else []
    assert streamed == plain.choices[0].logprobs.content


def test_reasoning_is_a_field_of_its_own(serve: Callable[..., str]) -> None:
    url = serve(FakeEngine(lambda _: "<think>2 and 2</think>\n\nFour.", template=THINKING))
    with OpenAI(base_url=f"{url}/v1", api_key="x") as client:
        message = client.chat.completions.create(model="default", messages=HI).choices[0].message
        assert message.content == "Four."
        assert message.reasoning_content == "2 and 2"  # type: ignore[attr-defined]
        text = reasoning = ""
        for chunk in client.chat.completions.create(model="default", messages=HI, stream=True):
            text += chunk.choices[0].delta.content or ""
            reasoning += getattr(chunk.choices[0].delta, "reasoning_content", None) or ""
        assert (reasoning, text) == ("2 and 2", "Four.")


def test_stop_strings_and_limits_give_their_reasons(client: OpenAI) -> None:
    stopped = client.chat.completions.create(model="default", messages=HI, stop=["said"]).choices[0]
    assert (stopped.message.content, stopped.finish_reason) == ("You ", "stop")
    for name in ("max_tokens", "max_completion_tokens"):
        cut = client.chat.completions.create(model="default", messages=HI, **{name: 3}).choices[0]  # type: ignore[call-overload]
        assert (cut.message.content, cut.finish_reason) == ("You", "length")


def test_max_tokens_over_the_window_is_cut_not_refused(client: OpenAI, engine: FakeEngine) -> None:
    reply = client.chat.completions.create(
        model="default", messages=HI, max_tokens=65535, extra_body={"ignore_eos": True}
    )
    assert reply.choices[0].finish_reason == "length"
    assert reply.usage is not None
    assert reply.usage.total_tokens == engine.context_length


def test_extension_fields_reach_the_engine(client: OpenAI, engine: FakeEngine) -> None:
    client.chat.completions.create(
        model="default",
        messages=HI,
        temperature=0,
        presence_penalty=0.5,
        logit_bias={"65": -100},
        extra_body={"top_k": 5, "min_p": 0.1, "repetition_penalty": 1.2, "stop_token_ids": [66], "unknown_field": 1},
    )
    params = engine.submitted[-1][1]
    assert (params.temperature, params.top_k, params.min_p, params.repetition_penalty) == (0.0, 5, 0.1, 1.2)
    assert params.stop_token_ids == (66,)
    assert params.logit_bias == ((65, -100.0),)
    assert params.presence_penalty == 0.5


def test_openais_defaults_hold_where_nobody_says_otherwise(serve: Callable[..., str]) -> None:
    plain, tuned = FakeEngine(), FakeEngine(generation_defaults={"temperature": 0.6, "top_k": 20})
    for engine, values in ((plain, {}), (tuned, {"sampling__top_p": 0.8})):
        with OpenAI(base_url=f"{serve(engine, **values)}/v1", api_key="x") as client:
            client.chat.completions.create(model="default", messages=HI)
    assert (plain.submitted[0][1].temperature, plain.submitted[0][1].top_p) == (1.0, 1.0)
    params = tuned.submitted[0][1]
    assert (params.temperature, params.top_p, params.top_k) == (0.6, 0.8, 20)


def test_content_may_come_in_parts_or_be_null(client: OpenAI, engine: FakeEngine) -> None:
    client.chat.completions.create(
        model="default",
        messages=[
            {"role": "system", "content": [{"type": "text", "text": "Be brief."}]},
            {"role": "assistant", "content": None},
            {"role": "user", "content": [{"type": "text", "text": "part one"}, {"type": "text", "text": "part two"}]},
        ],
    )
    assert "part one" in engine.prompts[-1]
    assert "part two" in engine.prompts[-1]
    assert "None" not in engine.prompts[-1]


def test_a_last_assistant_message_can_be_continued(client: OpenAI, engine: FakeEngine) -> None:
    client.chat.completions.create(
        model="default",
        messages=[*HI, {"role": "assistant", "content": "Once upon"}],
        extra_body={"continue_final_message": True},
    )
    assert engine.prompts[-1].endswith("<|im_start|>assistant\nOnce upon")


def test_replies_of_the_api_are_not_stored_as_chats(serve: Callable[..., str], tmp_path: Path) -> None:
    url = serve()
    httpx.post(f"{url}/v1/chat/completions", json={"model": "default", "messages": HI}, timeout=60).raise_for_status()
    assert not list(tmp_path.glob("*.sqlite3"))
