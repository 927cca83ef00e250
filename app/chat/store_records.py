"""A chat as a whole, with every version of every turn: how it leaves the file and how it comes in.

Coming in only ever adds: a chat that is there already gets the turns it does not have yet.
"""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from octavo.app.chat import store_search
from octavo.app.chat.store_rows import (
    from_attachments,
    from_settings,
    from_stats,
    new_id,
    pack,
    to_chat,
    to_message,
    to_settings,
)
from octavo.app.chat.types import Chat, ChatSettings, Message


@dataclass(frozen=True, slots=True)
class ChatRecord:
    """`chat` without its messages, all `messages` (each after the one it follows), and the ids of those on `active`
    branches: the last of each parent's children here is the one that is shown."""

    chat: Chat
    settings: ChatSettings
    messages: tuple[Message, ...]
    active: tuple[str, ...] = ()

    def renamed(self, chat_id: str) -> ChatRecord:
        """The same chat under another id."""
        messages = tuple(replace(message, chat_id=chat_id) for message in self.messages)
        return replace(self, chat=replace(self.chat, id=chat_id), messages=messages)


@dataclass(frozen=True, slots=True)
class Put:
    """What became of a record: the chat's id, whether it is new, how many turns were added, and their new ids."""

    chat_id: str
    created: bool
    turns: int
    ids: Mapping[str, str]


def read_record(db: sqlite3.Connection, chat_id: str) -> ChatRecord | None:
    row = db.execute("SELECT * FROM chats WHERE id = ? AND deleted_s IS NULL", (chat_id,)).fetchone()
    if row is None:
        return None
    rows = db.execute("SELECT * FROM messages WHERE chat_id = ? ORDER BY seq", (chat_id,)).fetchall()
    active = [row["active_root_id"], *(message["active_child_id"] for message in rows)]
    return ChatRecord(
        to_chat(row, ()), to_settings(row), tuple(to_message(message) for message in rows), tuple(filter(None, active))
    )


def write_record(db: sqlite3.Connection, record: ChatRecord) -> Put:
    """Add the chat, or to the chat of that id what it lacks. Ids that are taken elsewhere are replaced."""
    created = begin_record(db, record)
    ids: dict[str, str] = {}
    words = [store_search.words_of(message.content) for message in record.messages]
    added = write_turns(db, record.chat.id, record.messages, words, ids)
    if created:
        set_active(db, record.chat.id, chosen_children(record, ids))
    else:
        show_additions(db, added)
    return Put(record.chat.id, created, len(added), ids)


def begin_record(db: sqlite3.Connection, record: ChatRecord) -> bool:
    """Add the chat without its turns unless it is there; whether it was added. A deleted one is erased first."""
    chat_id = record.chat.id
    row = db.execute("SELECT deleted_s FROM chats WHERE id = ?", (chat_id,)).fetchone()
    if row is not None and row["deleted_s"] is None:
        return False
    if row is not None:
        store_search.forget_chat(db, chat_id)
        db.execute("DELETE FROM chats WHERE id = ?", (chat_id,))
    _write_chat(db, record)
    return True


def write_turns(
    db: sqlite3.Connection, chat_id: str, messages: Sequence[Message], words: Sequence[str], ids: dict[str, str]
) -> list[Message]:
    """Add those turns that the chat lacks, each after the one it follows; these, as they are stored.

    `words`: what can be found of each. `ids`: of all turns before, what their ids became; those of these are added.
    """
    added: list[Message] = []
    for message, findable in zip(messages, words, strict=True):
        there = db.execute("SELECT chat_id FROM messages WHERE id = ?", (message.id,)).fetchone()
        if there is not None and there["chat_id"] == chat_id:
            ids[message.id] = message.id
            continue
        ids[message.id] = message.id if there is None else new_id()
        parent = ids.get(message.parent_id) if message.parent_id is not None else None
        stored = replace(message, id=ids[message.id], chat_id=chat_id, parent_id=parent)
        _write_message(db, stored, findable)
        added.append(stored)
    return added


def _write_chat(db: sqlite3.Connection, record: ChatRecord) -> None:
    chat = record.chat
    db.execute(
        "INSERT INTO chats (id, title, created_s, updated_s, model, pinned, folder, tags, system, settings)"
        " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (
            chat.id,
            chat.title,
            chat.created_s,
            chat.updated_s or time.time(),
            chat.model,
            chat.pinned,
            chat.folder,
            json.dumps(list(chat.tags), ensure_ascii=False),
            record.settings.system,
            from_settings(record.settings),
        ),
    )


def _write_message(db: sqlite3.Connection, message: Message, words: str) -> None:
    cursor = db.execute(
        "INSERT INTO messages (id, chat_id, parent_id, role, content, reasoning, status, error, error_code, stats,"
        " created_s, model, token_ids, attachments) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (
            message.id,
            message.chat_id,
            message.parent_id,
            message.role,
            message.content,
            message.reasoning,
            "stopped" if message.status == "streaming" else message.status,
            message.error,
            message.error_code,
            from_stats(message.stats),
            message.created_s,
            message.model,
            pack(message.token_ids),
            from_attachments(message.attachments),
        ),
    )
    store_search.index_words(db, cursor.lastrowid or 0, words)


def chosen_children(record: ChatRecord, ids: Mapping[str, str]) -> dict[str | None, str]:
    """For each turn that has some after it, and None for the chat, the one of them that is shown, by its stored id."""
    wanted = set(record.active)
    chosen: dict[str | None, str] = {}
    for message in record.messages:
        parent = message.parent_id
        if message.id in wanted or chosen.get(parent) not in wanted:
            chosen[parent] = message.id
    return {None if parent is None else ids[parent]: ids[id] for parent, id in chosen.items()}


def show_additions(db: sqlite3.Connection, added: Sequence[Message]) -> None:
    """What is shown stays; where nothing followed yet, the first addition does."""
    for message in added:
        if message.parent_id is not None:
            db.execute(
                "UPDATE messages SET active_child_id = ? WHERE id = ? AND active_child_id IS NULL",
                (message.id, message.parent_id),
            )
        else:
            db.execute(
                "UPDATE chats SET active_root_id = ? WHERE id = ? AND active_root_id IS NULL",
                (message.id, message.chat_id),
            )


def set_active(db: sqlite3.Connection, chat_id: str, chosen: Mapping[str | None, str]) -> None:
    for parent, child in chosen.items():
        if parent is None:
            db.execute("UPDATE chats SET active_root_id = ? WHERE id = ?", (child, chat_id))
        else:
            db.execute("UPDATE messages SET active_child_id = ? WHERE id = ?", (child, parent))
