"""The tab's WebSocket, spoken to as the page speaks to it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fake_engine import THINKING, FakeEngine, last_user_text
from fastapi import FastAPI, WebSocketDisconnect
from fastapi.testclient import TestClient
from hosting import GatedLoads, settings

from octavo.app.chat.store import ChatStore
from octavo.app.server import create_app
from octavo.app.ui.hub import Hub
from octavo.app.ui.live import LONGEST_TEXT, PATH, add_live_route

BASE = "http://127.0.0.1:7860"
pytestmark = pytest.mark.timeout(240)  # a message that never comes

ADDRESS = f"ws://127.0.0.1:7860{PATH}"


class Speaker:
    """A tab without a page: sends commands, and collects messages until the wanted one."""

    def __init__(self, socket: Any) -> None:
        self.socket = socket
        self.seen: list[dict[str, Any]] = []

    def say(self, **command: Any) -> None:
        self.socket.send_text(json.dumps(command))

    def until(self, kind: str, **wanted: Any) -> dict[str, Any]:
        for _ in range(300):
            for at, message in enumerate(self.seen):
                if message["k"] == kind and all(message.get(key) == value for key, value in wanted.items()):
                    del self.seen[: at + 1]
                    return message
            self.seen.extend(json.loads(self.socket.receive_text()))
        raise AssertionError(f"no {kind}")

    def ended(self) -> dict[str, Any]:
        """What is said about the reply that has ended: by itself, or with the turn if it ended before it was shown."""
        while True:
            for at, message in enumerate(self.seen):
                turns = message.get("turns", [message.get("turn")] if "turn" in message else [message])
                for turn in turns:
                    if turn.get("status") == "complete":
                        del self.seen[: at + 1]
                        return turn
            self.seen.extend(json.loads(self.socket.receive_text()))


@pytest.fixture
def loads() -> GatedLoads:
    def answer(prompt: str) -> str:
        return f"<think>Hm.</think>**{last_user_text(prompt)}**"

    return GatedLoads(lambda: FakeEngine(answer, template=THINKING))


@pytest.fixture
def client(tmp_path: Path, loads: GatedLoads) -> Iterator[TestClient]:
    values = settings(tmp_path)
    host = loads.host()
    app: FastAPI = create_app(values, host, ChatStore(None))
    add_live_route(app, app.state.service, host, values, "build-1")
    host.load(values.values)
    with TestClient(app, base_url=BASE) as client:
        yield client


@pytest.fixture
def tab(client: TestClient, loads: GatedLoads) -> Iterator[Speaker]:
    loads.open()
    with client.websocket_connect(ADDRESS, headers={"origin": BASE}) as socket:
        yield Speaker(socket)


def test_a_tab_first_hears_of_the_build_the_chats_and_the_model(tab: Speaker) -> None:
    assert tab.until("hello") == {"k": "hello", "build": "build-1", "theme": "system"}
    assert tab.until("list")["chats"] == []
    info = tab.until("model", state="ready")["info"]
    assert (info["name"], info["device"], info["context"]) == ("fake-model", "cpu", 4096)


def test_a_first_message_makes_a_chat_and_the_reply_streams(tab: Speaker) -> None:
    tab.say(k="send", chat=None, text="Hello", nonce="n1")
    sent = tab.until("sent", nonce="n1")
    assert sent["created"]
    about = tab.ended()
    assert about["stats"]["reason"] == "stop"
    assert about["thinking"]["over"]
    tab.say(k="source", id=about["id"], nonce="n2")
    assert tab.until("source", nonce="n2")["text"] == "**Hello**"  # without the reasoning
    tab.say(k="open", chat=sent["chat"])
    question, reply = tab.until("chat", chat=sent["chat"])["turns"]
    assert question["text"] == "Hello"
    assert reply["answer"] == ['<p dir="auto"><strong>Hello</strong></p>']
    assert reply["thought"] == ['<p dir="auto">Hm.</p>']


def test_the_same_sending_twice_is_one_message(tab: Speaker, loads: GatedLoads) -> None:
    tab.say(k="send", chat=None, text="Hello", nonce="n1")
    chat = tab.until("sent")["chat"]
    tab.ended()
    loads.made[0].hold()  # the end shall come after both answers
    tab.say(k="send", chat=chat, text="Again", nonce="n2")
    tab.say(k="send", chat=chat, text="Again", nonce="n2")
    tab.until("sent")
    tab.until("sent")
    loads.made[0].release()
    tab.ended()
    tab.say(k="open", chat=chat)
    assert [turn["role"] for turn in tab.until("chat")["turns"]] == ["user", "assistant"] * 2


def test_a_first_message_whose_answer_was_lost_makes_no_second_chat(tab: Speaker) -> None:
    tab.say(k="send", chat=None, text="Hello", nonce="n1")
    first = tab.until("sent")["chat"]
    tab.say(k="open", chat=None)
    tab.say(k="send", chat=None, text="Hello", nonce="n1")
    assert tab.until("sent")["chat"] == first


def test_a_first_message_that_goes_out_late_leaves_the_tab_where_its_reader_is(tab: Speaker) -> None:
    tab.say(k="send", chat=None, text="Hello", nonce="n1")
    shown = tab.until("sent")["chat"]
    tab.ended()
    tab.say(k="open", chat=shown)
    tab.until("chat", chat=shown)
    tab.say(k="send", chat=None, text="It waited", nonce="n2")
    assert tab.until("sent", nonce="n2")["chat"] != shown
    tab.say(k="send", chat=shown, text="Again", nonce="n3")
    assert tab.until("turn")["turn"]["text"] == "Again"


def test_the_next_server_knows_a_first_message_that_was_stored_before(client: TestClient, tab: Speaker) -> None:
    tab.say(k="send", chat=None, text="Hello", nonce="n1")
    first = tab.until("sent")["chat"]
    state = client.app.state  # type: ignore[attr-defined]
    later = Hub(state.service, state.host, state.settings)
    assert asyncio.run(later.begin("n1", again=True)) == first
    assert asyncio.run(later.begin("n2", again=True)) != first  # this one was not


@pytest.mark.parametrize("text", ["", "  \n "])
def test_an_empty_message_is_refused_and_leaves_no_chat(tab: Speaker, text: str) -> None:
    tab.say(k="send", chat=None, text=text, nonce="n1")
    refused = tab.until("refused", nonce="n1")
    assert refused["message"] == "The message is empty."
    tab.say(k="send", chat=None, text="x" * (LONGEST_TEXT + 1), nonce="n2")
    assert "characters at most" in tab.until("refused", nonce="n2")["message"]
    tab.say(k="open", chat="nosuchchat")
    assert tab.until("gone")["chat"] == "nosuchchat"


def test_a_name_whose_first_message_was_refused_can_be_used_again(tab: Speaker) -> None:
    tab.say(k="send", chat=None, text="  ", nonce="n1")
    tab.until("refused", nonce="n1")
    tab.say(k="send", chat=None, text="Hello", nonce="n1")
    assert tab.until("sent", nonce="n1")["created"]
    assert tab.ended()["status"] == "complete"


def test_a_refused_repetition_leaves_the_chat_it_would_have_made(tab: Speaker) -> None:
    tab.say(k="send", chat=None, text="Hello", nonce="n1")
    chat = tab.until("sent")["chat"]
    tab.ended()
    tab.say(k="send", chat=None, text="", nonce="n1")
    tab.until("refused", nonce="n1")
    tab.say(k="open", chat=chat)
    assert len(tab.until("chat", chat=chat)["turns"]) == 2


def test_an_unexpected_failure_of_a_first_message_leaves_no_chat(
    tab: Speaker, client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(*_: object, **__: object) -> None:
        raise ValueError

    service = client.app.state.service  # type: ignore[attr-defined]
    with monkeypatch.context() as patched:
        patched.setattr(service, "send", fail)
        tab.say(k="send", chat=None, text="Hello", nonce="n1")
        assert "ValueError" in tab.until("refused", nonce="n1")["message"]
    assert service.list_chats() == []
    tab.say(k="send", chat=None, text="Hello", nonce="n1")
    tab.until("sent", nonce="n1")


def test_half_a_surrogate_pair_in_a_name_does_not_end_the_connection(tab: Speaker) -> None:
    half = "n\ud800"
    tab.say(k="send", chat=None, text=" ", nonce=half)
    tab.until("refused", nonce="n\ufffd")
    tab.say(k="send", chat=half, text=" ", nonce=[half])  # no name at all
    tab.say(k="update", chat=[half], title="x" * 10)
    tab.say(k="retry", chat=[half], nonce=[half])
    assert tab.until("refused", what="retry")["nonce"] is None
    tab.say(k="send", chat=None, text="Hello", nonce=half)
    tab.until("sent", nonce="n\ufffd")


def test_half_a_surrogate_pair_in_a_new_chats_settings_becomes_the_replacement_character(
    tab: Speaker, client: TestClient
) -> None:
    half = "x\ud800"
    own = {"system": half, "sampling": {"stop": [half]}, "preset": half, half: half}
    tab.say(k="send", chat=None, text="Hello", nonce="n1", settings=own)
    chat = tab.until("sent", nonce="n1")["chat"]
    kept = client.app.state.service.store_of(chat).get_chat_settings(chat)  # type: ignore[attr-defined]
    assert (kept.system, kept.sampling["stop"], kept.preset) == ("x\ufffd", ["x\ufffd"], "x\ufffd")


@pytest.mark.parametrize(
    ("own", "says"),
    [
        ({"system": "x" * 300_000}, "A system text can have 200,000 characters at most."),
        ([], "settings is []; it must be an object."),
        ({"preset": 5}, "preset is 5; it must be a text."),
        ({"sampling": [1]}, "sampling is [1]; it must be an object."),
    ],
)
def test_settings_that_will_not_do_are_refused_in_their_own_words_and_begin_no_chat(
    tab: Speaker, client: TestClient, own: object, says: str
) -> None:
    tab.say(k="send", chat=None, text="Hello", nonce="n1", settings=own)
    assert tab.until("refused", nonce="n1")["message"] == says
    assert client.app.state.service.list_chats() == []  # type: ignore[attr-defined]


def test_files_that_are_no_list_are_none(tab: Speaker) -> None:
    tab.say(k="send", chat=None, text="Hello", nonce="n1", files=5)
    tab.until("sent", nonce="n1")


def test_a_stale_tab_cannot_send_into_turns_it_has_not_seen(tab: Speaker) -> None:
    tab.say(k="send", chat=None, text="Hello", nonce="n1")
    chat = tab.until("sent")["chat"]
    tab.ended()
    tab.say(k="send", chat=chat, text="Late", nonce="n2", after="an-older-turn")
    assert "newer turns" in tab.until("refused", nonce="n2")["message"]


def test_renaming_and_deleting_reach_every_tab(tab: Speaker, client: TestClient) -> None:
    tab.say(k="send", chat=None, text="Hello", nonce="n1")
    chat = tab.until("sent")["chat"]
    tab.ended()
    with client.websocket_connect(ADDRESS, headers={"origin": BASE}) as socket:
        other = Speaker(socket)
        assert other.until("list")["chats"][0][:2] == [chat, "Hello"]
        tab.say(k="update", chat=chat, title="  Greeting ")
        assert other.until("listed")["chat"][:2] == [chat, "Greeting"]
        tab.say(k="delete", chat=chat)
        assert other.until("unlisted") == {"k": "unlisted", "chat": chat}
        assert tab.until("gone")["chat"] == chat


def test_noise_on_the_socket_is_ignored(tab: Speaker) -> None:
    for noise in (
        "",
        "{",
        "[" * 100_000,
        "[]",
        "null",
        '{"k":"nosuch"}',
        '{"k":["send"]}',
        '{"k":"send"}',
        '{"k":"open","have":[1]}',
    ):
        tab.socket.send_text(noise)
    tab.socket.send_bytes(b"\x00")
    tab.say(k="send", chat=None, text="Still here", nonce="n1")
    tab.until("sent", nonce="n1")


def test_a_load_is_followed_cancelled_and_begun_again(client: TestClient, loads: GatedLoads) -> None:
    with client.websocket_connect(ADDRESS, headers={"origin": BASE}) as socket:
        tab = Speaker(socket)
        progress = tab.until("model", state="loading")["progress"]
        assert progress["stage"] in ("starting", "finding", "checking", "weights")
        tab.say(k="cancel")
        assert tab.until("model", state="empty")["configured"] == "starter"
        tab.say(k="load")
        tab.until("model", state="loading")
        loads.open()
        tab.until("model", state="ready")


def test_a_tab_is_told_which_model_its_load_would_bring(client: TestClient, loads: GatedLoads) -> None:
    """After a model was chosen for this run it is that one, not config.yaml's."""
    loads.open()
    state = client.app.state  # type: ignore[attr-defined]
    with client.websocket_connect(ADDRESS, headers={"origin": BASE}) as socket:
        tab = Speaker(socket)
        state.host.load(state.settings.values, {"id": "org/chosen"})
        tab.until("model", state="ready", id="org/chosen")
        state.host.unload()
        assert tab.until("model", state="empty")["configured"] == "org/chosen"
        tab.say(k="load")
        tab.until("model", state="ready", id="org/chosen")


