"""Bad input gets a clear refusal in OpenAI's form, and the server goes on."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import httpx
import openai
import pytest
from fake_engine import FakeEngine
from openai import OpenAI

HI: Any = [{"role": "user", "content": "hi"}]
CHAT = "/v1/chat/completions"
IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}


def error(answer: httpx.Response) -> dict[str, Any]:
    body = answer.json()
    assert set(body) == {"error"}
    assert set(body["error"]) == {"message", "type", "param", "code"}
    assert body["error"]["message"]
    assert body["error"]["type"]
    assert body["error"]["code"]
    assert "Traceback" not in answer.text
    assert 'File "' not in answer.text
    return body["error"]


@pytest.mark.parametrize(
    "content",
    [b"", b"not json", b"{", b"[]", b'"text"', b"7", b"null", b"\xff\xfe", b"[" * 100_000, b'{"a": 1}{"b": 2}'],
)
@pytest.mark.parametrize("path", [CHAT, "/v1/completions"])
def test_a_body_that_is_no_json_object_is_400(http: httpx.Client, content: bytes, path: str) -> None:
    answer = http.post(path, content=content, headers={"Content-Type": "application/json"})
    assert answer.status_code == 400
    assert error(answer)["code"] == "invalid_json"


BAD_FIELDS = [
    *(("messages", value) for value in (None, {}, {"role": "user"}, "hi", [], ["hi"], [{}], [{"role": "robot"}])),
    *(("messages", [{"role": role, "content": "hi"}]) for role in ([], {}, 5, ["user"])),
    *(("messages", [{"role": "user", "content": value}]) for value in (7, {"text": "hi"}, [IMAGE], [{"type": "text"}])),
    *(("temperature", value) for value in ("hot", -0.1, 1000, True, [], {}, 10**400)),
    *(("top_p", value) for value in (0, 1.1, -1, "x", 10**400)),
    *(("logit_bias", value) for value in ({"5": 10**400}, {"9" * 400: 1}, {str(2**63): 1})),
    *(("stop_token_ids", value) for value in ([10**400], [2**63])),
    *(("top_k", value) for value in (-2, 1.5, "x")),
    *(("min_p", value) for value in (-0.1, 1.1)),
    *(("n", value) for value in (0, -1, 129, 1.5, "two", True)),
    *(("max_tokens", value) for value in (0, -1, 1.5, "many", True)),
    *(("max_completion_tokens", value) for value in (0, -5)),
    *(("presence_penalty", value) for value in (-2.1, 2.1)),
    *(("frequency_penalty", value) for value in (-3, "x")),
    *(("repetition_penalty", value) for value in (0, -1)),
    *(("logit_bias", value) for value in ({"a": 1}, {"1": "x"}, {"99999999": 1}, 5)),
    *(("seed", value) for value in ("x", 1.5)),
    *(("stop", value) for value in (7, [7], [""], ["x"] * 100)),
    *(("stop_token_ids", value) for value in ("x", [-1], [10**9])),
    *(("stream", value) for value in ("yes", 1)),
    *(("stream_options", value) for value in ("x", [])),
    *(("logprobs", value) for value in (5, "x")),
    *(("top_logprobs", value) for value in (3, -1)),
    *(("tools", value) for value in ([{"type": "function", "function": {"name": "f"}}],)),
    *(("tool_choice", value) for value in ("required", {"type": "function"})),
    *(("functions", value) for value in ([{"name": "f"}],)),
    *(("response_format", value) for value in ({"type": "json_object"}, {"type": "unknown"}, "json")),
    *(("modalities", value) for value in (["text", "audio"],)),
    *(("audio", value) for value in ({"voice": "x"},)),
    *(("chat_template_kwargs", value) for value in ("x", [1])),
]


@pytest.mark.parametrize(("field", "value"), BAD_FIELDS)
def test_a_wrong_field_is_400_and_named(http: httpx.Client, field: str, value: Any) -> None:
    answer = http.post(CHAT, json={"model": "default", "messages": HI, field: value})
    assert answer.status_code == 400, answer.text
    assert error(answer)["param"] == field


def test_after_all_that_the_server_still_answers(http: httpx.Client, engine: FakeEngine) -> None:
    for field, value in BAD_FIELDS:
        http.post(CHAT, json={"model": "default", "messages": HI, field: value})
    assert engine.submitted == []
    assert http.post(CHAT, json={"model": "default", "messages": HI}, timeout=60).status_code == 200


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("tools", []),
        ("tool_choice", "none"),
        ("response_format", {"type": "text"}),
        ("user", "me"),
        ("metadata", {"a": 1}),
        ("temperature", None),
        ("max_tokens", None),
        ("stop", None),
        ("n", None),
        ("seed", 0),
        ("store", False),
        ("nobody_knows", {"x": [1]}),
        ("logit_bias", {}),
    ],
)
def test_fields_that_ask_for_nothing_are_fine(http: httpx.Client, field: str, value: Any) -> None:
    answer = http.post(CHAT, json={"model": "default", "messages": HI, field: value})
    assert answer.status_code == 200, answer.text


def test_numbers_json_does_not_have_are_refused(http: httpx.Client) -> None:
    for name in ("NaN", "Infinity", "-Infinity"):
        content = json.dumps({"model": "default", "messages": HI}).rstrip("}") + f', "temperature": {name}}}'
        answer = http.post(CHAT, content=content, headers={"Content-Type": "application/json"})
        assert answer.status_code == 400
        assert error(answer)["param"] == "temperature"


def test_a_missing_model_is_400_and_an_unknown_one_404(http: httpx.Client) -> None:
    for body in ({"messages": HI}, {"model": "", "messages": HI}, {"model": None, "messages": HI}):
        answer = http.post(CHAT, json=body)
        assert answer.status_code == 400
        assert error(answer)["param"] == "model"
    answer = http.post(CHAT, json={"model": "gpt-4o", "messages": HI})
    assert answer.status_code == 404
    assert error(answer)["code"] == "model_not_found"
    assert "fake-model" in error(answer)["message"]
    assert http.post(CHAT, json={"model": 7, "messages": HI}).status_code == 400


def test_the_openai_client_raises_its_own_errors(client: OpenAI) -> None:
    with pytest.raises(openai.NotFoundError):
        client.chat.completions.create(model="gpt-4o", messages=HI)
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model="default", messages=HI, temperature=99)
    assert caught.value.param == "temperature"


@pytest.mark.parametrize("stream", [False, True])
def test_a_prompt_over_the_window_is_400_with_both_numbers(serve: Callable[..., str], stream: bool) -> None:
    engine = FakeEngine(context_length=512)
    url = serve(engine)
    frame = len(engine.template.render([{"role": "user", "content": ""}]).ids)

    def ask(size: int) -> httpx.Response:
        messages = [{"role": "user", "content": "x" * size}]
        return httpx.post(f"{url}{CHAT}", json={"model": "default", "messages": messages, "stream": stream}, timeout=60)

    for size in (600, 512 - frame):
        answer = ask(size)
        assert answer.status_code == 400
        assert error(answer)["code"] == "context_length_exceeded"
        assert error(answer)["param"] == "messages"
        assert str(size + frame) in error(answer)["message"]
        assert "512" in error(answer)["message"]
    fits = ask(511 - frame)
    assert fits.status_code == 200
    assert '"finish_reason":"length"' in fits.text.replace(" ", "")


def test_a_full_queue_is_429_with_retry_after(serve: Callable[..., str]) -> None:
    engine = FakeEngine(max_running=1, queue_limit=2)
    engine.hold()
    url = serve(engine)
    for _ in range(2):
        engine.submit(engine.tokenizer.encode("x"))
    answer = httpx.post(f"{url}{CHAT}", json={"model": "default", "messages": HI}, timeout=60)
    assert answer.status_code == 429
    assert int(answer.headers["retry-after"]) >= 1
    assert error(answer)["code"] == "queue_full"
    engine.release()


def test_choices_that_do_not_all_fit_the_queue_leave_nothing_behind(serve: Callable[..., str]) -> None:
    engine = FakeEngine(max_running=1, queue_limit=2)
    engine.hold()
    answer = httpx.post(f"{serve(engine)}{CHAT}", json={"model": "default", "messages": HI, "n": 3}, timeout=60)
    assert answer.status_code == 429
    assert engine.is_idle


def test_of_prompts_that_have_no_room_now_none_is_begun(serve: Callable[..., str]) -> None:
    engine = FakeEngine(max_running=1, queue_limit=3)
    engine.hold()
    url = serve(engine)
    for _ in range(2):
        engine.submit(engine.tokenizer.encode("x"))
    answer = httpx.post(f"{url}/v1/completions", json={"model": "default", "prompt": ["a", "b"], "n": 2}, timeout=60)
    assert answer.status_code == 429
    assert error(answer)["code"] == "queue_full"
    assert int(answer.headers["retry-after"]) >= 1
    assert len(engine.submitted) == 2
    engine.release()


def test_more_prompts_than_ever_have_room_are_refused_for_good(serve: Callable[..., str]) -> None:
    engine = FakeEngine(max_running=1, queue_limit=3)
    answer = httpx.post(f"{serve(engine)}/v1/completions", json={"model": "default", "prompt": ["a"] * 5}, timeout=60)
    assert answer.status_code == 400
    assert "5 replies; at most 4" in error(answer)["message"]
    assert engine.submitted == []


@pytest.mark.parametrize("stream", [False, True])
def test_a_request_the_engine_fails_is_an_error_not_a_reply(serve: Callable[..., str], stream: bool) -> None:
    def script(prompt: str) -> str:
        raise ValueError("The scores were not numbers.")

    with OpenAI(base_url=f"{serve(FakeEngine(script))}/v1", api_key="x", max_retries=0) as client:
        with pytest.raises(openai.APIError, match="scores were not numbers"):
            list(client.chat.completions.create(model="default", messages=HI, stream=stream))
        assert client.models.list().data


def test_unknown_routes_and_methods_answer_in_the_same_form(http: httpx.Client) -> None:
    answer = http.get("/v1/nothing")
    assert answer.status_code == 404
    assert error(answer)["code"] == "not_found"
    answer = http.get(CHAT)
    assert answer.status_code == 405
    assert error(answer)["code"] == "method_not_allowed"


def test_a_wrong_key_is_401_for_the_client(serve: Callable[..., str]) -> None:
    url = serve(server__api_key="right")
    with OpenAI(base_url=f"{url}/v1", api_key="wrong") as client, pytest.raises(openai.AuthenticationError):
        client.models.list()
    with OpenAI(base_url=f"{url}/v1", api_key="right") as client:
        assert client.models.list().data[0].id == "fake-model"


def test_a_form_cannot_start_a_request(http: httpx.Client, engine: FakeEngine) -> None:
    content = json.dumps({"model": "default", "messages": HI})
    for kind in ("text/plain", "application/x-www-form-urlencoded"):
        answer = http.post(CHAT, content=content, headers={"Content-Type": kind})
        assert answer.status_code == 415
        error(answer)
    assert http.post(CHAT, json={}, headers={"Host": "evil.example"}).status_code == 400
    assert http.post(CHAT, json={}, headers={"Origin": "http://evil.example"}).status_code == 403
    assert engine.submitted == []


def test_half_a_surrogate_pair_breaks_neither_a_prompt_nor_an_error(http: httpx.Client, engine: FakeEngine) -> None:
    half = '"\\ud83d"'
    for body in ('{"model": "default", "messages": HALF}', '{"model": HALF, "messages": []}'):
        answer = http.post(CHAT, content=body.replace("HALF", half), headers={"Content-Type": "application/json"})
        assert answer.status_code in (400, 404)
        error(answer)
    body = '{"model": "default", "prompt": HALF, "echo": true}'.replace("HALF", half)
    answer = http.post("/v1/completions", content=body, headers={"Content-Type": "application/json"})
    assert answer.status_code == 200
    assert answer.json()["choices"][0]["text"].startswith("\ufffd")
    pair = '{"model": "default", "prompt": "\\uD83D\\uDE00", "echo": true}'
    answer = http.post("/v1/completions", content=pair, headers={"Content-Type": "application/json"})
    assert answer.json()["choices"][0]["text"].startswith("\U0001f600")
