"""Chats on disk survive whatever happens around them."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import pytest

from octavo.app.chat import store as store_module
from octavo.app.chat.store import ChatStore, StoreError
from octavo.app.chat.types import ReplyStats

STATS = ReplyStats(10.0, 0.5, 100, 64, 7, "stop", "<|im_end|>", 2)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "chats.sqlite3"


@pytest.fixture
def store(file: Path) -> ChatStore:
    return ChatStore(file)


def with_reply(store: ChatStore) -> tuple[str, str]:
    chat = store.create_chat()
    turn = store.add_message(chat.id, "user", "hello")
    reply = store.add_message(chat.id, "assistant", "", parent_id=turn.id, status="streaming")
    return chat.id, reply.id


def test_turns_come_back_in_order_after_reopening(store: ChatStore, file: Path) -> None:
    chat = store.create_chat("Be brief.")
    turn = store.add_message(chat.id, "user", "héllo 山 🎉\n\ttabs")
    reply = store.add_message(chat.id, "assistant", "", parent_id=turn.id, status="streaming", model="m")
    store.finish_reply(reply.id, "complete", "Hi", "thoughts", token_ids=(1, 2, 70000), stats=STATS)
    store.close()
    again = ChatStore(file).get_chat(chat.id)
    assert again is not None
    assert [m.role for m in again.messages] == ["system", "user", "assistant"]
    assert again.messages[1].content == "héllo 山 🎉\n\ttabs"
    last = again.messages[2]
    assert (last.content, last.reasoning, last.status, last.model) == ("Hi", "thoughts", "complete", "m")
    assert last.token_ids == (1, 2, 70000)
    assert last.stats == STATS


@pytest.mark.skipif(os.name != "posix", reason="permissions are other things on Windows")
def test_only_the_user_can_read_the_chats(store: ChatStore, file: Path) -> None:
    store.create_chat()
    for path in file.parent.glob("chats.sqlite3*"):
        assert path.stat().st_mode & 0o077 == 0


def test_a_finished_reply_cannot_be_changed(store: ChatStore) -> None:
    _, reply = with_reply(store)
    store.finish_reply(reply, "complete", "all of it")
    assert not store.save_partial(reply, "all of it and more", "")
    assert not store.save_partial(reply, "", "")
    stored = store.finish_reply(reply, "stopped", "")
    assert stored is not None
    assert (stored.content, stored.status) == ("all of it", "complete")


def test_a_partial_save_never_shortens_the_text(store: ChatStore) -> None:
    _, reply = with_reply(store)
    assert store.save_partial(reply, "one two", "")
    assert not store.save_partial(reply, "one", "")
    assert not store.save_partial(reply, "", "")
    stored = store.get_message(reply)
    assert stored is not None
    assert stored.content == "one two"


def test_replies_left_open_are_closed_as_stopped(store: ChatStore, file: Path) -> None:
    _, reply = with_reply(store)
    store.save_partial(reply, "half a sen", "")
    store.close()
    again = ChatStore(file)
    assert again.close_open_replies() == 1
    stored = again.get_message(reply)
    assert stored is not None
    assert (stored.status, stored.content) == ("stopped", "half a sen")


def test_what_was_saved_outlives_a_killed_process(file: Path) -> None:
    script = textwrap.dedent("""
        import sys, time
        from pathlib import Path
        from octavo.app.chat.store import ChatStore
        store = ChatStore(Path(sys.argv[1]))
        chat = store.create_chat()
        turn = store.add_message(chat.id, "user", "hello")
        reply = store.add_message(chat.id, "assistant", "", parent_id=turn.id, status="streaming")
        store.save_partial(reply.id, "the first half", "")
        print(chat.id, flush=True)
        time.sleep(60)
    """)
    process = subprocess.Popen([sys.executable, "-c", script, str(file)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    chat_id = process.stdout.readline().strip()
    process.send_signal(signal.SIGKILL if os.name == "posix" else signal.SIGTERM)
    process.wait()
    chat = ChatStore(file).get_chat(chat_id)
    assert chat is not None
    assert [m.content for m in chat.messages] == ["hello", "the first half"]


def test_regenerating_keeps_the_earlier_reply_beside_the_new_one(store: ChatStore) -> None:
    chat_id, first = with_reply(store)
    store.finish_reply(first, "complete", "first")
    turn = store.branch(first)[0]
    second = store.add_message(chat_id, "assistant", "", parent_id=turn.id, status="streaming")
    store.finish_reply(second.id, "complete", "second")
    chat = store.get_chat(chat_id)
    assert chat is not None
    assert [m.content for m in chat.messages] == ["hello", "second"]
    assert [m.content for m in store.replies_to(turn.id)] == ["first", "second"]


def test_ids_of_a_prompt_come_back_though_shared_ones_are_stored_once(store: ChatStore) -> None:
    chat_id, first = with_reply(store)
    store.set_prompt(first, range(100))
    store.finish_reply(first, "complete", "x", token_ids=range(100, 110))
    turn = store.add_message(chat_id, "user", "more")
    second = store.add_message(chat_id, "assistant", "", parent_id=turn.id, status="streaming")
    prompt = [*range(105), 500, 501]  # the reply's last ids were not kept
    store.set_prompt(second.id, prompt, base_id=first)
    store.finish_reply(second.id, "complete", "y", token_ids=(7, 8))
    assert store.sequence(first) == tuple(range(110))
    assert store.sequence(second.id) == (*prompt, 7, 8)
    assert store.sequence("unknown") == ()
    rows = store._db.execute("SELECT length(prompt_ids) FROM messages WHERE id = ?", (second.id,)).fetchone()
    assert rows[0] == 2 * 4


def test_chats_are_listed_by_last_use(store: ChatStore) -> None:
    first, second = store.create_chat(), store.create_chat()
    assert [c.id for c in store.list_chats()] == [second.id, first.id]
    store.add_message(first.id, "user", "x")
    assert [c.id for c in store.list_chats()] == [first.id, second.id]
    assert store.rename_chat(first.id, "New name")
    assert [c.title for c in store.list_chats()] == ["New name", ""]
    assert store.delete_chat(first.id)
    assert store.get_chat(first.id) is None
    assert not store.delete_chat(first.id)
    assert not store.rename_chat("unknown", "x")


def test_a_deleted_chat_takes_no_more_turns_and_leaves_no_rows(store: ChatStore) -> None:
    chat_id, reply = with_reply(store)
    store.delete_chat(chat_id)
    with pytest.raises(StoreError, match="deleted"):
        store.add_message(chat_id, "user", "x")
    assert store.finish_reply(reply, "complete", "late") is None
    assert store._db.execute("SELECT count(*) FROM messages").fetchone()[0] == 0


def test_a_turn_cannot_follow_a_message_of_another_chat(store: ChatStore) -> None:
    _, reply = with_reply(store)
    other = store.create_chat()
    with pytest.raises(StoreError):
        store.add_message(other.id, "user", "x", parent_id=reply)
    assert store.get_chat(other.id).messages == ()  # type: ignore[union-attr]


def test_many_threads_write_without_losing_a_turn(store: ChatStore) -> None:
    chats = [store.create_chat().id for _ in range(4)]

    def write(chat_id: str) -> None:
        for number in range(25):
            store.add_message(chat_id, "user", str(number))

    threads = [threading.Thread(target=write, args=(chat_id,)) for chat_id in chats]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for chat_id in chats:
        chat = store.get_chat(chat_id)
        assert chat is not None
        assert [m.content for m in chat.messages] == [str(number) for number in range(25)]


def test_a_migration_keeps_a_copy_of_the_old_file(
    store: ChatStore, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chat_id, _ = with_reply(store)
    store.close()

    def add_pins(db: sqlite3.Connection) -> None:
        db.execute("ALTER TABLE chats ADD COLUMN pinned INTEGER NOT NULL DEFAULT 0")

    monkeypatch.setattr(store_module, "MIGRATIONS", (*store_module.MIGRATIONS, add_pins))
    newer = ChatStore(file)
    assert newer.get_chat(chat_id) is not None
    assert newer._db.execute("SELECT pinned FROM chats").fetchone()[0] == 0
    newer.close()
    monkeypatch.undo()
    backup = file.with_name("chats.schema1.bak.sqlite3")
    old = ChatStore(backup)
    assert old.get_chat(chat_id) is not None
    with pytest.raises(StoreError, match="newer Octavo"):
        ChatStore(file)


def test_a_failing_migration_changes_nothing(store: ChatStore, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chat_id, _ = with_reply(store)
    store.close()

    def fail(db: sqlite3.Connection) -> None:
        db.execute("DELETE FROM messages")
        raise sqlite3.OperationalError("no such column")

    monkeypatch.setattr(store_module, "MIGRATIONS", (*store_module.MIGRATIONS, fail))
    with pytest.raises(StoreError):
        ChatStore(file)
    monkeypatch.undo()
    chat = ChatStore(file).get_chat(chat_id)
    assert chat is not None
    assert len(chat.messages) == 2


def test_a_damaged_file_is_named_and_left_alone(file: Path) -> None:
    file.write_bytes(b"this is not a database, but somebody may still need it" * 100)
    before = file.read_bytes()
    with pytest.raises(StoreError, match=r"chats\.sqlite3 is damaged"):
        ChatStore(file)
    assert file.read_bytes() == before


def test_a_full_disk_is_said_in_one_sentence(store: ChatStore) -> None:
    chat = store.create_chat()
    pages = store._db.execute("PRAGMA page_count").fetchone()[0]
    store._db.execute(f"PRAGMA max_page_count = {pages}")
    with pytest.raises(StoreError, match="full"):
        store.add_message(chat.id, "user", "x" * 100_000)
    store._db.execute("PRAGMA max_page_count = 100000")
    store.add_message(chat.id, "user", "fits again")


def test_unknown_fields_of_a_newer_version_are_tolerated(store: ChatStore) -> None:
    _, reply = with_reply(store)
    store.finish_reply(reply, "complete", "x", stats=STATS)
    store._db.execute("UPDATE messages SET stats = json_set(stats, '$.energy_j', 3) WHERE id = ?", (reply,))
    stored = store.get_message(reply)
    assert stored is not None
    assert stored.stats == STATS
