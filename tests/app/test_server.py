"""The whole server: what it starts, in which order it stops, and what it refuses to be."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import httpx
import pytest
from fake_engine import FakeEngine
from fastapi import FastAPI
from fastapi.testclient import TestClient
from hosting import GatedLoads, settings
from ports import free_port
from serving import running

from octavo.app.chat.store import ChatStore
from octavo.app.guards import Guards, UnsafeHostError
from octavo.app.host import ModelHost
from octavo.app.ports import listen
from octavo.app.server import create_app, run_server
from octavo.engine.errors import LoadError

SUPPORT = Path(__file__).parent / "support"
SERVE = """
    import sys
    sys.path.insert(0, {support!r})
    from pathlib import Path
    from fake_engine import FakeEngine
    from hosting import settings
    import octavo.app.host as host_module
    import octavo.app.server as server_module
    from octavo.app.host import ModelHost

    server_module.GRACE_S = 60 if {slow} else 3
    script = (lambda _: "word " * 5000) if {slow} else (lambda _: "short")
    server_module.ModelHost = lambda: ModelHost(
        find=lambda config, report: Path("fake"),
        build=lambda *_: FakeEngine(script, token_s=0.002, context_length=100_000),
    )
    config = settings(Path({folder!r}))
    code = server_module.run_server(
        config, page=False, open_browser=False, port={port}, on_started=lambda: print("started", flush=True)
    )
    print("code", code, flush=True)
    sys.exit(code)
