"""A "copy of everything" comes back through the page's import, and a file that pretends to be one does no harm."""

from __future__ import annotations

import base64
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from fake_engine import FakeEngine
from fastapi import FastAPI
from fastapi.testclient import TestClient
from hosting import ready_host, settings

from octavo.app import data_files, paths
from octavo.app.chat.service import ChatService
from octavo.app.chat.store import ChatStore
from octavo.app.chat.types import ChatSettings
from octavo.app.server import create_app
from octavo.app.ui import chat_copies
from octavo.app.ui.chat_files import add_routes
from octavo.app.ui.panels.deps import PanelDeps

BASE = "http://127.0.0.1:8642"
IMPORT = "/api/ui/chats/import/database"


@pytest.fixture
def client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[TestClient]:
    monkeypatch.setattr(paths, "cache_dir", lambda: tmp_path / "cache")
    values = settings(tmp_path)
    store = ChatStore(None)
    app: FastAPI = create_app(values, ready_host(FakeEngine(), values), store)
    add_routes(app, PanelDeps(app.state.service, app.state.host, store, values))
    with TestClient(app, base_url=BASE) as client:
        yield client


@pytest.fixture
def service(client: TestClient) -> ChatService:
    return client.app.state.service  # type: ignore[attr-defined, no-any-return]


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """What the settings download of another Octavo: two chats, one of them with two versions, and a deleted one."""
    old = tmp_path / "old.sqlite3"
    store = ChatStore(old)
    poem = store.create_chat("Rhyme.").id
    store.update_chat(poem, title="Poem", folder="Verse", tags=["red", "blue"], pinned=True)
    store.set_chat_settings(poem, ChatSettings("Rhyme.", sampling={"temperature": 0.5}))
    turn = store.add_message(poem, "user", "roses")
    first = store.add_message(poem, "assistant", "are red")
    store.add_message(poem, "assistant", "are blue", beside_id=first.id)
    store.show(poem, first.id)
    store.add_message(store.create_chat().id, "user", "other")
    gone = store.create_chat().id
    store.add_message(gone, "user", "secret")
    store.delete_chat(gone)
    store.presets.create("Poet", "You rhyme.", {"top_k": 5})
    assert turn.id != first.id
    target = tmp_path / "copy.sqlite3"
    data_files.copy_database(old, target)
    store.close()
    return target


def send(client: TestClient, data: bytes, piece: int = 40_000) -> str:
    name = None
    for at in range(0, len(data), piece):
        body = {"copy": name, "data": base64.b64encode(data[at : at + piece]).decode()}
        name = client.post(IMPORT, json=body).json()["copy"]
    assert name is not None
    return name


def take(client: TestClient, data: bytes) -> dict[str, Any]:
    name = send(client, data)
    answer = client.post(f"{IMPORT}/chats", json={"copy": name})
    assert client.post(f"{IMPORT}/chats", json={"copy": name}).status_code == 404  # it is done with
    assert not [*(paths.cache_dir() / "import").iterdir()]
    return answer.json()  # type: ignore[no-any-return]


def test_chats_come_back_with_all_they_had(client: TestClient, service: ChatService, copy: Path) -> None:
    answer = take(client, copy.read_bytes())
    assert {name: answer[name] for name in ("added", "updated", "same", "failed", "done", "total")} == {
        **dict.fromkeys(("added", "done", "total"), 2),
        **dict.fromkeys(("updated", "same", "failed"), 0),
    }
    poem = next(chat for chat in service.list_chats() if chat.title == "Poem")
    assert (poem.folder, poem.tags, poem.pinned) == ("Verse", ("red", "blue"), True)
    chat = service.get_chat(poem.id)
    assert chat is not None
    assert [(turn.content, turn.version, turn.versions) for turn in chat.messages] == [
        ("roses", 1, 1),
        ("are red", 1, 2),
    ]
    assert service.sampling(poem.id) == {"temperature": 0.5}
    assert [(preset.name, preset.sampling) for preset in service.store.presets.list()] == [("Poet", {"top_k": 5})]