@pytest.fixture
def slow_tab(client: TestClient, loads: GatedLoads, monkeypatch: pytest.MonkeyPatch) -> Iterator[Speaker]:
    """A tab that has the first twenty tokens of a reply, at which the model waits."""
    monkeypatch.setattr(loads, "_make", lambda: FakeEngine(lambda _: "word " * 40))
    loads.open()
    with client.websocket_connect(ADDRESS, headers={"origin": BASE}) as socket:
        tab = Speaker(socket)
        tab.until("model", state="ready")
        loads.made[0].hold(after=20)
        tab.say(k="send", chat=None, text="Go on", nonce="n1")
        reply = tab.until("p")["id"]
        text = ""
        while len(text) < 20:
            tab.say(k="source", id=reply, nonce="n2")
            text = tab.until("source")["text"]
        yield tab


def pieces_until_the_end(tab: Speaker) -> list[list[str]]:
    """The kinds of messages about the chat in each frame that has text, up to the one that says the end."""
    frames: list[list[str]] = []
    while True:
        frame = json.loads(tab.socket.receive_text())
        kinds = [message["k"] for message in frame if message["k"] != "listed"]
        if "p" in kinds:
            frames.append(kinds)
        if any(message.get("status") == "complete" for message in frame):
            return frames


def test_text_waits_until_a_tab_has_drawn_what_it_got_but_the_end_does_not(
    slow_tab: Speaker, loads: GatedLoads
) -> None:
    slow_tab.seen.clear()
    slow_tab.say(k="drawn")
    loads.made[0].hold(after=60)
    slow_tab.until("p")  # not drawn, as far as anybody says
    loads.made[0].release()
    assert pieces_until_the_end(slow_tab) == [["p", "about"]]


def test_a_tab_that_never_says_what_it_has_drawn_gets_everything(slow_tab: Speaker, loads: GatedLoads) -> None:
    slow_tab.seen.clear()
    for count in (60, 100, 140):
        loads.made[0].hold(after=count)
        slow_tab.until("p")
    loads.made[0].release()
    assert pieces_until_the_end(slow_tab)


def test_other_web_pages_cannot_open_the_socket(client: TestClient) -> None:
    with (
        pytest.raises(WebSocketDisconnect) as refused,
        client.websocket_connect(ADDRESS, headers={"origin": "https://evil.example"}) as socket,
    ):
        socket.receive_text()
    assert refused.value.reason == "origin_not_allowed"
