"""/v1/completions: raw prompts in every form, and scoring."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from fake_engine import FakeEngine
from openai import OpenAI


def test_a_text_is_continued_by_sixteen_tokens_unless_said(client: OpenAI) -> None:
    reply = client.completions.create(model="default", prompt="Once upon a time")
    assert reply.object == "text_completion"
    assert reply.choices[0].text == "You said: Once upon a time"[:16]
    assert reply.choices[0].finish_reason == "length"


def test_a_list_of_prompts_gives_choices_in_order(client: OpenAI) -> None:
    reply = client.completions.create(model="default", prompt=["one", "two"], max_tokens=50, n=2)
    assert [choice.text for choice in reply.choices] == ["You said: one"] * 2 + ["You said: two"] * 2
    assert [choice.index for choice in reply.choices] == [0, 1, 2, 3]
    assert reply.usage is not None
    assert reply.usage.prompt_tokens == 6


def test_token_ids_are_a_prompt(client: OpenAI, engine: FakeEngine) -> None:
    ids = engine.tokenizer.encode("hello")
    one = client.completions.create(model="default", prompt=ids, max_tokens=50)
    assert one.choices[0].text == "You said: hello"
    two = client.completions.create(model="default", prompt=[ids, engine.tokenizer.encode("you")], max_tokens=50)
    assert [choice.text for choice in two.choices] == ["You said: hello", "You said: you"]


def test_control_tokens_of_a_raw_prompt_count(client: OpenAI, engine: FakeEngine) -> None:
    client.completions.create(model="default", prompt="<|im_start|>user\nhi<|im_end|>\n")
    assert engine.submitted[0][0].count(engine.tokenizer.control_id("<|im_start|>")) == 1


def test_echo_puts_the_prompt_first(client: OpenAI) -> None:
    reply = client.completions.create(model="default", prompt="abc", max_tokens=3, echo=True)
    assert reply.choices[0].text == "abcYou"
    text = "".join(
        chunk.choices[0].text
        for chunk in client.completions.create(model="default", prompt="abc", max_tokens=3, echo=True, stream=True)
    )
    assert text == "abcYou"


def test_echo_with_logprobs_and_no_new_tokens_scores_the_prompt(client: OpenAI) -> None:
    reply = client.completions.create(model="default", prompt="añc", max_tokens=0, echo=True, logprobs=2)
    assert reply.usage is not None
    assert reply.usage.completion_tokens_details is not None
    assert reply.usage.completion_tokens_details.model_extra == {"prediction_speedup": 1.0}  # nothing was slowed down
    choice = reply.choices[0]
    assert choice.text == "añc"
    assert choice.finish_reason == "length"
    logprobs = choice.logprobs
    assert logprobs is not None
    assert logprobs.tokens == ["a", "bytes:\\xc3", "bytes:\\xb1", "c"]
    assert logprobs.token_logprobs == [None, -0.5, -0.5, -0.5]
    assert logprobs.text_offset == [0, 1, 1, 2]
    assert logprobs.top_logprobs is not None
    assert logprobs.top_logprobs[0] is None
    assert len(logprobs.top_logprobs[1]) == 2
    assert reply.usage is not None
    assert (reply.usage.prompt_tokens, reply.usage.completion_tokens) == (4, 0)


def test_echo_with_logprobs_scores_prompt_and_reply(client: OpenAI) -> None:
    choice = client.completions.create(model="default", prompt="ab", max_tokens=2, echo=True, logprobs=0).choices[0]
    assert choice.text == "abYo"
    assert choice.logprobs is not None
    assert choice.logprobs.tokens == ["a", "b", "Y", "o"]
    assert choice.logprobs.token_logprobs == [None, -0.5, -0.5, -0.5]
    assert choice.logprobs.text_offset == [0, 1, 2, 3]


def test_streamed_logprobs_go_on_with_their_offsets(client: OpenAI) -> None:
    tokens: list[str] = []
    offsets: list[int] = []
    for chunk in client.completions.create(model="default", prompt="ab", max_tokens=5, logprobs=1, stream=True):
        logprobs = chunk.choices[0].logprobs
        if logprobs is not None:
            tokens += logprobs.tokens or []
            offsets += logprobs.text_offset or []
    assert tokens == list("You s")
    assert offsets == [0, 1, 2, 3, 4]


def test_usage_comes_last_in_a_stream_if_asked(client: OpenAI) -> None:
    chunks = list(
        client.completions.create(
            model="default", prompt=["ab", "cde"], max_tokens=4, stream=True, stream_options={"include_usage": True}
        )
    )
    assert chunks[-1].choices == []
    assert chunks[-1].usage is not None
    assert (chunks[-1].usage.prompt_tokens, chunks[-1].usage.completion_tokens) == (5, 8)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(("prompt", value) for value in (None, [], {}, 7, [[]], [["a"]], ["a", 1], [True], "")),
        *(("max_tokens", value) for value in (-1, "many", 1.5, True)),
        *(("logprobs", value) for value in (-1, 21, True, "2")),
        *(("echo", value) for value in ("yes", 1)),
        *(("suffix", value) for value in ("end",)),
        *(("best_of", value) for value in (3,)),
    ],
)
def test_bad_input_is_400_with_the_field(http: httpx.Client, field: str, value: Any) -> None:
    answer = http.post("/v1/completions", json={"model": "default", "prompt": "x", field: value})
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["param"] == field


def test_a_token_id_outside_the_vocabulary_is_400(http: httpx.Client) -> None:
    for token in (-1, 10**9):
        answer = http.post("/v1/completions", json={"model": "default", "prompt": [1, token]})
        assert answer.status_code == 400
        assert answer.json()["error"]["param"] == "prompt"


def test_echo_with_logprobs_cannot_be_streamed(http: httpx.Client) -> None:
    body = {"model": "default", "prompt": "x", "echo": True, "logprobs": 1, "stream": True}
    answer = http.post("/v1/completions", json=body)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "stream"


def test_a_prompt_over_the_window_is_400_and_leaves_the_others_of_its_call_unrun(
    http: httpx.Client, engine: FakeEngine
) -> None:
    answer = http.post("/v1/completions", json={"model": "default", "prompt": ["fits", "x" * 5000]})
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert (error["param"], error["code"]) == ("prompt", "context_length_exceeded")
    assert "5000" in error["message"]
    assert "4096" in error["message"]
    assert engine.is_idle
