"""Who hangs up is not served any more: the engine stops at once, whatever the request was waiting for."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

import fake_engine
import httpx
import pytest
from fake_engine import FakeEngine

HI: Any = [{"role": "user", "content": "hi"}]
BODIES = {
    "/v1/chat/completions": {"model": "default", "messages": HI},
    "/v1/completions": {"model": "default", "prompt": "x", "max_tokens": 50_000},
}


def hang_up_after(url: str, path: str, body: dict[str, Any], *, first_bytes: bool, until: Callable[[], bool]) -> None:
    """Sends a request by hand and closes the connection once `until` holds (and something was answered)."""
    address = urlsplit(url)
    content = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: {address.netloc}\r\nContent-Type: application/json\r\n"
    with socket.create_connection((address.hostname, address.port), timeout=60) as connection:
        connection.sendall(f"{head}Content-Length: {len(content)}\r\n\r\n".encode() + content)
        if first_bytes:
            assert connection.recv(100)
        wait_for(until)


def wait_for(condition: Callable[[], bool], timeout_s: float = 60.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


@pytest.fixture
def endless() -> FakeEngine:
    return fake_engine.endless()


@pytest.mark.parametrize("path", list(BODIES))
@pytest.mark.parametrize("stream", [False, True])
def test_a_running_request_ends_with_its_connection(
    serve: Callable[..., str], endless: FakeEngine, path: str, stream: bool
) -> None:
    body = {**BODIES[path], "stream": stream, "n": 2}
    hang_up_after(
        serve(endless), path, body, first_bytes=stream, until=lambda: endless.status().counters["generated_tokens"] > 5
    )
    wait_for(lambda: endless.is_idle)
    assert endless.status().counters["aborted"] == 2


@pytest.mark.parametrize("path", list(BODIES))
@pytest.mark.parametrize("stream", [False, True])
def test_a_queued_request_ends_with_its_connection_and_never_runs(
    serve: Callable[..., str], endless: FakeEngine, path: str, stream: bool
) -> None:
    endless.hold()
    hang_up_after(
        serve(endless), path, {**BODIES[path], "stream": stream}, first_bytes=False, until=lambda: not endless.is_idle
    )
    wait_for(lambda: endless.is_idle)
    assert endless.status().counters["steps"] == 0


def test_places_of_clients_that_left_the_queue_are_free_again(serve: Callable[..., str]) -> None:
    engine = FakeEngine(max_running=1, queue_limit=2)
    engine.hold()
    url = serve(engine)
    body = BODIES["/v1/chat/completions"]
    for count in (1, 2):
        hang_up_after(
            url,
            "/v1/chat/completions",
            body,
            first_bytes=False,
            until=lambda count=count: len(engine.submitted) == count,
        )
    wait_for(lambda: engine.is_idle)
    engine.release()
    assert httpx.post(f"{url}/v1/chat/completions", json=body, timeout=60).status_code == 200


def test_others_go_on_when_one_hangs_up(serve: Callable[..., str]) -> None:
    engine = FakeEngine(
        lambda prompt: "word " * (2000 if "long" in prompt else 20), token_s=0.001, context_length=20_000
    )
    url = serve(engine)
    long = {"model": "default", "messages": [{"role": "user", "content": "long"}], "stream": True}
    hang_up_after(
        url, "/v1/chat/completions", long, first_bytes=True, until=lambda: engine.status().requests["running"] == 1
    )
    answer = httpx.post(f"{url}/v1/chat/completions", json=BODIES["/v1/chat/completions"], timeout=60)
    assert answer.json()["choices"][0]["message"]["content"] == "word " * 20


def test_a_finished_stream_aborts_nothing(serve: Callable[..., str]) -> None:
    engine = FakeEngine()
    body = {**BODIES["/v1/chat/completions"], "stream": True}
    answer = httpx.post(f"{serve(engine)}/v1/chat/completions", json=body, timeout=60)
    assert answer.text.endswith("data: [DONE]\n\n")
    assert engine.status().counters["aborted"] == 0


def test_many_requests_leave_nothing_behind(serve: Callable[..., str]) -> None:
    engine = FakeEngine()
    url = serve(engine)
    with httpx.Client(base_url=url, timeout=60) as client:
        for stream in (False, True) * 20:
            client.post("/v1/chat/completions", json={**BODIES["/v1/chat/completions"], "stream": stream})
    assert engine.is_idle
    assert len(engine.finished) == 40
