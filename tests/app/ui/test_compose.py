"""What the page asks for while a message is written, and what the server makes of the message when it is sent."""

from __future__ import annotations

import json
import time
from base64 import b64encode
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fake_engine import FakeEngine
from fastapi import FastAPI
from fastapi.testclient import TestClient
from hosting import GatedLoads, settings

from octavo.app.chat.store import ChatStore
from octavo.app.server import create_app
from octavo.app.ui.live import PATH, add_live_route
from octavo.app.ui.panels import presets
from octavo.app.ui.panels.deps import PanelDeps

BASE = "http://127.0.0.1:7860"
ADDRESS = f"ws://127.0.0.1:7860{PATH}"
COMPOSE, PRESETS = "/api/ui/compose", "/api/ui/presets"
WINDOW = 1024

pytestmark = pytest.mark.timeout(240)  # a message that never comes


class House:
    """The server with its routes, a tab's socket, and the engine behind them."""

    def __init__(self, client: TestClient, loads: GatedLoads, socket: Any) -> None:
        self.client = client
        self.loads = loads
        self._socket = socket

    @property
    def engine(self) -> FakeEngine:
        return self.loads.made[-1]

    def post(self, path: str, **body: Any) -> dict[str, Any]:
        answer = self.client.post(path, json=body)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def attach(self, name: str, data: bytes) -> dict[str, Any]:
        return self.post(f"{COMPOSE}/files", name=name, data=b64encode(data).decode())

    def measure(self, chat: str | None = None, text: str = "", **more: Any) -> dict[str, Any]:
        return self.post(f"{COMPOSE}/measure", chat=chat, text=text, **more)

    def send(self, text: str, *, chat: str | None = None, nonce: str = "n1", **more: Any) -> dict[str, Any]:
        """The server's answer to a message: sent or refused."""
        self._socket.send_text(json.dumps({"k": "send", "chat": chat, "text": text, "nonce": nonce, **more}))
        while True:
            for message in json.loads(self._socket.receive_text()):
                if message["k"] in ("sent", "refused") and message["nonce"] == nonce:
                    return message

    def wait_for_reply(self) -> None:
        service = self.client.app.state.service  # type: ignore[attr-defined]
        while not self.engine.is_idle or any(chat.generating for chat in service.list_chats()):
            time.sleep(0.01)


@pytest.fixture
def loads() -> GatedLoads:
    return GatedLoads(lambda: FakeEngine(context_length=WINDOW, generation_defaults={"temperature": 0.6, "top_k": 20}))


@pytest.fixture
def house(tmp_path: Path, loads: GatedLoads) -> Iterator[House]:
    values = settings(tmp_path, sampling__top_p=0.8)
    host = loads.host()
    app: FastAPI = create_app(values, host, ChatStore(None))
    service = app.state.service
    presets.add_routes(app, PanelDeps(service, host, service.store, values))
    add_live_route(app, service, host, values, "build")
    loads.open()
    host.load(values.values)
    assert host.wait(240) == "ready"
    with (
        TestClient(app, base_url=BASE) as client,
        client.websocket_connect(ADDRESS, headers={"origin": BASE}) as socket,
    ):
        yield House(client, loads, socket)


def test_a_file_is_read_shown_with_its_tokens_and_sent_with_the_message(house: House) -> None:
    file = house.attach("C:\\notes\\plan.md", "# Plan\r\n山".encode())
    assert (file["name"], file["kind"], file["tokens"], file["characters"]) == ("plan.md", "text", 10, 8)
    assert house.client.get(f"{COMPOSE}/files/{file['id']}").json()["text"] == "# Plan\n山"
    sent = house.send("What is planned?", files=[file["id"]])
    assert sent["k"] == "sent"
    house.wait_for_reply()
    assert "File: plan.md\n```\n# Plan\n山\n```\n\nWhat is planned?" in house.engine.prompts[-1]
    turn = house.client.app.state.service.get_chat(sent["chat"]).messages[0]  # type: ignore[attr-defined]
    assert turn.content == "What is planned?"
    assert (turn.attachments[0].name, turn.attachments[0].tokens) == ("plan.md", 10)
    shown = house.client.get(f"{COMPOSE}/sent", params={"message": turn.id, "at": 0}).json()
    assert shown["text"] == "# Plan\n山"
    assert house.client.get(f"{COMPOSE}/sent", params={"message": turn.id, "at": 1}).status_code == 404
    assert house.client.get(f"{COMPOSE}/files/{file['id']}").status_code == 404  # it was sent