def test_what_is_there_stays_and_is_counted(client: TestClient, service: ChatService, copy: Path) -> None:
    take(client, copy.read_bytes())
    poem = next(chat.id for chat in service.list_chats() if chat.title == "Poem")
    service.update_chat(poem, title="My poem")
    answer = take(client, copy.read_bytes())
    assert (answer["added"], answer["same"]) == (0, 2)
    assert "My poem" in {chat.title for chat in service.list_chats()}


def test_many_chats_take_several_answers(
    client: TestClient, service: ChatService, copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chat_copies, "ANSWER_S", 0.0)
    name = send(client, copy.read_bytes())
    assert client.post(f"{IMPORT}/chats", json={"copy": name}).json() == {
        **dict.fromkeys(("added", "updated", "same", "turns", "failed", "done"), 0),
        **{"faults": [], "total": 2},
    }
    monkeypatch.setattr(chat_copies, "ANSWER_S", 5.0)
    assert client.post(f"{IMPORT}/chats", json={"copy": name}).json()["done"] == 2


def run(path: Path, *statements: str) -> bytes:
    with closing(sqlite3.connect(path)) as db:
        db.execute("PRAGMA journal_mode = DELETE")
        for statement in statements:
            db.execute(statement)
        db.commit()
    return path.read_bytes()


@pytest.mark.parametrize(
    ("harm", "reason"),
    [
        (lambda path: b"PK\x03\x04 no database", "no SQLite database"),
        (lambda path: path.read_bytes()[:5000], "damaged"),
        (lambda path: run(path, "PRAGMA user_version = 99"), "a newer Octavo"),
        (lambda path: run(path, "PRAGMA user_version = 0"), "did not write it"),
        (lambda path: run(path, "CREATE VIEW a AS SELECT 1"), "did not write it"),
        (lambda path: run(path, "CREATE TRIGGER a AFTER INSERT ON chats BEGIN SELECT 1; END"), "did not write it"),
        (lambda path: run(path, "ALTER TABLE chats ADD COLUMN more AS (zeroblob(9))"), "did not write it"),
        (lambda path: run(path, "DROP TABLE messages"), "did not write it"),
    ],
)
def test_a_file_that_is_none_of_ours_is_refused(
    client: TestClient, service: ChatService, copy: Path, harm: Callable[[Path], bytes], reason: str
) -> None:
    error = take(client, harm(copy))["error"]
    assert "This is no file of chats that can be read" in error["message"]
    assert reason in error["message"]
    assert service.list_chats() == []


def test_a_chat_whose_values_are_damaged_does_not_spoil_the_others(
    client: TestClient, service: ChatService, copy: Path
) -> None:
    harm = "UPDATE chats SET tags = '{', title = x'ff' WHERE title = 'Poem'"
    answer = take(client, run(copy, harm, "UPDATE presets SET sampling = '['"))
    assert (answer["added"], answer["failed"]) == (1, 1)
    assert "its values are damaged" in answer["faults"][0]["text"]


def test_a_copy_that_never_ends_is_cut_off(client: TestClient, copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat_copies, "LARGEST_BYTES", 50_000)
    name = client.post(IMPORT, json={"data": base64.b64encode(bytes(40_000)).decode()}).json()["copy"]
    more = client.post(IMPORT, json={"copy": name, "data": base64.b64encode(bytes(40_000)).decode()})
    assert more.status_code == 413
    others = [client.post(IMPORT, json={"data": ""}).json()["copy"] for _ in range(chat_copies.MOST_AT_ONCE)]
    assert client.post(IMPORT, json={"copy": name, "data": ""}).status_code == 404  # given up for newer ones
    assert len([*(paths.cache_dir() / "import").iterdir()]) == len(others)
    assert client.post(IMPORT, json={"data": "?"}).status_code == 400
