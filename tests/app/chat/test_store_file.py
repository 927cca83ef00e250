"""Chats on disk survive whatever happens around them."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import textwrap
from pathlib import Path
from random import Random

import pytest
from chatting import with_reply

from octavo.app.chat import store_schema
from octavo.app.chat.store import ChatStore, StoreError
from octavo.app.chat.types import ChatSettings


@pytest.mark.skipif(os.name != "posix", reason="permissions are other things on Windows")
def test_only_the_user_can_read_the_chats(store: ChatStore, file: Path) -> None:
    store.create_chat()
    for path in file.parent.glob("chats.sqlite3*"):
        assert path.stat().st_mode & 0o077 == 0


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


def test_a_migration_keeps_a_copy_of_the_old_file(
    store: ChatStore, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chat_id, _ = with_reply(store)
    store.close()

    def add_colours(db: sqlite3.Connection) -> None:
        db.execute("ALTER TABLE chats ADD COLUMN colour INTEGER NOT NULL DEFAULT 0")

    monkeypatch.setattr(store_schema, "MIGRATIONS", (*store_schema.MIGRATIONS, add_colours))
    newer = ChatStore(file)
    assert newer.get_chat(chat_id) is not None
    assert newer._file._db.execute("SELECT colour FROM chats").fetchone()[0] == 0
    newer.close()
    monkeypatch.undo()
    backup = file.with_name("chats.schema2.bak.sqlite3")
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

    monkeypatch.setattr(store_schema, "MIGRATIONS", (*store_schema.MIGRATIONS, fail))
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
    pages = store._file._db.execute("PRAGMA page_count").fetchone()[0]
    store._file._db.execute(f"PRAGMA max_page_count = {pages}")
    with pytest.raises(StoreError, match="full"):
        store.add_message(chat.id, "user", "x" * 100_000)
    store._file._db.execute("PRAGMA max_page_count = 100000")
    store.add_message(chat.id, "user", "fits again")


def test_chats_of_the_first_schema_are_taken_over(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    db = sqlite3.connect(file)
    store_schema.MIGRATIONS[0](db)
    db.execute("PRAGMA user_version = 1")
    db.execute("INSERT INTO chats VALUES ('c', 'Lighthouse', 1, 2, 'a1', ?)", ('{"temperature": 0.5}',))
    db.execute("INSERT INTO chats VALUES ('d', '', 1, 2, NULL, '{}')")
    turns = [
        ("s", None, "system", "Be brief."),
        ("u", "s", "user", "a story"),
        ("a1", "u", "assistant", "The keeper"),
        ("a2", "u", "assistant", "灯塔看守人"),
        ("v", "a2", "user", "go on"),
    ]
    for id, parent, role, content in turns:
        db.execute(
            "INSERT INTO messages (id, chat_id, parent_id, role, content, status, created_s, model)"
            " VALUES (?, 'c', ?, ?, ?, 'complete', 1, ?)",
            (id, parent, role, content, "m" if role == "assistant" else None),
        )
    db.commit()
    db.close()
    store = ChatStore(file)
    chat = store.get_chat("c")
    assert chat is not None
    assert (chat.title, chat.system) == ("Lighthouse", "Be brief.")
    assert [(m.content, m.version, m.versions) for m in chat.messages] == [("a story", 1, 1), ("The keeper", 1, 2)]
    assert store.get_chat_settings("c") == ChatSettings("Be brief.", sampling={"temperature": 0.5})
    store.show("c", "a2")
    chat = store.get_chat("c")
    assert chat is not None
    assert [m.content for m in chat.messages] == ["a story", "灯塔看守人", "go on"]
    assert [hit.chat_id for hit in store.search("看守")] == ["c"]
    empty = store.get_chat("d")
    assert empty is not None
    assert empty.messages == ()
    old = sqlite3.connect(file.with_name("chats.schema1.bak.sqlite3"))
    assert old.execute("SELECT count(*) FROM messages").fetchone() == (5,)


def test_a_process_killed_at_any_moment_leaves_whole_turns(file: Path) -> None:
    script = textwrap.dedent("""
        import sys
        from pathlib import Path
        from octavo.app.chat.store import ChatStore
        store = ChatStore(Path(sys.argv[1]))
        chat = store.create_chat()
        print(chat.id, flush=True)
        for number in range(100000):
            turn = store.add_message(chat.id, "user", f"question {number}")
            print("asked", turn.id, flush=True)
            reply = store.add_message(chat.id, "assistant", "", parent_id=turn.id, status="streaming")
            store.save_partial(reply.id, "half", "")
            store.finish_reply(reply.id, "complete", f"half and half {number}")
            print("answered", reply.id, flush=True)
            if number % 3 == 0:
                store.show(chat.id, turn.id)
    """)
    random = Random(3)
    for _ in range(4):
        process = subprocess.Popen([sys.executable, "-c", script, str(file)], stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        chat_id = process.stdout.readline().strip()
        said = [process.stdout.readline() for _ in range(random.randrange(2, 60))]
        process.kill()
        said += process.stdout.readlines()
        process.wait()
        store = ChatStore(file)
        assert store._file._db.execute("PRAGMA integrity_check").fetchone()[0] == "ok"
        store.close_open_replies()
        chat = store.get_chat(chat_id)
        assert chat is not None
        stored = {m.id: m for m in chat.messages}
        for line in said:
            what, _, message_id = line.strip().partition(" ")
            if line.endswith("\n"):
                assert stored[message_id].status == "complete"
                assert what == "asked" or stored[message_id].content.startswith("half and half")
        assert all(m.content for m in chat.messages[:-1])
        store.close()
