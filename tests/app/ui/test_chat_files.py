"""Exports are downloads with names that every system takes; an import says what became of each chat."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from fake_engine import FakeEngine
from fastapi import FastAPI
from fastapi.testclient import TestClient
from hosting import ready_host, settings

from octavo.app.chat.service import ChatService
from octavo.app.chat.store import ChatStore
from octavo.app.server import create_app
from octavo.app.ui.chat_files import add_routes
from octavo.app.ui.panels.deps import PanelDeps

BASE = "http://127.0.0.1:8642"


@pytest.fixture
def client(tmp_path: Path) -> Iterator[TestClient]:
    values = settings(tmp_path)
    store = ChatStore(None)
    app: FastAPI = create_app(values, ready_host(FakeEngine(), values), store)
    add_routes(app, PanelDeps(app.state.service, app.state.host, store, values))
    with TestClient(app, base_url=BASE) as client:
        yield client


@pytest.fixture
def service(client: TestClient) -> ChatService:
    return client.app.state.service  # type: ignore[attr-defined, no-any-return]


def a_chat(service: ChatService, title: str, *, temporary: bool = False) -> str:
    chat = service.create_chat(temporary=temporary)
    store = service.store_of(chat.id)
    store.add_message(chat.id, "user", f"about {title}")
    store.update_chat(chat.id, title=title)
    return chat.id


def test_one_chat_and_all_of_them_are_downloads(client: TestClient, service: ChatService) -> None:
    tower = a_chat(service, "灯塔: a/b")
    a_chat(service, "灯塔: a/b")
    secret = a_chat(service, "secret", temporary=True)
    one = client.get("/api/ui/chats/export", params={"chat": tower, "format": "markdown"})
    assert one.headers["content-type"] == "text/markdown; charset=utf-8"
    assert one.headers["content-disposition"].endswith("filename*=UTF-8''%E7%81%AF%E5%A1%94%20a%20b.md")
    assert one.text.startswith("# 灯塔: a/b")
    everything = client.get("/api/ui/chats/export").json()
    assert {chat["title"] for chat in everything["chats"]} == {"灯塔: a/b"}
    archive = client.get("/api/ui/chats/export", params={"format": "markdown"})
    names = zipfile.ZipFile(io.BytesIO(archive.content)).namelist()
    assert sorted(names) == ["灯塔 a b (2).md", "灯塔 a b.md"]
    assert client.get("/api/ui/chats/export", params={"chat": secret}).json()["chats"][0]["title"] == "secret"


def test_what_cannot_be_exported_is_said(client: TestClient) -> None:
    assert client.get("/api/ui/chats/export", params={"chat": "unknown"}).status_code == 404
    refused = client.get("/api/ui/chats/export", params={"format": "pdf"})
    assert refused.status_code == 400
    assert "json or markdown" in refused.json()["error"]["message"]


def test_an_import_says_what_became_of_each_chat(client: TestClient, service: ChatService) -> None:
    chat = a_chat(service, "kept")
    service.store.presets.create("Poet", "You rhyme.")
    everything = client.get("/api/ui/chats/export").json()
    assert [preset["name"] for preset in everything["presets"]] == ["Poet"]
    service.store.presets.delete(service.store.presets.list()[0].id)
    service.store.add_message(chat, "user", "newer")
    newer = client.get("/api/ui/chats/export").json()["chats"]
    service.delete_chat(chat)
    chats = [*everything["chats"], *everything["chats"], *newer, 3, {"messages": []}]
    answer = client.post("/api/ui/chats/import", json={"chats": chats, "presets": everything["presets"]}).json()
    assert (answer["added"], answer["updated"], answer["same"], answer["turns"]) == (1, 1, 1, 2)
    assert answer["failed"] == 2
    assert {fault["code"] for fault in answer["faults"]} == {"not_a_chat"}
    assert "no chat that can be read" in answer["faults"][0]["text"]
    assert [preset.name for preset in service.store.presets.list()] == ["Poet"]
    assert client.post("/api/ui/chats/import", json={"chats": {}}).status_code == 400


def test_wrong_sampling_values_in_a_file_do_not_spoil_the_chat(client: TestClient, service: ChatService) -> None:
    value = {"id": "c", "messages": [{"role": "user", "text": "hi"}], "sampling": {"temperature": "hot", "top_k": 5}}
    client.post("/api/ui/chats/import", json={"chats": [value]})
    assert service.sampling("c") == {"top_k": 5}
