"""A chat of any length comes in while others use the file, whole or, as far as anybody sees, not at all."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from dataclasses import replace
from pathlib import Path

import pytest
from chatting import run, serving

from octavo.app.chat import intake as intake_module
from octavo.app.chat import store_file
from octavo.app.chat.exporting import chat_to_json
from octavo.app.chat.intake import Intake
from octavo.app.chat.store import ChatStore, StoreBusyError, StoreError
from octavo.app.chat.store_records import ChatRecord, Put
from octavo.app.chat.types import Attachment, Chat, ChatSettings, Message


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(intake_module, "PART_TURNS", 3)


def a_record(turns: int) -> ChatRecord:
    """A chain of turns, with another version beside each fifth one."""
    messages: list[Message] = []
    active: list[str] = []
    for number in range(turns):
        parent, role = (active[-1] if active else None), ("user", "assistant")[number % 2]
        turn = Message(f"m{number}", "c", role, f"lantern {number}", parent_id=parent)  # type: ignore[arg-type]
        active.append(turn.id)
        messages.append(turn)
        if number % 5 == 0:
            messages.append(replace(turn, id=f"v{number}", content=f"beacon {number}"))
    return ChatRecord(Chat("c", "Tower", 5.0, updated_s=7.0), ChatSettings("Be brief."), tuple(messages), tuple(active))


def whole(store: ChatStore, record: ChatRecord) -> Put:
    intake = store.intake(record)
    while (put := intake.step()) is None:
        pass
    return put


def begun(store: ChatStore, record: ChatRecord, steps: int) -> Intake:
    intake = store.intake(record)
    for _ in range(steps):
        assert intake.step() is None
    return intake


def rows(store: ChatStore) -> tuple[int, int, int]:
    with store._file.reading() as db:
        return tuple(  # type: ignore[return-value]
            db.execute(f"SELECT count(*) FROM {table}").fetchone()[0] for table in ("chats", "messages", "turn_words")
        )


def test_in_parts_comes_in_what_comes_in_at_once() -> None:
    parts, once, record = ChatStore(None), ChatStore(None), a_record(17)
    put = whole(parts, record)
    assert put == once.put(record)
    assert (put.created, put.turns) == (True, len(record.messages))
    got, wanted = parts.record("c"), once.record("c")
    assert got is not None
    assert wanted is not None
    assert chat_to_json(got) == chat_to_json(wanted)
    assert [m.content for m in parts.get_chat("c").messages] == [f"lantern {n}" for n in range(17)]  # type: ignore[union-attr]
    assert [hit.chat_id for hit in parts.search("beacon")] == ["c"]
    assert whole(parts, record).turns == 0
    longer = a_record(30)
    assert (added := whole(parts, longer)) == once.put(longer)
    assert (added.created, added.turns) == (False, len(longer.messages) - len(record.messages))
    assert parts.get_chat("c") == once.get_chat("c")


def test_a_chat_without_turns_comes_in() -> None:
    store = ChatStore(None)
    assert whole(store, a_record(0)) == Put("c", True, 0, {})
    assert [chat.title for chat in store.list_chats()] == ["Tower"]


def test_a_new_chat_is_seen_when_it_is_whole_and_what_was_left_of_one_is_replaced() -> None:
    store, record = ChatStore(None), a_record(12)
    begun(store, record, 2)  # as if the process had been killed here
    assert rows(store)[1] > 0
    assert (store.list_chats(), store.get_chat("c"), store.search("lantern"), store.search("tower")) == (
        [],
        None,
        [],
        [],
    )
    assert store.purge_deleted() == 0  # it may still be on its way
    assert whole(store, record).created
    assert rows(store) == (1, len(record.messages), len(record.messages))


def test_what_was_left_of_a_chat_is_erased_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(intake_module, "UNFINISHED_S", 0.0)
    store = ChatStore(None)
    begun(store, a_record(12), 2)
    assert store.purge_deleted() == 1
    assert rows(store) == (0, 0, 0)


def test_a_new_chat_that_is_abandoned_leaves_nothing_and_an_old_one_stays() -> None:
    store = ChatStore(None)
    begun(store, a_record(12), 2).abandon()
    assert rows(store) == (0, 0, 0)
    whole(store, a_record(5))
    begun(store, a_record(12), 3).abandon()
    assert len(store.get_chat("c").messages) >= 5  # type: ignore[union-attr]


def test_a_part_that_finds_the_file_busy_is_written_once(tmp_path: Path) -> None:
    store, record = ChatStore(tmp_path / "chats.sqlite3"), a_record(9)
    intake = begun(store, record, 1)
    other = sqlite3.connect(tmp_path / "chats.sqlite3", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(StoreBusyError):
        intake.step()
    other.execute("ROLLBACK")
    other.close()
    while (put := intake.step()) is None:
        pass
    assert put.turns == len(record.messages) == rows(store)[1]
    store.close()


def test_the_loop_and_other_chats_go_on_meanwhile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    threads: set[int] = set()
    words_of = intake_module.words_of

    def watched(content: str) -> str:
        threads.add(threading.get_ident())
        return words_of(content)

    monkeypatch.setattr(intake_module, "words_of", watched)

    async def test() -> None:
        async with serving(tmp_path) as (service, _):
            other = service.create_chat()
            record = a_record(90)
            coming = asyncio.create_task(service.put(record))
            written = 0
            while not coming.done():
                service.store.add_message(other.id, "user", "meanwhile")
                written += 1
                assert [chat.id for chat in service.list_chats() if chat.id != "c"] == [other.id]
                await asyncio.sleep(0)
            assert (await coming).turns == len(record.messages)
            assert written > 20  # in between the 66 parts
            assert {chat.id for chat in service.list_chats()} == {"c", other.id}
            assert threading.get_ident() not in threads

    run(test)
    assert threads


def test_a_chat_that_cannot_be_written_whole_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words_of = intake_module.words_of

    def full(content: str) -> str:
        if content == "lantern 40":
            raise StoreError("The disk is full.")
        return words_of(content)

    monkeypatch.setattr(intake_module, "words_of", full)

    async def test() -> None:
        async with serving(tmp_path) as (service, _):
            with pytest.raises(StoreError, match="full"):
                await service.put(a_record(90))
            assert rows(service.store) == (0, 0, 0)
            assert (await service.put(a_record(30))).created

    run(test)


def test_the_log_of_changes_gives_its_room_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_file, "LOG_BYTES", 100_000)
    store, log = ChatStore(tmp_path / "chats.sqlite3"), tmp_path / "chats.sqlite3-wal"
    chat = store.create_chat()
    large = Attachment("a.txt", "text/plain", 1, "x" * 5_000_000)
    store.add_message(chat.id, "user", "read this", attachments=[large])
    assert log.stat().st_size > 5_000_000
    for _ in range(2):
        store.create_chat()
    assert log.stat().st_size <= 100_000
    store.close()
