"""Chats on disk: one SQLite file that outlives crashes, stale tabs and newer versions of the schema.

Messages form a tree: each names the one it follows and the child that is shown after it; a chat names its first one.
Turns are added, and taken away one by one if that is asked for; the one row whose text changes is a reply that is being
written, and only by growing. No call takes a whole history, so no caller can overwrite one.
"""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from octavo.app.chat import store_removal, store_schema, store_search
from octavo.app.chat.intake import Intake
from octavo.app.chat.store_file import StoreBusyError, StoreError, StoreFile
from octavo.app.chat.store_presets import PresetStore
from octavo.app.chat.store_records import ChatRecord, Put, read_record, write_record
from octavo.app.chat.store_removal import Removed
from octavo.app.chat.store_replies import COUNTED, ReplyStore, counted
from octavo.app.chat.store_rows import (
    SUMMARY_COLUMNS,
    from_attachments,
    from_settings,
    new_id,
    to_chat,
    to_message,
    to_settings,
    to_summary,
)
from octavo.app.chat.store_search import SearchHit
from octavo.app.chat.types import (
    Attachment,
    Chat,
    ChatSettings,
    ChatSummary,
    Message,
    MessageStatus,
    Role,
)

__all__ = ["ChatStore", "StoreBusyError", "StoreError"]

# The shown branch of a chat, with the place of each message among the versions beside it.
_SHOWN = (
    "WITH RECURSIVE shown(id, depth) AS (SELECT active_root_id, 0 FROM chats WHERE id = :chat UNION ALL"
    " SELECT m.active_child_id, depth + 1 FROM shown s JOIN messages m ON m.id = s.id"
    " WHERE m.active_child_id IS NOT NULL)"
)


