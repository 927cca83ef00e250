"""Every key on the page: what it is, where that came from, what a change waits for."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from fake_engine import FakeEngine

from octavo.app.config import schema
from octavo.app.config.form import forms
from octavo.app.data_files import MOVE_NOTE
from octavo.app.ui.panels import settings as panel
from octavo.app.ui.panels.measured import NAME, SWITCHES, extract, measured
from octavo.app.ui.strings.keys import KEYS

if TYPE_CHECKING:
    from tests.app.ui.panels.conftest import House as Running

House = Callable[..., "Running"]
PATH = "/api/ui/settings"
TEXT = """\
# mine
model:
  id: starter  # the small one
engine:
  fusion: true
x-notes: {kept: yes}
"""


def row(state: dict[str, Any], key: str) -> dict[str, Any]:
    return next(found for found in state["keys"] if found["key"] == key)


def change(house: Running, **changes: object) -> Any:
    body = {"changes": {name.replace("__", "."): value for name, value in changes.items()}}
    return house.client.post(PATH, json=body)


def test_every_key_is_there_with_its_explanation_value_and_source(house: House) -> None:
    state = house(TEXT, server__port=1234).get(PATH)
    assert [found["key"] for found in state["keys"]] == list(schema.fields())
    assert all(found["about"] and found["title"] for found in state["keys"])
    assert row(state, "model.id")["source"] == "file"
    assert row(state, "model.id")["line"] == 3
    assert row(state, "engine.page_size")["source"] == "default"
    port = row(state, "server.port")
    assert (port["value"], port["source"], port["place"]) == (1234, "flag", "--port")


def test_only_keys_that_exist_have_words_and_none_is_left_empty() -> None:
    assert KEYS.keys() <= forms().keys()
    assert all(part.strip() for words in KEYS.values() for part in words)


def test_the_explanations_come_in_the_browsers_language(house: House) -> None:
    state = house().get(PATH, headers={"accept-language": "zh-CN,zh;q=0.9"})
    assert row(state, "engine.fusion")["title"] == "算子融合"
    assert row(state, "engine.fusion")["about"] == KEYS["engine.fusion"][2]


def test_a_key_never_shows_the_secret_it_holds(house: House) -> None:
    answer = house("server: {api_key: open-sesame}").client.get(PATH)
    assert "open-sesame" not in answer.text
    assert row(answer.json(), "server.api_key")["value"] == "set"


def test_saving_keeps_comments_and_foreign_keys_and_takes_effect(house: House) -> None:
    here = house(TEXT)
    state = change(here, app__theme="dark").json()
    assert row(state, "app.theme")["value"] == "dark"
    assert here.settings.values.app.theme == "dark"
    text = here.settings.path.read_text(encoding="utf-8")
    assert text.startswith("# mine\nmodel:\n  id: starter  # the small one\n")
    assert "x-notes: {kept: yes}" in text


@pytest.mark.parametrize(
    ("key", "value", "says"),
    [
        ("server.port", 70_000, "65535"),
        ("engine.page_size", "many", "whole number"),
        ("model.device", "gpu", "cuda"),
        ("engine.kv_memory", "6 potatoes", "size"),
        ("server.host", "0.0.0.0", "api_key"),
        ("nothing.here", 1, "not a known key"),
    ],
)
def test_a_wrong_value_is_refused_by_name_and_changes_nothing(house: House, key: str, value: object, says: str) -> None:
    here = house(TEXT)
    answer = here.client.post(PATH, json={"changes": {key: value}})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == key
    message = answer.json()["error"]["message"]
    assert message.startswith(f"{key} ")  # the page's own words for it begin with the key
    assert says in message
    assert here.settings.path.read_text(encoding="utf-8") == TEXT


@pytest.mark.parametrize("body", [{}, {"changes": {}}, {"changes": []}, {"changes": None}])
def test_a_request_without_changes_is_refused(house: House, body: object) -> None:
    assert house().client.post(PATH, json=body).status_code == 400


def test_a_change_of_the_model_waits_for_a_reload_and_the_board_says_so(house: House) -> None:
    here = house(TEXT)
    state = change(here, engine__fusion=False, server__port=7999).json()
    assert state["pending"] == {"reload": ["engine.fusion"], "restart": ["server.port"], "error": None}
    assert row(state, "engine.fusion")["waits"]
    told = here.deps.board.get("settings")
    assert (told["reload"], told["restart"]) == (["engine.fusion"], ["server.port"])
    assert here.client.post(f"{PATH}/reload", json={}).status_code == 200
    assert here.host.wait(240) == "ready"
    assert len(here.loads.made) == 2
    assert here.deps.board.get("settings")["reload"] == []
    assert change(here, engine__fusion=True).json()["pending"]["reload"] == ["engine.fusion"]
    back = change(here, engine__fusion=False).json()
    assert back["pending"]["reload"] == []  # as it was loaded: nothing to do


def test_an_edit_by_hand_is_taken_over_and_a_wrong_one_is_shown(house: House) -> None:
    here = house(TEXT)
    here.settings.path.write_text(TEXT.replace("fusion: true", "fusion: ture"), encoding="utf-8")
    with pytest.raises(Exception, match="ture"):
        here.settings.refresh()
    told = here.deps.board.get("settings")["error"]
    assert "line 5" in told
    assert "engine.fusion" in told
    assert here.get(PATH)["pending"]["error"] == told
    here.settings.path.write_text(TEXT.replace("fusion: true", "fusion: false"), encoding="utf-8")
    here.settings.refresh()
    assert here.deps.board.get("settings")["error"] is None
    assert here.deps.board.get("settings")["reload"] == ["engine.fusion"]


def test_a_reload_names_the_chats_it_would_stop_and_keeps_what_they_have(house: House) -> None:
    here = house(TEXT, engine=lambda: FakeEngine(lambda prompt: "word " * 400, token_s=0.01))
    engine = here.loads.made[0]
    chat_id = here.begin_chat("Tell me everything")
    change(here, engine__fusion=False)
    asked = here.get(f"{PATH}/pending")
    assert asked["chats"] == [{"id": chat_id, "title": "Tell me everything"}]
    assert asked["reload"] == ["engine.fusion"]
    here.client.post(f"{PATH}/reload", json={})
    assert here.host.wait(240) == "ready"
    assert here.loads.made[-1] is not engine
    while here.service.running(chat_id):
        time.sleep(0.005)
    reply = here.service.get_chat(chat_id).messages[-1]  # type: ignore[union-attr]
    assert reply.status == "stopped"
    assert reply.content
    assert ("word " * 400).startswith(reply.content)


def test_another_device_may_look_but_not_open_doors(house: House) -> None:
    here = house("server: {api_key: open-sesame}")
    away = here.from_elsewhere()
    assert here.get(PATH, headers=away)["local"] is False
    body = {"changes": {"server.api_key": None}}
    refused = here.client.post(PATH, json=body, headers=away)
    assert (refused.status_code, refused.json()["error"]["code"]) == (403, "not_local")
    for route in ("restart", "quit"):
        assert here.client.post(f"{PATH}/{route}", json={}, headers=away).status_code == 403
    assert here.client.post(PATH, json={"changes": {"app.theme": "dark"}}, headers=away).status_code == 200


def test_a_restart_is_asked_of_whoever_can_do_it(house: House) -> None:
    here = house()
    assert here.client.post(f"{PATH}/restart", json={}).json()["error"]["code"] == "no_restart"
    asked: list[str] = []
    here.client.app.state.restart = asked.append  # type: ignore[attr-defined]
    assert here.client.post(f"{PATH}/restart", json={}).status_code == 200
    assert asked == ["asked"]


@pytest.mark.parametrize("wanted", ["\ud800", "a\ufffdb"])
def test_a_character_that_was_lost_is_not_stored(house: House, wanted: str) -> None:
    here = house(TEXT)
    content = json.dumps({"changes": {"model.id": wanted}})
    answer = here.client.post(PATH, content=content, headers={"content-type": "application/json"})
    assert answer.status_code == 400
    assert "character that was lost" in answer.json()["error"]["message"]
    assert here.settings.path.read_text(encoding="utf-8") == TEXT


def test_another_data_folder_is_checked_and_the_chats_follow_as_when_they_are_moved(
    house: House, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = house(TEXT)
    assert change(here, app__data_folder="/x").json()["error"]["code"] == "fixed"
    monkeypatch.delenv("OCTAVO_DATA_DIR")
    (tmp_path / "file").write_text("")
    wrong = {
        str(tmp_path / "file"): "cannot be written",
        "somewhere": "no complete path",
        str(tmp_path / ("x" * 300)): "cannot be written",
        "~nobody-of-this-name/x": "no complete path",
        str(tmp_path / "a\nb"): "control characters",
        "": "must be text",
    }
    for wanted, says in wrong.items():
        refused = change(here, app__data_folder=wanted)
        assert refused.status_code == 400, wanted
        assert refused.json()["error"]["param"] == "app.data_folder"
        assert says in refused.json()["error"]["message"]
    assert sorted(path.name for path in tmp_path.iterdir() if "a" in path.name) == ["config.yaml", "data"]
    assert here.settings.path.read_text(encoding="utf-8") == TEXT
    target = tmp_path / "new home"
    change(here, app__data_folder=str(target))
    assert here.settings.values.app.data_folder == str(target)
    assert (target / MOVE_NOTE).exists()
    assert change(here, app__data_folder=str(tmp_path / "data")).status_code == 200  # stay, after all


def test_a_folder_is_not_prepared_for_chats_if_the_change_is_refused(
    house: House, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = house(TEXT)
    monkeypatch.delenv("OCTAVO_DATA_DIR")
    target = tmp_path / "new home"
    assert change(here, app__data_folder=str(target), server__port=70_000).status_code == 400
    assert not (target / MOVE_NOTE).exists()


@pytest.mark.parametrize("gpus", [(), ("an H200",)])
def test_the_page_learns_whether_this_machine_has_a_gpu_as_the_measured_one(
    house: House, monkeypatch: pytest.MonkeyPatch, gpus: tuple[str, ...]
) -> None:
    monkeypatch.setattr(panel, "look", lambda: SimpleNamespace(gpus=gpus))
    panel.has_gpu.cache_clear()
    try:
        assert house().get(PATH)["gpu"] is bool(gpus)
    finally:
        panel.has_gpu.cache_clear()


def test_the_measured_difference_is_that_of_the_benchmarks_own_file() -> None:
    folder = Path(__file__).parents[4] / "docs" / "benchmarks"
    shown = measured()
    run = json.loads((folder / shown["source"]).read_text(encoding="utf-8"))
    assert extract(run, shown["source"]) == shown, f"python -m octavo.app.ui.panels.measured writes {NAME} anew"
    for switch in SWITCHES:
        assert shown["switches"][switch]["single-stream"]["on"] > 0


def test_only_rows_that_differ_in_one_switch_count() -> None:
    def of(speed: float, paged: bool, fusion: bool) -> dict[str, Any]:
        row = {"workload": "w", "decode_tok_s": speed, "paged_attention": paged, "fusion": fusion, "model": "m"}
        return row

    rows = [of(100.0, True, True), of(10.0, True, False), of(50.0, False, True), of(5.0, False, False)]
    found = extract({"rows": rows, "device": "d", "date": "t"}, "f")["switches"]
    assert found == {"fusion": {"w": {"on": 100.0, "off": 10.0}}, "paged_attention": {"w": {"on": 100.0, "off": 50.0}}}


def test_what_was_chosen_for_this_run_stands_beside_what_the_file_says(house: House) -> None:
    here = house()
    here.host.load(here.settings.values, {"quantization": "int8-dynamic"})
    assert here.host.wait(240) == "ready"
    state = here.get(PATH)
    assert (row(state, "model.quantization")["value"], row(state, "model.quantization")["resolved"]) == (
        "none",
        "int8-dynamic",
    )
    assert "resolved" not in row(state, "model.revision")