def test_a_file_that_cannot_be_read_is_refused_by_a_name_for_the_page_s_words(house: House) -> None:
    refused = house.attach("photo.png", b"\x89PNG\r\n\x1a\n\x00\x00")["refused"]
    assert refused["code"] == "file_other"
    assert refused["values"] == {"name": "photo.png", "what": "picture"}
    assert refused["message"].startswith("photo.png is a picture")
    answer = house.client.post(f"{COMPOSE}/files", json={"name": "a", "data": "no base64!"})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "data")


def test_a_lost_file_stops_the_message_and_nothing_is_stored(house: House) -> None:
    refused = house.send("hello", files=["never-there"])
    assert (refused["k"], refused["code"]) == ("refused", "file_lost")
    assert house.client.app.state.service.list_chats() == []  # type: ignore[attr-defined]
    assert house.measure(text="hello", files=["never-there"])["lost"] == ["never-there"]


def test_the_same_sending_twice_needs_its_files_once(house: House) -> None:
    file = house.attach("a.txt", b"alpha")
    first = house.send("read it", files=[file["id"]])
    house.wait_for_reply()
    again = house.send("read it", files=[file["id"]])
    assert again["k"] == "sent"
    assert again["chat"] == first["chat"]
    assert len(house.engine.prompts) == 1


def test_the_meter_says_beforehand_what_the_window_will_hold(house: House) -> None:
    empty = house.measure()["reading"]
    assert (empty["limit"], empty["draft"], empty["left_out"]) == (WINDOW, 0, 0)
    file = house.attach("a.txt", b"x" * 200)
    full = house.measure(text="hello", files=[file["id"]])["reading"]
    assert full["draft"] == len("File: a.txt\n```\n") + 200 + len("\n```\n\n") + len("hello")
    house.send("hello", files=[file["id"]])
    house.wait_for_reply()
    prompt, _ = house.engine.submitted[-1]
    assert len(prompt) == full["used"]


def test_a_message_too_long_for_the_window_is_refused_before_it_is_stored(house: House) -> None:
    text = "z" * WINDOW
    assert house.measure(text=text)["reading"]["too_long"]
    refused = house.send(text)
    assert (refused["code"], refused["values"]["limit"]) == ("too_long", WINDOW)
    assert house.client.app.state.service.list_chats() == []  # type: ignore[attr-defined]
    assert house.engine.prompts == []


def test_a_chat_may_stop_at_the_end_of_the_window_or_leave_out_its_oldest_turns(house: House) -> None:
    own = {"system": "Be brief.", "options": {"overflow": "stop"}}
    chat = house.send("a" * 300, settings=own)["chat"]
    house.wait_for_reply()
    measured = house.measure(chat, "b" * 300)
    assert measured["overflow"] == "stop"
    reading = measured["reading"]
    assert reading["left_out"] == 1
    assert reading["used"] == reading["before"] + reading["draft"] > 600  # nothing goes, so all of it is in the way
    refused = house.send("b" * 300, chat=chat, nonce="n2")
    assert (refused["k"], refused["code"]) == ("refused", "context_full")
    house.post(f"{PRESETS}/chat", chat=chat, settings={**own, "options": {}})
    assert house.measure(chat, "b" * 300)["reading"]["used"] < 600
    assert house.send("b" * 300, chat=chat, nonce="n2")["k"] == "sent"
    house.wait_for_reply()
    prompt = house.engine.prompts[-1]
    assert "Be brief." in prompt
    assert "aaa" not in prompt


