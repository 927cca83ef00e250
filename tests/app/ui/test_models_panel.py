"""The models panel's routes against a real hub library, a fake hub and a host of made-up engines."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from fake_engine import FakeEngine
from fake_hub import FakeHub, example_models, serving
from fastapi import FastAPI
from fastapi.testclient import TestClient
from hosting import settings
from huggingface_hub import constants
from safetensors.torch import save_file

from octavo.app.api import errors
from octavo.app.chat.store import ChatStore
from octavo.app.config import Settings
from octavo.app.host import ModelHost
from octavo.app.library import transfer
from octavo.app.ui.board import Board
from octavo.app.ui.panels import models
from octavo.app.ui.panels.deps import PanelDeps

CONFIG: dict[str, Any] = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 1000,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 4096,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
}


@dataclass
class Chat:
    id: str
    title: str
    generating: bool = True


class Service:
    """As much of the chat service as the panel uses."""

    def __init__(self) -> None:
        self.chats: list[Chat] = []

    def list_chats(self) -> list[Chat]:
        return self.chats

    def running(self, chat_id: str) -> object:
        return next((chat for chat in self.chats if chat.id == chat_id and chat.generating), None)

    def stop(self, chat_id: str) -> None:
        for chat in self.chats:
            chat.generating = chat.generating and chat.id != chat_id


@dataclass
class Panel:
    client: TestClient
    host: ModelHost
    settings: Settings
    board: Board
    hub: FakeHub
    service: Service
    loads: list[tuple[str, str]]

    def get(self, path: str = "", **query: str) -> Any:
        return self.client.get(f"{models.PATH}{path}", params=query)

    def post(self, path: str, **body: object) -> Any:
        return self.client.post(f"{models.PATH}{path}", json=body)

    def news(self) -> dict[str, Any]:
        return self.board.get("models")

    def wait(self, found: Callable[[dict[str, Any]], object], timeout_s: float = 30.0) -> dict[str, Any]:
        end = time.monotonic() + timeout_s
        while not found(self.news()):
            assert time.monotonic() < end, self.news()
            time.sleep(0.01)
        return self.news()


@pytest.fixture
def panel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, starter_path: Path) -> Iterator[Panel]:
    monkeypatch.setenv("OCTAVO_STARTER", str(starter_path))
    monkeypatch.delenv("HF_TOKEN", raising=False)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1,localhost")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "token"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(transfer, "WAITS_S", (0.01,))
    values = settings(tmp_path, model__device="cpu")
    loads: list[tuple[str, str]] = []

    def build(source: object, config: Any, report: object) -> FakeEngine:
        loads.append((config.model.id, config.model.quantization))
        return FakeEngine(name=config.model.id)

    host = ModelHost(find=lambda config, report: Path(config.model.id), build=build)
    service, board = Service(), Board()
    app = FastAPI()
    errors.install(app)
    store = ChatStore(tmp_path / "chats.sqlite3")
    with serving(example_models(starter_path.read_bytes()[:6_000_000], CONFIG)) as hub:
        monkeypatch.setattr(constants, "ENDPOINT", hub.url)
        monkeypatch.setattr(
            constants, "HUGGINGFACE_CO_URL_TEMPLATE", hub.url + "/{repo_id}/resolve/{revision}/{filename}"
        )
        models.add_routes(app, PanelDeps(service, host, store, values, board))  # type: ignore[arg-type]
        yield Panel(
            TestClient(app, base_url="http://127.0.0.1", client=("127.0.0.1", 5000)),
            host,
            values,
            board,
            hub,
            service,
            loads,
        )
    host.close()
    store.close()


def finished(model_id: str) -> Callable[[dict[str, Any]], object]:
    return lambda news: [job for job in news["downloads"] if job["model_id"] == model_id and job["state"] == "done"]


def test_opening_the_panel_asks_nobody_outside(panel: Panel) -> None:
    overview = panel.get().json()
    assert panel.hub.requests == []
    assert overview["machine"]["cores"] >= 1
    assert 2 <= len(overview["suggestions"]) <= 4
    assert overview["token"] == {"source": None, "variable": None}
    assert overview["disk_free"] > 0
    assert [model["id"] for model in overview["models"]] == ["starter"]


def test_models_on_disk_come_with_type_size_and_context(panel: Panel, tmp_path: Path, starter_path: Path) -> None:
    odd = tmp_path / "mine" / "odd"
    odd.mkdir(parents=True)
    (odd / "config.json").write_text('{"model_type": "mamba"}', encoding="utf-8")
    (odd / "x.safetensors").write_bytes(b"cut")
    panel.post("/folders", add=str(tmp_path / "mine"))
    panel.get()
    panel.wait(lambda news: all(model["facts"] for model in panel.get().json()["models"]))
    rows = {model["id"]: model for model in panel.get().json()["models"]}
    starter = rows["starter"]
    assert (starter["format"], starter["size"]) == ("gguf", starter_path.stat().st_size)
    facts = starter["facts"]
    assert (facts["architecture"], facts["type"], facts["context_length"]) == ("LlamaForCausalLM", "Q4_1", 8192)
    assert facts["parameters"] == 134_515_008
    assert facts["problem"] is None
    assert "x.safetensors" in rows["odd"]["facts"]["problem"]
    assert rows["odd"]["complete"]  # there is no rest that could be fetched
    assert not rows["odd"]["removable"]


def test_folders_of_ones_own_say_what_keeps_them_from_loading(panel: Panel, tmp_path: Path, starter_path: Path) -> None:
    mine = tmp_path / "mine"
    for name in ("bare", "dumb", "mute"):
        (mine / name).mkdir(parents=True)
        save_file({"x.weight": torch.zeros(2, 2)}, mine / name / "model.safetensors")
    (mine / "dumb" / "config.json").write_text('{"model_type": "unheard-of"}', encoding="utf-8")
    (mine / "mute" / "config.json").write_text('{"model_type": "llama"}', encoding="utf-8")
    (mine / "junk.gguf").write_bytes(b"junk" * 100)
    panel.post("/folders", add=str(mine))
    panel.get()
    panel.wait(lambda news: all(model["facts"] for model in panel.get().json()["models"]))
    problems = {model["id"]: model["facts"]["problem"] for model in panel.get().json()["models"]}
    assert "has no config.json" in problems["bare"]
    assert "unheard-of" in problems["dumb"]
    assert "tokenizer.json missing" in problems["mute"]
    assert "junk.gguf" in problems["junk.gguf"]
    for model_id in ("bare", "dumb", "mute", "junk.gguf"):  # would only fail at every start
        refused = panel.post("/start", id=model_id)
        assert (refused.status_code, refused.json()["error"]["message"]) == (422, problems[model_id])
        assert panel.settings.values.model.id == "starter"


def test_search_finds_what_can_be_loaded_and_sends_the_words_alone(panel: Panel) -> None:
    answer = panel.post("/search", words="small").json()
    assert "found" in answer, answer
    found = answer["found"]
    assert [(row["id"], row["kind"]) for row in found] == [
        ("meadow/small-instruct-GGUF", "gguf"),
        ("meadow/small-instruct", "safetensors"),
    ]
    assert (found[0]["parameters"], found[0]["context_length"], found[0]["fits"]) == (134_515_008, 8192, "fits")
    assert [row["id"] for row in panel.post("/search", words="", kind="gguf").json()["found"]] == [found[0]["id"]]
    assert panel.post("/search", words="pickle").json()["found"] == []
    pasted = panel.post("/search", words=" https://huggingface.co/meadow/small-instruct-GGUF/tree/main ").json()[
        "found"
    ]
    assert [row["id"] for row in pasted] == ["meadow/small-instruct-GGUF"]
    assert panel.post("/search", words="terms").json()["found"][0]["gated"]
    assert panel.post("/search", kind="pickle").status_code == 400
    assert panel.get("/search", q="small").status_code == 405  # a picture on another site could send that


def test_a_repository_shows_its_variants_and_what_they_need(panel: Panel, starter_path: Path) -> None:
    panel.hub.repositories["meadow/small-instruct-GGUF"] = {"small-Q4_K_M.gguf": starter_path.read_bytes()}
    about = panel.post("/look", id="meadow/small-instruct-GGUF").json()
    assert [(choice["variant"], choice["complete"]) for choice in about["choices"]] == [("Q4_K_M", False)]
    assert about["choices"][0]["size"] == starter_path.stat().st_size
    assert about["license"] == "apache-2.0"
    assert about["fit"]["fit"]["context_length"] == 8192
    assert about["fit"]["fit"]["verdict"] == "fits"
    assert panel.hub.sent("small-Q4_K_M.gguf") < 5
    plain = panel.post("/look", id="meadow/small-instruct").json()
    assert [choice["id"] for choice in plain["choices"]] == ["meadow/small-instruct"]
    assert plain["fit"]["fit"]["kv_bytes"] > 0


@pytest.mark.parametrize(
    ("repo_id", "code", "said"),
    [
        ("meadow/old-pickle", "not_found", "only pickled weights, which could run code when read"),
        ("meadow/nothing", "not_found", "There is no model meadow/nothing"),
    ],
)
def test_what_cannot_be_loaded_is_refused_in_one_sentence(panel: Panel, repo_id: str, code: str, said: str) -> None:
    for answer in (panel.post("/look", id=repo_id), panel.post("/look", id=repo_id)):  # nothing half is remembered
        assert answer.status_code == 422
        assert answer.json()["error"]["code"] == code
        assert said in answer.json()["error"]["message"]
    panel.post("/downloads", id=repo_id)
    news = panel.wait(lambda news: news["downloads"] and news["downloads"][0]["state"] == "failed")
    assert said in news["downloads"][0]["error"]


def test_offline_everything_local_works_and_the_hub_is_not_asked(panel: Panel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert panel.get().json()["offline"]
    for answer in (panel.post("/search", words="small"), panel.post("/look", id="meadow/small-instruct")):
        assert (answer.status_code, answer.json()["error"]["code"]) == (422, "offline")
        assert "HF_HUB_OFFLINE" in answer.json()["error"]["message"]
    assert panel.hub.requests == []


def test_a_download_is_told_to_every_tab_and_loaded_when_it_is_done(panel: Panel) -> None:
    answer = panel.post("/downloads", id="meadow/small-instruct", load=True)
    assert answer.json()["state"] in ("waiting", "running")
    panel.wait(finished("meadow/small-instruct"))
    panel.wait(lambda news: news["state"] == "ready")
    assert panel.loads == [("meadow/small-instruct", "none")]
    assert panel.host.chosen == {"id": "meadow/small-instruct"}
    assert panel.settings.values.model.id == "starter"  # config.yaml is nobody's but the user's
    assert not panel.settings.path.exists()
    overview = panel.get().json()
    assert [model["id"] for model in overview["models"]] == ["starter", "meadow/small-instruct"]
    assert overview["recent"][0]["id"] == "meadow/small-instruct"


def test_a_download_can_be_paused_taken_up_and_called_off(panel: Panel) -> None:
    panel.hub.bytes_per_s, panel.hub.slow_after = 1e5, 600_000  # the rest takes long enough to be caught in it
    job = panel.post("/downloads", id="meadow/small-instruct").json()["id"]
    panel.wait(lambda news: news["downloads"][0]["done"] > 200_000)
    panel.post(f"/downloads/{job}/pause")
    news = panel.wait(lambda news: news["downloads"][0]["state"] == "paused")
    assert 200_000 < news["downloads"][0]["done"] < news["downloads"][0]["total"]
    panel.post(f"/downloads/{job}/resume")
    panel.wait(lambda news: news["downloads"][0]["state"] == "running")
    panel.post(f"/downloads/{job}/remove")
    assert panel.wait(lambda news: not news["downloads"])["downloads"] == []
    assert panel.post(f"/downloads/{job}/pause").status_code == 422
    assert panel.post(f"/downloads/{job}/explode").status_code == 404


def test_the_estimate_follows_context_and_format(panel: Panel) -> None:
    whole = panel.post("/fit", id="starter").json()
    short = panel.post("/fit", id="starter", context_length=1024).json()
    assert (whole["fit"]["context_length"], short["fit"]["context_length"]) == (8192, 1024)
    assert whole["fit"]["kv_bytes"] == 8 * short["fit"]["kv_bytes"]
    assert whole["best"] == "none"
    for other in whole["alternatives"][1:]:
        assert other["weight_bytes"] < whole["fit"]["weight_bytes"]
        packed = panel.post("/fit", id="starter", quantization=other["quantization"]).json()["fit"]
        assert packed["weight_bytes"] == other["weight_bytes"]
    assert whole["sixteen_bit"] == pytest.approx(2 * 134.5e6, rel=0.01)
    assert whole["alternatives"][0]["pace"] == "same"
    assert panel.post("/fit", id="starter", quantization="int3").status_code == 400
    assert panel.post("/fit", id="starter", context_length=5).status_code == 400
    assert panel.post("/fit", id="nothing").status_code == 422


def test_loading_asks_before_it_ends_replies(panel: Panel) -> None:
    panel.post("/load", id="starter")
    panel.wait(lambda news: news["state"] == "ready")
    panel.service.chats = [Chat("a", "Lighthouse"), Chat("b", "Invoice", generating=False)]
    answer = panel.post("/load", id="starter", context_length=2048)
    assert (answer.status_code, answer.json()["error"]["code"]) == (409, "replies_running")
    assert "Lighthouse" in answer.json()["error"]["message"]
    assert "Invoice" not in answer.json()["error"]["message"]
    assert panel.post("/unload").status_code == 409
    assert len(panel.loads) == 1
    assert panel.post("/load", id="starter", context_length=2048, force=True).status_code == 200
    panel.wait(lambda news: len(panel.loads) == 2 and news["state"] == "ready")
    assert not panel.service.chats[0].generating
    assert panel.host.chosen == {"context_length": 2048}
    panel.post("/unload")
    panel.wait(lambda news: news["state"] == "empty")


def test_a_resting_model_is_told_as_such_and_woken(panel: Panel) -> None:
    panel.post("/load", id="starter", context_length=2048)
    panel.wait(lambda news: news["state"] == "ready")
    panel.host.rest()
    news = panel.wait(lambda news: news["state"] == "empty" and news["resting"])
    assert news["id"] == "starter"
    panel.post("/wake")
    panel.wait(lambda news: news["state"] == "ready" and not news["resting"])
    assert panel.host.chosen == {"context_length": 2048}


def test_a_model_that_is_not_on_disk_is_not_loaded(panel: Panel) -> None:
    answer = panel.post("/load", id="meadow/small-instruct")
    assert (answer.status_code, answer.json()["error"]["code"]) == (422, "not_found")
    assert panel.hub.requests == []
    assert panel.post("/load").status_code == 400


def test_the_three_refusals_of_a_gated_model_are_three_sentences(panel: Panel, monkeypatch: pytest.MonkeyPatch) -> None:
    said = {}
    for token, code in ((None, "no_token"), ("hf_stranger", "no_access"), ("hf_wrong", "wrong_token")):
        if token:
            monkeypatch.setenv("HF_TOKEN", token)
        answer = panel.post("/look", id="meadow/terms-1b")
        reason = answer.json()["problem"] if answer.status_code == 200 else answer.json()["error"]
        said[code] = reason["message"]
        assert reason.get("reason", reason.get("code")).replace(" ", "_") == code
        job = panel.post("/downloads", id="meadow/terms-1b").json()["id"]
        news = panel.wait(lambda news: news["downloads"] and news["downloads"][0]["state"] == "failed")
        assert news["downloads"][0]["reason"].replace(" ", "_") == code
        panel.post(f"/downloads/{job}/remove")
    assert len(set(said.values())) == 3
    assert not any("hf_" in text for text in said.values())


def test_a_token_is_kept_once_the_hub_knows_it(
    panel: Panel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    answer = panel.post("/token", token="hf_wrong_token")
    assert (answer.status_code, answer.json()["error"]["code"]) == (422, "wrong_token")
    assert not (tmp_path / "token").exists()
    assert panel.post("/token", token="two words").status_code == 422
    kept = panel.post("/token", token=" hf_reader\n").json()
    assert kept == {"source": "file", "variable": None, "name": "ada"}
    assert (tmp_path / "token").read_text(encoding="utf-8") == "hf_reader"
    if os.name != "nt":
        assert (tmp_path / "token").stat().st_mode & 0o077 == 0
    panel.post("/downloads", id="meadow/terms-1b")
    panel.wait(finished("meadow/terms-1b"))
    assert panel.hub.leaks == []
    shown = json.dumps(panel.get().json()) + json.dumps(panel.news()) + caplog.text
    assert "hf_reader" not in shown
    assert panel.post("/token").json()["source"] is None
    monkeypatch.setenv("HF_TOKEN", "hf_reader")
    assert panel.get().json()["token"] == {"source": "environment", "variable": "HF_TOKEN"}
    assert "HF_TOKEN" in panel.post("/token", token="hf_other").json()["error"]["message"]
    assert panel.post("/token").status_code == 422


def test_a_fetched_model_is_deleted_unless_it_is_in_use(panel: Panel) -> None:
    panel.post("/downloads", id="meadow/small-instruct", load=True)
    panel.wait(lambda news: news["state"] == "ready")
    assert panel.post("/remove", id="meadow/small-instruct").json()["error"]["code"] == "in_use"
    panel.post("/load", id="starter")
    panel.wait(lambda news: news["id"] == "starter" and news["state"] == "ready")
    assert panel.post("/remove", id="meadow/small-instruct").json()["freed"] >= 3_000_000
    overview = panel.get().json()
    assert [model["id"] for model in overview["models"]] == ["starter"]
    assert [recent["id"] for recent in overview["recent"]] == ["starter"]


def test_what_is_loaded_at_every_start_is_written_into_the_file_when_asked(panel: Panel) -> None:
    panel.post("/start", id="meadow/small-instruct")
    assert panel.settings.values.model.id == "meadow/small-instruct"
    assert "id: meadow/small-instruct" in panel.settings.path.read_text(encoding="utf-8")
    assert panel.get().json()["at_start"] == "meadow/small-instruct"


def test_a_folder_must_be_there_and_can_be_dropped(panel: Panel, tmp_path: Path) -> None:
    folder = tmp_path / "Ünï тест 山 b"
    assert panel.post("/folders", add=str(folder)).status_code == 422
    folder.mkdir()
    assert panel.post("/folders", add=str(folder)).json() == {"folders": [str(folder)]}
    assert panel.post("/folders", add=str(folder)).json() == {"folders": [str(folder)]}
    assert panel.post("/folders", add="relative").status_code == 422
    assert panel.post("/folders", remove=str(folder)).json() == {"folders": []}


@pytest.mark.skipif(sys.platform == "win32", reason="the test client names no host there")
def test_another_device_may_load_but_touch_no_files_and_no_token(panel: Panel) -> None:
    stranger = Panel(TestClient(panel.client.app, client=("192.168.1.7", 5000)), *list(vars(panel).values())[1:])
    for path in ("/remove", "/folders", "/token"):
        assert stranger.post(path, id="starter").json()["error"]["code"] == "not_local"
    assert stranger.post("/load", id="starter").status_code == 200
    assert not stranger.get().json()["local_user"]
