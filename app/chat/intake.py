"""Taking in a chat as a whole, however long, while others use the file: a part at a time, each its own transaction."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Sequence

from octavo.app.chat.store_file import StoreFile
from octavo.app.chat.store_records import (
    ChatRecord,
    Put,
    begin_record,
    chosen_children,
    set_active,
    show_additions,
    write_turns,
)
from octavo.app.chat.store_search import forget_chat, words_of
from octavo.app.chat.types import Message

# A part holds the file for some 20 ms.
PART_TURNS = 200
PART_CHARACTERS = 100_000
UNFINISHED_S = 600.0  # a chat whose rest has not come for so long may be erased


class Intake:
    """Adds a chat, or to the chat of its id what it lacks. Whoever drives it calls `step` until that returns a Put.

    A new chat counts as deleted until it is whole: nobody sees a part of it, and what a killed process left is erased
    as deleted chats are. What is added to a chat that is there can be seen at once, each turn after the one it follows.
    """

    def __init__(self, file: StoreFile, record: ChatRecord) -> None:
        self._file = file
        self._record = record
        self._created: bool | None = None  # None: nothing was written yet
        self._read = 0  # messages of the record that were dealt with
        self._added = 0
        self._ids: dict[str, str] = {}
        self._chosen: list[tuple[str | None, str]] | None = None  # what is still to be marked as shown

    def step(self) -> Put | None:
        """Write the next part; what became of the record if that was the last. Changes nothing if it raises."""
        if self._chosen is not None:
            return self._step_shown(self._chosen)
        part = self._next_part()
        words = [words_of(message.content) for message in part]  # takes longer than writing, and needs no file
        chat_id, ids = self._record.chat.id, dict(self._ids)
        with self._file.writing() as db:
            created = begin_record(db, self._record) if self._created is None else self._created
            if created:
                _hide(db, chat_id)
            added = write_turns(db, chat_id, part, words, ids)
            if not created:
                show_additions(db, added)
        self._created, self._ids = created, ids
        self._read += len(part)
        self._added += len(added)
        if self._read < len(self._record.messages):
            return None
        if not created:
            return self._put()
        self._chosen = [*chosen_children(self._record, self._ids).items()]
        return None

    def abandon(self) -> None:
        """Erase a new chat that does not become whole."""
        if not self._created:
            return
        chat_id = self._record.chat.id
        with self._file.writing() as db:
            if db.execute("SELECT 1 FROM chats WHERE id = ? AND deleted_s IS NOT NULL", (chat_id,)).fetchone():
                forget_chat(db, chat_id)
                db.execute("DELETE FROM chats WHERE id = ?", (chat_id,))

    def _step_shown(self, chosen: Sequence[tuple[str | None, str]]) -> Put | None:
        part, rest = chosen[:PART_TURNS], chosen[PART_TURNS:]
        chat_id = self._record.chat.id
        with self._file.writing() as db:
            set_active(db, chat_id, dict(part))
            if rest:
                _hide(db, chat_id)
            else:
                db.execute("UPDATE chats SET deleted_s = NULL WHERE id = ?", (chat_id,))
        self._chosen = list(rest)
        return None if rest else self._put()

    def _next_part(self) -> Sequence[Message]:
        messages, length, end = self._record.messages, 0, self._read
        while end < len(messages) and end < self._read + PART_TURNS:
            length += len(messages[end].content) + len(messages[end].reasoning)
            if length > PART_CHARACTERS and end > self._read:
                break
            end += 1
        return messages[self._read : end]

    def _put(self) -> Put:
        return Put(self._record.chat.id, bool(self._created), self._added, self._ids)


def _hide(db: sqlite3.Connection, chat_id: str) -> None:
    db.execute("UPDATE chats SET deleted_s = ? WHERE id = ?", (time.time() + UNFINISHED_S, chat_id))
