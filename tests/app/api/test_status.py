"""What monitors read: states, counts, and never a secret."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from fake_engine import FakeEngine
from fastapi import FastAPI
from fastapi.testclient import TestClient
from hosting import GatedLoads, ready_host, settings

from octavo.app.api.status import COUNTERS, status
from octavo.app.chat.store import ChatStore
from octavo.app.monitor.facts import facts_of
from octavo.app.server import create_app
from octavo.engine.errors import LoadError

CHAT = {"model": "default", "messages": [{"role": "user", "content": "hi"}]}


@contextmanager
def asking(app: FastAPI) -> Iterator[httpx.Client]:
    with TestClient(app, base_url="http://127.0.0.1:7860", client=("127.0.0.1", 5)) as client:
        yield client


def app_with(tmp_path: Path, engine: FakeEngine, **values: object) -> FastAPI:
    config = settings(tmp_path, **values)
    return create_app(config, ready_host(engine, config), ChatStore(None))


def test_status_has_the_documented_form(tmp_path: Path) -> None:
    with asking(app_with(tmp_path, FakeEngine())) as client:
        client.post("/v1/chat/completions", json=CHAT).raise_for_status()
        status = client.get("/api/status").json()
    assert {"state", "model", "pages", "requests", "counters", "settings"} <= set(status)
    assert status["state"] == "ready"
    assert status["model"]["name"] == "fake-model"
    assert status["model"]["context_length"] == 4096
    assert status["model"]["device"] == "cpu"
    assert set(status["pages"]) == {"total", "free", "cached", "used", "shared", "page_size"}
    assert set(status["requests"]) == {"running", "waiting", "swapped"}
    assert set(status["counters"]) == set(COUNTERS)
    assert status["counters"]["generated_tokens"] == len("You said: hi") + 1
    assert status["settings"]["engine"]["paged_attention"] is True
    assert status["settings"]["fusion"] is True


def test_a_choice_for_this_run_counts_as_changed(tmp_path: Path) -> None:
    config = settings(tmp_path)
    host = ready_host(FakeEngine(), config)
    host.load(config.values, {"quantization": "int4"})
    assert host.wait(240) == "ready"
    picture = status(host, config)
    assert picture["model"]["chosen"] == {"quantization": "int4"}
    facts = dict(facts_of(picture))
    assert "model.quantization=int4 (for this run)" in facts["settings"]
    assert facts["model"].startswith("fake-model, fake, float32 on cpu,")
    host.close()


def test_secrets_are_shown_as_set(tmp_path: Path) -> None:
    app = app_with(tmp_path, FakeEngine(), server__api_key="hunter2")
    with asking(app) as client:
        for path in ("/api/status", "/metrics", "/health"):
            assert "hunter2" not in client.get(path).text
        assert client.get("/api/status").json()["settings"]["server"]["api_key"] == "set"


def test_every_state_of_a_load_is_told(tmp_path: Path) -> None:
    config = settings(tmp_path)
    loads = GatedLoads(FakeEngine)
    host = loads.host()
    with asking(create_app(config, host, ChatStore(None))) as client:
        status = client.get("/api/status").json()
        assert status["state"] == "empty"
        assert status["counters"]["steps"] == 0
        assert client.get("/health").status_code == 200
        assert client.get("/v1/models").json() == {"object": "list", "data": []}
        answer = client.post("/v1/chat/completions", json=CHAT)
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "model_empty")

        host.load(config.values)
        while not (client.get("/api/status").json()["model"]["loading"] or {}).get("done"):
            pass
        status = client.get("/api/status").json()
        assert status["state"] == "loading"
        assert status["model"]["loading"]["stage"] == "weights"
        assert status["model"]["loading"]["total"] == 1000
        assert client.get("/health").json()["state"] == "loading"
        answer = client.post("/v1/chat/completions", json=CHAT)
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "model_loading")
        assert "loading" in answer.json()["error"]["message"]
        assert int(answer.headers["retry-after"]) >= 1

        loads.failure = LoadError("config.json is missing.")
        loads.open()
        assert host.wait(240) == "failed"
        assert client.get("/api/status").json()["model"]["error"] == "config.json is missing."
        answer = client.get("/health")
        assert answer.status_code == 503
        assert answer.json()["reason"] == "config.json is missing."
        answer = client.post("/v1/chat/completions", json=CHAT)
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "model_failed")
        assert "config.json is missing." in answer.json()["error"]["message"]

        loads.failure = None
        host.load(config.values)
        assert host.wait(240) == "ready"
        assert client.get("/health").status_code == 200
        assert client.post("/v1/chat/completions", json=CHAT).status_code == 200


def test_a_stuck_engine_is_not_healthy(tmp_path: Path) -> None:
    engine = FakeEngine()
    with asking(app_with(tmp_path, engine)) as client:
        assert client.get("/health").json()["status"] == "ok"
        engine.progress_s = 500.0
        answer = client.get("/health")
        assert answer.status_code == 503
        assert "500 seconds" in answer.json()["reason"]


def test_metrics_are_prometheus_text(tmp_path: Path) -> None:
    from prometheus_client.parser import text_string_to_metric_families

    with asking(app_with(tmp_path, FakeEngine())) as client:
        client.post("/v1/chat/completions", json=CHAT).raise_for_status()
        answer = client.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain")
    samples = {
        (sample.name, *sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(answer.text)
        for sample in family.samples
    }
    assert samples[("octavo_generated_tokens_total",)] == len("You said: hi") + 1
    assert samples[("octavo_state", ("state", "ready"))] == 1
    assert samples[("octavo_state", ("state", "loading"))] == 0
    assert samples[("octavo_requests", ("state", "running"))] == 0
    assert ("octavo_pages", ("use", "free")) in samples
    assert not any(name.startswith(("python_", "process_")) for name, *_ in samples)


def test_two_apps_in_one_process_do_not_share_counters(tmp_path: Path) -> None:
    with asking(app_with(tmp_path, FakeEngine())) as first, asking(app_with(tmp_path, FakeEngine())) as second:
        first.post("/v1/chat/completions", json=CHAT).raise_for_status()
        assert "octavo_generated_tokens_total 0.0" in second.get("/metrics").text


@pytest.mark.parametrize("name", ["default", "fake-model"])
def test_the_loaded_model_is_listed_and_described(tmp_path: Path, name: str) -> None:
    with asking(app_with(tmp_path, FakeEngine())) as client:
        listed = client.get("/v1/models").json()["data"]
        assert [model["id"] for model in listed] == ["fake-model"]
        assert client.get(f"/v1/models/{name}").json() == listed[0]
        assert client.get("/v1/models/other/name").status_code == 404


def test_the_framework_s_own_documentation_is_not_served(tmp_path: Path) -> None:
    with asking(app_with(tmp_path, FakeEngine())) as client:
        for path in ("/docs", "/redoc", "/openapi.json"):
            assert client.get(path).status_code == 404