class ChatStore(ReplyStore):
    """Chats and messages in one file; every method may be called from any thread.

    `path` None keeps everything in memory (tests, or a start without a data folder). A write raises StoreBusyError
    after BUSY_S at most: whoever can wait longer tries again (`patiently`).
    """

    def __init__(self, path: Path | None) -> None:
        super().__init__(StoreFile(path, store_schema.MIGRATIONS))
        self.path = path
        self.presets = PresetStore(self._file)
        self._has_forgotten = False  # turns whose words may still stand in the search index

    def close(self) -> None:
        self._file.close()

    @contextmanager
    def together(self) -> Iterator[None]:
        """All writes inside are stored, or, if the block raises, none. Other threads wait meanwhile."""
        with self._file.writing():
            yield

    # Chats

    def list_chats(self) -> list[ChatSummary]:
        """Every chat, the last used first."""
        with self._file.reading() as db:
            rows = db.execute(
                f"SELECT {SUMMARY_COLUMNS} FROM chats WHERE deleted_s IS NULL ORDER BY updated_s DESC, rowid DESC"
            ).fetchall()
        return [to_summary(row) for row in rows]

    def search(self, wanted: str) -> list[SearchHit]:
        """Chats with all words of `wanted` in their title or in one turn of any version, the last used first."""
        with self._file.reading() as db:
            return store_search.search(db, wanted)

    def summary(self, chat_id: str) -> ChatSummary | None:
        with self._file.reading() as db:
            row = db.execute(
                f"SELECT {SUMMARY_COLUMNS} FROM chats WHERE id = ? AND deleted_s IS NULL", (chat_id,)
            ).fetchone()
        return None if row is None else to_summary(row)

    def create_chat(self, system: str | None = None, *, chat_id: str | None = None) -> Chat:
        """An empty chat, with a system text if one is given. `chat_id` must be new."""
        chat_id, now = chat_id or new_id(), time.time()
        with self._file.writing() as db:
            db.execute(
                "INSERT INTO chats (id, title, created_s, updated_s, system) VALUES (?, '', ?, ?, ?)",
                (chat_id, now, now, system or ""),
            )
        chat = self.get_chat(chat_id)
        assert chat is not None
        return chat

    def get_chat(self, chat_id: str) -> Chat | None:
        """The chat with the turns of the branch that is shown, or None."""
        with self._file.reading() as db:
            row = db.execute("SELECT * FROM chats WHERE id = ? AND deleted_s IS NULL", (chat_id,)).fetchone()
            if row is None:
                return None
            return to_chat(row, self._shown(db, chat_id))

    def update_chat(
        self,
        chat_id: str,
        *,
        title: str | None = None,
        pinned: bool | None = None,
        folder: str | None = None,
        tags: Sequence[str] | None = None,
        model: str | None = None,
    ) -> bool:
        """Change what is said about a chat; None leaves as it is. False if there is no such chat."""
        values: dict[str, object] = {"title": title, "pinned": pinned, "folder": folder, "model": model}
        if tags is not None:
            values["tags"] = json.dumps(list(dict.fromkeys(tags)), ensure_ascii=False)
        values = {name: value for name, value in values.items() if value is not None}
        if not values:
            return self.summary(chat_id) is not None
        settings = ", ".join(f"{name} = ?" for name in values)
        with self._file.writing() as db:
            done = db.execute(
                f"UPDATE chats SET {settings} WHERE id = ? AND deleted_s IS NULL", (*values.values(), chat_id)
            )
            return done.rowcount > 0

    def delete_chat(self, chat_id: str) -> bool:
        """Take a chat away. It can be brought back with `restore_chat` until `purge_deleted`."""
        with self._file.writing() as db:
            done = db.execute(
                "UPDATE chats SET deleted_s = ? WHERE id = ? AND deleted_s IS NULL", (time.time(), chat_id)
            )
            return done.rowcount > 0

    def restore_chat(self, chat_id: str) -> bool:
        with self._file.writing() as db:
            done = db.execute("UPDATE chats SET deleted_s = NULL WHERE id = ? AND deleted_s IS NOT NULL", (chat_id,))
            return done.rowcount > 0

    def purge_deleted(self, older_than_s: float = 0.0) -> int:
        """Erase the chats that were deleted so long ago, with all they contain, and the words of turns that were taken
        out of others; how many chats there were."""
        with self._file.writing() as db:
            until_s = time.time() - older_than_s
            ids = [row["id"] for row in db.execute("SELECT id FROM chats WHERE deleted_s <= ?", (until_s,))]
            for chat_id in ids:
                store_search.forget_chat(db, chat_id)
                db.execute("DELETE FROM chats WHERE id = ?", (chat_id,))
            if ids or self._has_forgotten:
                store_search.overwrite_forgotten(db)
            self._has_forgotten = False
        return len(ids)

    def get_chat_settings(self, chat_id: str) -> ChatSettings | None:
        """The chat's own system text, preset and sampling values; None if there is no such chat."""
        with self._file.reading() as db:
            row = db.execute(
                "SELECT system, settings FROM chats WHERE id = ? AND deleted_s IS NULL", (chat_id,)
            ).fetchone()
        return None if row is None else to_settings(row)

    def set_chat_settings(self, chat_id: str, settings: ChatSettings) -> bool:
        with self._file.writing() as db:
            done = db.execute(
                "UPDATE chats SET system = ?, settings = ? WHERE id = ? AND deleted_s IS NULL",
                (settings.system, from_settings(settings), chat_id),
            )
            return done.rowcount > 0

    def record(self, chat_id: str) -> ChatRecord | None:
        """The chat as a whole, every version of every turn."""
        with self._file.reading() as db:
            return read_record(db, chat_id)

    def put(self, record: ChatRecord, *, sequences: Mapping[str, Sequence[int]] | None = None) -> Put:
        """Add a chat as a whole, or to the chat of its id the turns that it lacks.

        `sequences`: for replies of the record the ids of prompt and reply together, where they are known.
        """
        with self._file.writing() as db:
            put = write_record(db, record)
            for message in record.messages:
                ids = (sequences or {}).get(message.id, ())
                if ids:
                    prompt = ids[: len(ids) - len(message.token_ids)]
                    self._write_prompt(db, put.ids[message.id], prompt, put.ids.get(_reply_before(record, message)))
            return put

    def intake(self, record: ChatRecord) -> Intake:
        """`put` in parts, for records of any length: others use the file in between."""
        return Intake(self._file, record)

    # The tree of messages

    def add_message(
        self,
        chat_id: str,
        role: Role,
        content: str,
        *,
        parent_id: str | None = None,
        beside_id: str | None = None,
        status: MessageStatus = "complete",
        model: str | None = None,
        nonce: str | None = None,
        attachments: Sequence[Attachment] = (),
    ) -> Message:
        """Add a turn and show its branch: after `parent_id`, as another version of `beside_id`, or after the end.

        `nonce` is the sender's name for this turn, at most once in a chat. Raises StoreError if there is no such chat
        or message in it.
        """
        message_id, now = new_id(), time.time()
        with self._file.writing() as db:
            if db.execute("SELECT 1 FROM chats WHERE id = ? AND deleted_s IS NULL", (chat_id,)).fetchone() is None:
                raise StoreError("This chat was deleted.", remedy="Start a new one.")
            if beside_id is not None:
                parent = self._known(db, chat_id, beside_id)["parent_id"]
            elif parent_id is not None:
                parent = self._known(db, chat_id, parent_id)["id"]
            else:
                parent = self._end(db, chat_id)
            cursor = db.execute(
                "INSERT INTO messages (id, chat_id, parent_id, role, content, status, created_s, model, nonce,"
                " attachments) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (message_id, chat_id, parent, role, content, status, now, model, nonce, from_attachments(attachments)),
            )
            self._show(db, chat_id, message_id)
            db.execute("UPDATE chats SET updated_s = ? WHERE id = ?", (now, chat_id))
            if status != "streaming":
                store_search.index_message(db, cursor.lastrowid or 0, content)
            return counted(db, message_id)

    def get_message(self, message_id: str) -> Message | None:
        with self._file.reading() as db:
            row = db.execute("SELECT * FROM messages WHERE id = ?", (message_id,)).fetchone()
        return None if row is None else to_message(row)

    def branch(self, message_id: str) -> tuple[Message, ...]:
        """A message and all it follows, the oldest first."""
        with self._file.reading() as db:
            rows = db.execute(
                "WITH RECURSIVE branch(id, depth) AS (SELECT ?, 0 UNION ALL SELECT m.parent_id, depth + 1"
                " FROM messages m JOIN branch b ON m.id = b.id WHERE m.parent_id IS NOT NULL)"
                " SELECT m.* FROM branch b JOIN messages m ON m.id = b.id ORDER BY b.depth DESC",
                (message_id,),
            ).fetchall()
        return tuple(to_message(row) for row in rows)

    def versions(self, message_id: str) -> list[str]:
        """The ids of a message and of those in its place in other versions of the chat, the oldest first."""
        with self._file.reading() as db:
            rows = db.execute(
                "SELECT v.id FROM messages m JOIN messages v ON v.chat_id = m.chat_id AND v.parent_id IS m.parent_id"
                " WHERE m.id = ? ORDER BY v.seq",
                (message_id,),
            ).fetchall()
        return [row["id"] for row in rows]

    def show(self, chat_id: str, message_id: str) -> None:
        """Show the branch through a message, and after it what was shown there last."""
        with self._file.writing() as db:
            self._known(db, chat_id, message_id)
            self._show(db, chat_id, message_id)

    def remove_turn(self, chat_id: str, message_id: str) -> Removed:
        """Take a turn out of its chat: a message of the user with its replies, a reply alone. What follows stays.

        Its text is gone from the file; `put_back` takes what is returned. Raises StoreError if it is not in the chat.
        """
        with self._file.writing() as db:
            removed = store_removal.remove_turn(db, chat_id, message_id)
        self._has_forgotten = True
        return removed

    def put_back(self, removed: Removed) -> bool:
        """Undo `remove_turn`; False if the chat is gone."""
        with self._file.writing() as db:
            return store_removal.put_back(db, removed)

    def find_nonce(self, chat_id: str, nonce: str) -> Message | None:
        """The turn that was stored under the sender's `nonce`, if it arrived before."""
        with self._file.reading() as db:
            row = db.execute("SELECT * FROM messages WHERE chat_id = ? AND nonce = ?", (chat_id, nonce)).fetchone()
        return None if row is None else to_message(row)

    def chat_begun_by(self, nonce: str) -> str | None:
        """The chat whose first turn was stored under the sender's `nonce`."""
        with self._file.reading() as db:
            row = db.execute(
                "SELECT chat_id FROM messages m JOIN chats c ON c.id = m.chat_id"
                " WHERE m.nonce = ? AND m.parent_id IS NULL AND c.deleted_s IS NULL",
                (nonce,),
            ).fetchone()
        return None if row is None else row["chat_id"]

    def replies_to(self, message_id: str) -> list[Message]:
        """All turns that follow a message, the oldest first."""
        with self._file.reading() as db:
            rows = db.execute("SELECT * FROM messages WHERE parent_id = ? ORDER BY seq", (message_id,)).fetchall()
        return [to_message(row) for row in rows]

    # Inside

    def _shown(self, db: sqlite3.Connection, chat_id: str) -> list[Message]:
        rows = db.execute(
            f"{_SHOWN} SELECT {COUNTED} FROM shown s JOIN messages m ON m.id = s.id ORDER BY s.depth",
            {"chat": chat_id},
        ).fetchall()
        return [to_message(row) for row in rows]

    def _end(self, db: sqlite3.Connection, chat_id: str) -> str | None:
        row = db.execute(f"{_SHOWN} SELECT id FROM shown ORDER BY depth DESC LIMIT 1", {"chat": chat_id}).fetchone()
        return None if row is None else row["id"]

    def _show(self, db: sqlite3.Connection, chat_id: str, message_id: str) -> None:
        rows = db.execute(
            "WITH RECURSIVE up(id, parent) AS (SELECT id, parent_id FROM messages WHERE id = ? UNION ALL"
            " SELECT m.id, m.parent_id FROM messages m JOIN up u ON m.id = u.parent) SELECT id, parent FROM up",
            (message_id,),
        ).fetchall()
        for row in rows:
            if row["parent"] is None:
                db.execute("UPDATE chats SET active_root_id = ? WHERE id = ?", (row["id"], chat_id))
            else:
                db.execute("UPDATE messages SET active_child_id = ? WHERE id = ?", (row["id"], row["parent"]))

    def _known(self, db: sqlite3.Connection, chat_id: str, message_id: str) -> sqlite3.Row:
        row: sqlite3.Row | None = db.execute(
            "SELECT id, parent_id FROM messages WHERE id = ? AND chat_id = ?", (message_id, chat_id)
        ).fetchone()
        if row is None:
            raise StoreError("That turn is not in this chat.", remedy="Reload the page.")
        return row


def _reply_before(record: ChatRecord, message: Message) -> str:
    """The id of the nearest reply that `message` follows, or ""."""
    by_id = {other.id: other for other in record.messages}
    above = by_id.get(message.parent_id or "")
    while above is not None and above.role != "assistant":
        above = by_id.get(above.parent_id or "")
    return "" if above is None else above.id