def test_a_new_chat_begins_with_the_settings_it_was_given(house: House) -> None:
    own = {"system": "Speak like a sailor.", "sampling": {"temperature": 0.1, "nonsense": 3}}
    chat = house.send("hello", settings=own)["chat"]
    house.wait_for_reply()
    prompt, params = house.engine.prompts[-1], house.engine.submitted[-1][1]
    assert prompt.startswith("<|im_start|>system\nSpeak like a sailor.")
    assert (params.temperature, params.top_k, params.top_p) == (0.1, 20, 0.8)
    shown = house.client.get(PRESETS, params={"chat": chat}).json()["settings"]
    assert shown == {"system": "Speak like a sailor.", "preset": None, "sampling": {"temperature": 0.1}, "options": {}}


def test_the_panel_shows_what_a_value_is_and_whose_word_that_is(house: House) -> None:
    shown = house.client.get(PRESETS).json()
    fields = {field["name"]: (field["value"], field["source"]) for field in shown["fields"]}
    assert fields["temperature"] == (0.6, "model")
    assert fields["top_p"] == (0.8, "settings")
    assert fields["min_p"] == (0.0, "octavo")
    assert (shown["model"], shown["context"]) == ("fake-model", WINDOW)
    assert house.client.get(PRESETS, params={"chat": "nosuch"}).status_code == 404


def test_a_wrong_value_is_refused_and_changes_nothing(house: House) -> None:
    chat = house.send("hello")["chat"]
    house.wait_for_reply()
    answer = house.client.post(f"{PRESETS}/chat", json={"chat": chat, "settings": {"sampling": {"top_p": 7}}})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "top_p"
    assert house.client.get(PRESETS, params={"chat": chat}).json()["settings"]["sampling"] == {}


def test_presets_are_kept_renamed_updated_and_deleted(house: House) -> None:
    kept = house.post(PRESETS, name="  Pirate \n talk ", system="Arr.", sampling={"temperature": 1.2})
    preset = kept["preset"]
    assert preset["name"] == "Pirate talk"
    twice = house.client.post(PRESETS, json={"name": "Pirate talk"})
    assert (twice.status_code, twice.json()["error"]["code"]) == (400, "preset_name")
    assert house.client.post(PRESETS, json={"name": " "}).status_code == 400
    changed = house.post(PRESETS, id=preset["id"], name="Pirate", system="Ahoy.", sampling={})
    assert changed["presets"] == [{"id": preset["id"], "name": "Pirate", "system": "Ahoy.", "sampling": {}}]
    chat = house.send("hello", settings={"preset": preset["id"], "system": "Ahoy."})["chat"]
    house.wait_for_reply()
    measured = house.measure(chat)
    assert (measured["preset"], measured["own"], measured["changed"]) == ("Pirate", True, False)
    house.post(f"{PRESETS}/chat", chat=chat, settings={"preset": preset["id"], "system": "Ahoy!"})
    assert house.measure(chat)["changed"] is True
    assert house.post(f"{PRESETS}/delete", id=preset["id"]) == {"presets": []}
    assert house.measure(chat)["preset"] is None  # the chat keeps what it took from it
    assert house.client.post(PRESETS, json={"id": preset["id"], "name": "Gone"}).status_code == 404


def test_without_a_model_files_are_read_and_nothing_is_measured(house: House) -> None:
    house.client.app.state.host.unload()  # type: ignore[attr-defined]
    assert house.client.app.state.host.wait(240) == "empty"  # type: ignore[attr-defined]
    assert house.attach("a.txt", b"alpha")["tokens"] is None
    assert house.measure(text="hello")["reading"] is None
    fields = {field["name"]: field for field in house.client.get(PRESETS).json()["fields"]}
    assert (fields["temperature"]["value"], fields["temperature"]["source"]) == (0.7, "octavo")


def test_another_version_of_a_turn_keeps_its_files(house: House) -> None:
    file = house.attach("a.txt", b"alpha")
    chat = house.send("read it", files=[file["id"]])["chat"]
    house.wait_for_reply()
    first = house.client.app.state.service.get_chat(chat).messages[0]  # type: ignore[attr-defined]
    house.send("read it again", chat=chat, nonce="n2", beside=first.id)
    house.wait_for_reply()
    assert "File: a.txt\n```\nalpha\n```\n\nread it again" in house.engine.prompts[-1]
    second = house.client.app.state.service.get_chat(chat).messages[0]  # type: ignore[attr-defined]
    assert (second.version, second.versions, len(second.attachments)) == (2, 2, 1)