"""


@contextmanager
def served(tmp_path: Path, *, slow: bool = False) -> Iterator[tuple[subprocess.Popen[str], httpx.Client]]:
    """`run_server` in a process of its own, as the command line runs it, with a fake engine."""
    port = free_port()
    script = textwrap.dedent(SERVE).format(support=str(SUPPORT), folder=str(tmp_path), port=port, slow=slow)
    process = subprocess.Popen(
        [sys.executable, "-c", script],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "OCTAVO_DATA_DIR": str(tmp_path / "data")},
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "started\n"
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60) as client:
            yield process, client
    finally:
        process.kill()
        process.wait()


def test_what_is_sent_does_not_wait_until_a_packet_is_full(tmp_path: Path) -> None:
    with listen(settings(tmp_path, server__port=0)) as listener:
        listener.setblocking(True)
        with socket.create_connection(listener.getsockname(), timeout=60), listener.accept()[0] as accepted:
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def wait_until_ready(client: httpx.Client) -> None:
    while client.get("/health").json()["state"] != "ready":
        time.sleep(0.02)


posix_signals = pytest.mark.skipif(os.name != "posix", reason="signals are sent differently on Windows")


@posix_signals
def test_one_signal_ends_the_server_in_order(tmp_path: Path) -> None:
    with served(tmp_path) as (process, client):
        wait_until_ready(client)
        body = {"model": "default", "messages": [{"role": "user", "content": "hi"}]}
        assert client.post("/v1/chat/completions", json=body).json()["choices"][0]["message"]["content"] == "short"
        process.send_signal(signal.SIGTERM)
        assert process.wait(240) == 0
        assert process.stdout is not None
        assert process.stdout.read() == "code 0\n"


@posix_signals
def test_the_second_interrupt_ends_a_running_stream_at_once(tmp_path: Path) -> None:
    with served(tmp_path, slow=True) as (process, client):
        wait_until_ready(client)
        body = {"model": "default", "messages": [{"role": "user", "content": "hi"}], "stream": True}
        with client.stream("POST", "/v1/chat/completions", json=body) as answer:
            pieces = answer.iter_bytes()
            next(pieces)
            process.send_signal(signal.SIGINT)
            time.sleep(0.3)
            assert process.poll() is None  # the first lets it end by itself for a while
            process.send_signal(signal.SIGINT)
            assert process.wait(50) == 130  # less than what the first one gave


@posix_signals
def test_one_interrupt_ends_long_requests_soon_and_tells_their_clients(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    asked = {
        "/v1/completions": {"prompt": "hi"},
        "/v1/chat/completions": {"messages": [{"role": "user", "content": "hi"}]},
    }
    ways = [(path, stream) for path in asked for stream in (False, True)]
    with served(tmp_path, slow=True) as (process, client), ThreadPoolExecutor(len(ways)) as callers:
        wait_until_ready(client)
        answers = [
            callers.submit(
                client.post, path, json={"model": "default", "max_tokens": 20_000, "stream": stream, **asked[path]}
            )
            for path, stream in ways
        ]
        while client.get("/api/status").json()["requests"]["running"] < len(ways):
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        assert process.wait(50) == 0  # less than what connections have there
        said = [answer.result(60) for answer in answers]
    for (_, stream), answer in zip(ways, said):
        if stream:
            fault = json.loads(answer.text.strip().splitlines()[-1].removeprefix("data: "))
        else:
            assert answer.status_code == 503
            fault = answer.json()
        assert fault["error"]["code"] == "engine_closed"
        assert "Octavo was closed" in fault["error"]["message"]
    assert "Traceback" not in capfd.readouterr().err


def test_everything_is_closed_with_the_app(tmp_path: Path) -> None:
    config = settings(tmp_path)
    loads = GatedLoads(FakeEngine)
    loads.open()
    host, store = loads.host(), ChatStore(tmp_path / "chats.sqlite3")
    with TestClient(create_app(config, host, store), base_url="http://127.0.0.1", client=("127.0.0.1", 1)) as client:
        host.load(config.values)
        assert host.wait(240) == "ready"
        assert client.get("/health").status_code == 200
    assert host.state == "empty"
    assert loads.made[0].status().state == "closed"
    again = ChatStore(tmp_path / "chats.sqlite3")  # nothing holds it any more
    again.create_chat()
    again.close()


def test_the_settings_of_the_guards_come_from_the_configuration(tmp_path: Path) -> None:
    config = settings(
        tmp_path,
        server__api_key="secret",
        server__allowed_hosts=["octavo.home"],
        server__allowed_origins=["https://tool.example"],
    )
    app = create_app(config, GatedLoads(FakeEngine).host(), ChatStore(None))
    with TestClient(app, base_url="http://127.0.0.1:7860", client=("127.0.0.1", 1)) as client:
        assert client.get("/v1/models").status_code == 401
        key = {"Authorization": "Bearer secret"}
        assert client.get("/v1/models", headers=key).status_code == 200
        assert client.get("/v1/models", headers={**key, "Host": "octavo.home"}).status_code == 200
        assert client.get("/v1/models", headers={**key, "Host": "evil.example"}).status_code == 400
        answer = client.get("/v1/models", headers={**key, "Origin": "https://tool.example"})
        assert answer.headers["access-control-allow-origin"] == "https://tool.example"


def test_beside_the_page_the_api_answers_unknown_paths_and_methods_in_its_own_form(tmp_path: Path) -> None:
    app = create_app(settings(tmp_path), GatedLoads(FakeEngine).host(), ChatStore(None), page=True)
    with TestClient(app, base_url="http://127.0.0.1:7860", client=("127.0.0.1", 1)) as client:
        for method, path in (("GET", "/v1/nothing"), ("POST", "/v1/"), ("DELETE", "/api/x/y"), ("GET", "/api/live")):
            answer = client.request(method, path, headers={"Content-Type": "application/json"})
            assert (answer.status_code, answer.json()["error"]["code"]) == (404, "not_found"), path
            assert path in answer.json()["error"]["message"]
        for method, path, allowed in (
            ("GET", "/v1/chat/completions", "POST"),
            ("DELETE", "/v1/models", "GET"),
            ("POST", "/api/status", "GET"),
        ):
            answer = client.request(method, path, headers={"Content-Type": "application/json"})
            assert (answer.status_code, answer.json()["error"]["code"]) == (405, "method_not_allowed"), path
            assert answer.headers["allow"] == allowed
        assert client.get("/v1/models").json()["object"] == "list"
        assert client.get("/api/status").json()["state"] == "empty"
        assert client.get("/").headers["content-type"].startswith("text/html")
        assert client.post("/gradio_api/upload", files={"files": b"x"}).status_code == 404


def test_the_network_without_a_key_is_refused_before_anything_starts(tmp_path: Path) -> None:
    config = settings(tmp_path)
    server = config.values.server.model_copy(update={"host": "0.0.0.0"})
    config = replace(config, values=config.values.model_copy(update={"server": server}))
    with pytest.raises(UnsafeHostError, match=r"server\.api_key"):
        run_server(config, page=False, open_browser=False, port=0)


def test_the_server_is_up_before_torch_is_imported() -> None:
    code = "import sys, octavo.app.server; sys.exit('torch' in sys.modules or 'transformers' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def exchanged(url: str, sent: bytes) -> bytes:
    """Sends all, then reads to the end of the connection."""
    with socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2])), timeout=60) as client:
        client.sendall(sent)
        return b"".join(iter(lambda: client.recv(65536), b""))


@pytest.mark.parametrize("http", ["h11", "httptools"])
def test_a_body_over_the_limit_is_taken_whole_and_answered(http: str) -> None:
    """As clients do that read no answer before they have sent all."""
    pytest.importorskip(http)
    app = Guards(FastAPI(), body_limit_bytes=1000)
    size = 16_000_000  # more than what the system buffers
    head = f"POST /v1/x HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {size}\r\n\r\n"
    with running(app, http=http) as url:
        answer = exchanged(url, head.encode() + b"x" * size)
    assert answer.startswith(b"HTTP/1.1 413")
    assert b"request_too_large" in answer


def test_a_refused_client_that_never_ends_its_body_is_left_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("octavo.app.guard_answers.LINGER_S", 0.2)
    head = b"POST /v1/x HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 5000\r\n\r\n"
    with running(Guards(FastAPI(), body_limit_bytes=1000)) as url:
        assert exchanged(url, head).startswith(b"HTTP/1.1 413")


@pytest.mark.parametrize("page", [False, pytest.param(True, marks=posix_signals)])
def test_without_the_page_a_model_that_cannot_be_loaded_ends_the_server(
    page: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def build(*_: object) -> FakeEngine:
        raise LoadError("The file is cut off.", remedy="Download it again.")

    host = ModelHost(find=lambda *_: tmp_path, build=build)
    monkeypatch.setenv("OCTAVO_DATA_DIR", str(tmp_path))
    monkeypatch.setattr("octavo.app.server.ModelHost", lambda: host)
    begun = threading.Event()

    def look_at_it() -> None:
        begun.wait(240)
        assert host.wait(240) == "failed"
        os.kill(os.getpid(), signal.SIGINT)

    looking = threading.Thread(target=look_at_it) if page else None
    if looking is not None:
        looking.start()
    options = {"page": page, "open_browser": False, "port": free_port(), "on_started": begun.set}
    if page:  # where another model can be chosen
        assert run_server(settings(tmp_path), **options) == 0
    else:
        with pytest.raises(LoadError, match=r"^The file is cut off\. Download it again\.$"):
            run_server(settings(tmp_path), **options)
    if looking is not None:
        looking.join()
