"""Chats on disk: one SQLite file that outlives crashes, stale tabs and newer versions of the schema.

Messages form a tree (each names the one it follows) and a chat points at the end of the branch that is shown. Turns are
only ever added; the one row that changes is a reply that is being written, and only until it ends. No call takes a
whole history, so no caller can overwrite one.
"""

from __future__ import annotations

import json
import secrets
import sqlite3
import sys
import threading
import time
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, fields
from pathlib import Path

from octavo.app.chat.types import Chat, ChatSummary, Message, MessageStatus, ReplyStats, Role
from octavo.engine.errors import OctavoError

OPENING_S = 10.0  # how long opening the file waits for another process
BUSY_S = 0.05  # and a call later on: an event loop stands still meanwhile


class StoreError(OctavoError):
    """The file of chats cannot be read or written."""


class StoreBusyError(StoreError):
    """Another process is writing to the file of chats; nothing was changed, and the same call may soon succeed."""


class ChatStore:
    """Chats and messages in one file; every method may be called from any thread.

    `path` None keeps everything in memory (tests, or a start without a data folder). Raises StoreError where the file
    is damaged, was written by a newer version, or the disk is full. A write raises StoreBusyError after BUSY_S at most:
    whoever can wait longer tries again (`patiently`).
    """

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self._lock = threading.RLock()
        try:
            if path is not None:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.touch(mode=0o600)  # chats are nobody else's business
            self._db = sqlite3.connect(
                ":memory:" if path is None else path, check_same_thread=False, isolation_level=None, timeout=OPENING_S
            )
            self._db.row_factory = sqlite3.Row
            self._db.execute("PRAGMA journal_mode = WAL")
            self._db.execute("PRAGMA synchronous = NORMAL")  # in WAL mode a killed process loses nothing
            self._db.execute("PRAGMA foreign_keys = ON")
            self._migrate()
            self._db.execute(f"PRAGMA busy_timeout = {round(BUSY_S * 1000)}")
        except (sqlite3.Error, OSError) as error:
            raise _store_error(path, error) from error

    def close(self) -> None:
        with self._lock:
            self._db.close()

    @contextmanager
    def together(self) -> Iterator[None]:
        """All writes inside are stored, or, if the block raises, none. Other threads wait meanwhile."""
        with self._writing():
            yield

    # Chats

    def list_chats(self) -> list[ChatSummary]:
        """Every chat, the last used first."""
        with self._reading() as db:
            rows = db.execute("SELECT id, title, updated_s FROM chats ORDER BY updated_s DESC, rowid DESC").fetchall()
        return [ChatSummary(id=row["id"], title=row["title"], updated_s=row["updated_s"]) for row in rows]

    def summary(self, chat_id: str) -> ChatSummary | None:
        with self._reading() as db:
            row = db.execute("SELECT id, title, updated_s FROM chats WHERE id = ?", (chat_id,)).fetchone()
        return None if row is None else ChatSummary(id=row["id"], title=row["title"], updated_s=row["updated_s"])

    def create_chat(self, system: str | None = None) -> Chat:
        """An empty chat, or one that begins with a system text."""
        chat_id, now = _new_id(), time.time()
        with self._writing() as db:
            db.execute("INSERT INTO chats (id, title, created_s, updated_s) VALUES (?, '', ?, ?)", (chat_id, now, now))
            if system:
                self.add_message(chat_id, "system", system)
        chat = self.get_chat(chat_id)
        assert chat is not None
        return chat

    def get_chat(self, chat_id: str) -> Chat | None:
        """The chat with the turns of its current branch, or None."""
        with self._reading() as db:
            row = db.execute("SELECT * FROM chats WHERE id = ?", (chat_id,)).fetchone()
            if row is None:
                return None
            messages = self._rows_of_branch(db, row["head_id"])
        return Chat(id=row["id"], title=row["title"], created_s=row["created_s"], messages=messages)

    def rename_chat(self, chat_id: str, title: str) -> bool:
        with self._writing() as db:
            return db.execute("UPDATE chats SET title = ? WHERE id = ?", (title, chat_id)).rowcount > 0

    def delete_chat(self, chat_id: str) -> bool:
        with self._writing() as db:
            return db.execute("DELETE FROM chats WHERE id = ?", (chat_id,)).rowcount > 0

    def sampling(self, chat_id: str) -> dict[str, object]:
        """The chat's own sampling values, by name; empty where it follows the settings."""
        with self._reading() as db:
            row = db.execute("SELECT sampling FROM chats WHERE id = ?", (chat_id,)).fetchone()
        return {} if row is None else dict(json.loads(row["sampling"]))

    def set_sampling(self, chat_id: str, values: Mapping[str, object]) -> bool:
        with self._writing() as db:
            text = json.dumps({name: value for name, value in values.items() if value is not None})
            return db.execute("UPDATE chats SET sampling = ? WHERE id = ?", (text, chat_id)).rowcount > 0

    # Messages

    def add_message(
        self,
        chat_id: str,
        role: Role,
        content: str,
        *,
        parent_id: str | None = None,
        status: MessageStatus = "complete",
        model: str | None = None,
        nonce: str | None = None,
    ) -> Message:
        """Add a turn after `parent_id` (None: after the chat's newest) and show its branch.

        `nonce` is the sender's name for this turn, at most once in a chat. Raises StoreError if there is no such chat
        or parent.
        """
        message_id, now = _new_id(), time.time()
        with self._writing() as db:
            chat = db.execute("SELECT head_id FROM chats WHERE id = ?", (chat_id,)).fetchone()
            if chat is None:
                raise StoreError("This chat was deleted.", remedy="Start a new one.")
            parent = parent_id or chat["head_id"]
            if parent_id is not None:
                known = db.execute(
                    "SELECT 1 FROM messages WHERE id = ? AND chat_id = ?", (parent_id, chat_id)
                ).fetchone()
                if known is None:
                    raise StoreError("The turn this one follows is not in this chat.", remedy="Reload the page.")
            db.execute(
                "INSERT INTO messages (id, chat_id, parent_id, role, content, status, created_s, model, nonce)"
                " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (message_id, chat_id, parent, role, content, status, now, model, nonce),
            )
            db.execute("UPDATE chats SET head_id = ?, updated_s = ? WHERE id = ?", (message_id, now, chat_id))
            return self._message(db, message_id)

    def get_message(self, message_id: str) -> Message | None:
        with self._reading() as db:
            row = db.execute("SELECT * FROM messages WHERE id = ?", (message_id,)).fetchone()
        return None if row is None else _to_message(row)

    def branch(self, message_id: str) -> tuple[Message, ...]:
        """A message and all it follows, the oldest first."""
        with self._reading() as db:
            return self._rows_of_branch(db, message_id)

    def find_nonce(self, chat_id: str, nonce: str) -> Message | None:
        """The turn that was stored under the sender's `nonce`, if it arrived before."""
        with self._reading() as db:
            row = db.execute("SELECT * FROM messages WHERE chat_id = ? AND nonce = ?", (chat_id, nonce)).fetchone()
        return None if row is None else _to_message(row)

    def replies_to(self, message_id: str) -> list[Message]:
        """All turns that follow a message, the oldest first."""
        with self._reading() as db:
            rows = db.execute("SELECT * FROM messages WHERE parent_id = ? ORDER BY seq", (message_id,)).fetchall()
        return [_to_message(row) for row in rows]

    def save_partial(self, message_id: str, content: str, reasoning: str, token_ids: Sequence[int] = ()) -> bool:
        """Keep what a running reply has so far. Does nothing (and says False) if that would shorten it or it ended."""
        with self._writing() as db:
            done = db.execute(
                "UPDATE messages SET content = ?, reasoning = ?, token_ids = ? WHERE id = ? AND status = 'streaming'"
                " AND length(content) <= length(?) AND length(reasoning) <= length(?)",
                (content, reasoning, _pack(token_ids), message_id, content, reasoning),
            )
            return done.rowcount > 0

    def finish_reply(
        self,
        message_id: str,
        status: MessageStatus,
        content: str,
        reasoning: str = "",
        *,
        token_ids: Sequence[int] = (),
        error: str | None = None,
        stats: ReplyStats | None = None,
    ) -> Message | None:
        """End a running reply. A reply that has ended already stays as it is; None if its chat was deleted."""
        with self._writing() as db:
            done = db.execute(
                "UPDATE messages SET status = ?, content = ?, reasoning = ?, token_ids = ?, error = ?, stats = ?"
                " WHERE id = ? AND status = 'streaming'",
                (
                    status,
                    content,
                    reasoning,
                    _pack(token_ids),
                    error,
                    None if stats is None else json.dumps(asdict(stats)),
                    message_id,
                ),
            )
            if done.rowcount:
                db.execute(
                    "UPDATE chats SET updated_s = ? WHERE id = (SELECT chat_id FROM messages WHERE id = ?)",
                    (time.time(), message_id),
                )
            row = db.execute("SELECT * FROM messages WHERE id = ?", (message_id,)).fetchone()
        return None if row is None else _to_message(row)

    def set_prompt(self, message_id: str, prompt_ids: Sequence[int], *, base_id: str | None = None) -> None:
        """Keep the ids a reply was made from. What they share with the ids of `base_id`, an earlier reply, is not
        stored twice."""
        base = self.sequence(base_id) if base_id else ()
        shared = _common_prefix(base, prompt_ids)
        with self._writing() as db:
            db.execute(
                "UPDATE messages SET base_id = ?, base_tokens = ?, prompt_ids = ? WHERE id = ?",
                (base_id if shared else None, shared, _pack(prompt_ids[shared:]), message_id),
            )

    def sequence(self, message_id: str) -> tuple[int, ...]:
        """Prompt and reply ids of a stored reply, as the engine saw them; empty if they are not known."""
        pieces: list[tuple[int, ...]] = []
        keep: int | None = None
        current: str | None = message_id
        with self._reading() as db:
            while current is not None:
                row = db.execute(
                    "SELECT base_id, base_tokens, prompt_ids, token_ids FROM messages WHERE id = ?", (current,)
                ).fetchone()
                if row is None or row["prompt_ids"] is None:
                    return ()
                tail = _unpack(row["prompt_ids"]) + _unpack(row["token_ids"])
                room = None if keep is None else max(0, keep - row["base_tokens"])
                pieces.append(tail if room is None else tail[:room])
                keep = row["base_tokens"] if keep is None else min(keep, row["base_tokens"])
                current = row["base_id"]
        return tuple(token for piece in reversed(pieces) for token in piece)

    def close_open_replies(self) -> int:
        """Mark replies that a dead process left unfinished as stopped; how many there were."""
        with self._writing() as db:
            return db.execute("UPDATE messages SET status = 'stopped' WHERE status = 'streaming'").rowcount

    # Inside

    def _rows_of_branch(self, db: sqlite3.Connection, head_id: str | None) -> tuple[Message, ...]:
        rows = db.execute(
            "WITH RECURSIVE branch(id, depth) AS (SELECT ?, 0 UNION ALL"
            " SELECT m.parent_id, depth + 1 FROM messages m JOIN branch b ON m.id = b.id WHERE m.parent_id IS NOT NULL)"
            " SELECT m.* FROM branch b JOIN messages m ON m.id = b.id ORDER BY b.depth DESC",
            (head_id,),
        ).fetchall()
        return tuple(_to_message(row) for row in rows)

    def _message(self, db: sqlite3.Connection, message_id: str) -> Message:
        return _to_message(db.execute("SELECT * FROM messages WHERE id = ?", (message_id,)).fetchone())

    @contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection]:
        with self._lock:
            try:
                yield self._db
            except sqlite3.Error as error:
                raise _store_error(self.path, error) from error

    @contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        """One transaction; a nested call joins the one around it."""
        with self._lock:
            outermost = not self._db.in_transaction
            try:
                if outermost:
                    self._db.execute("BEGIN IMMEDIATE")
                yield self._db
                if outermost:
                    self._db.execute("COMMIT")
            except BaseException as error:
                if outermost and self._db.in_transaction:
                    self._db.execute("ROLLBACK")
                if isinstance(error, sqlite3.Error):
                    raise _store_error(self.path, error) from error
                raise

    def _migrate(self) -> None:
        found = self._db.execute("PRAGMA user_version").fetchone()[0]
        wanted = len(MIGRATIONS)
        if found > wanted:
            raise StoreError(
                f"The chats in {self.path} were written by a newer Octavo (schema {found}, this one knows {wanted}).",
                remedy="Update Octavo, or set OCTAVO_DATA_DIR to another folder.",
            )
        if found == wanted:
            return
        if found > 0 and self.path is not None:
            self._backup(self.path.with_name(f"{self.path.stem}.schema{found}.bak{self.path.suffix}"))
        with self._writing() as db:
            for migrate in MIGRATIONS[found:]:
                migrate(db)
            db.execute(f"PRAGMA user_version = {wanted}")

    def _backup(self, target: Path) -> None:
        copy = sqlite3.connect(target)
        try:
            self._db.backup(copy)
        finally:
            copy.close()


def _first_schema(db: sqlite3.Connection) -> None:
    db.execute(
        "CREATE TABLE chats (id TEXT PRIMARY KEY, title TEXT NOT NULL, created_s REAL NOT NULL,"
        " updated_s REAL NOT NULL, head_id TEXT, sampling TEXT NOT NULL DEFAULT '{}')"
    )
    db.execute(
        "CREATE TABLE messages (seq INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL UNIQUE,"
        " chat_id TEXT NOT NULL REFERENCES chats(id) ON DELETE CASCADE, parent_id TEXT, role TEXT NOT NULL,"
        " content TEXT NOT NULL, reasoning TEXT NOT NULL DEFAULT '', status TEXT NOT NULL, error TEXT, stats TEXT,"
        " created_s REAL NOT NULL, model TEXT, nonce TEXT,"
        " base_id TEXT, base_tokens INTEGER NOT NULL DEFAULT 0, prompt_ids BLOB, token_ids BLOB)"
    )
    db.execute("CREATE INDEX messages_of_chat ON messages(chat_id)")
    db.execute("CREATE INDEX messages_by_parent ON messages(parent_id)")
    db.execute("CREATE UNIQUE INDEX messages_nonce ON messages(chat_id, nonce) WHERE nonce IS NOT NULL")


# Each step takes the schema from its place in the list to the next; a step that was released is never edited.
MIGRATIONS: tuple[Callable[[sqlite3.Connection], None], ...] = (_first_schema,)


def _to_message(row: sqlite3.Row) -> Message:
    return Message(
        id=row["id"],
        chat_id=row["chat_id"],
        role=row["role"],
        content=row["content"],
        reasoning=row["reasoning"],
        status=row["status"],
        error=row["error"],
        stats=_to_stats(row["stats"]),
        created_s=row["created_s"],
        token_ids=_unpack(row["token_ids"]),
        parent_id=row["parent_id"],
        model=row["model"],
    )


def _to_stats(text: str | None) -> ReplyStats | None:
    if text is None:
        return None
    known = {field.name for field in fields(ReplyStats)}
    return ReplyStats(**{name: value for name, value in json.loads(text).items() if name in known})


def _new_id() -> str:
    return secrets.token_hex(8)


def _pack(ids: Sequence[int]) -> bytes:
    """Token ids as little-endian 32-bit integers."""
    values = array("I", ids)
    if sys.byteorder == "big":
        values.byteswap()
    return values.tobytes()


def _unpack(data: bytes | None) -> tuple[int, ...]:
    values = array("I")
    values.frombytes(data or b"")
    if sys.byteorder == "big":
        values.byteswap()
    return tuple(values)


def _common_prefix(first: Sequence[int], second: Sequence[int]) -> int:
    length = 0
    for mine, other in zip(first, second):
        if mine != other:
            break
        length += 1
    return length


def _store_error(path: Path | None, error: Exception) -> StoreError:
    text = str(error)
    if getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_BUSY:
        return StoreBusyError(
            f"Another program is writing to {path}.", remedy="Close it, or try again when it is done."
        )
    if "full" in text:
        return StoreError(f"The disk of {path} is full; the chat could not be saved.", remedy="Free some space.")
    if isinstance(error, sqlite3.DatabaseError) and ("not a database" in text or "malformed" in text):
        return StoreError(
            f"{path} is damaged or not a file of chats ({text}).",
            remedy="Move it away (Octavo then starts with an empty list) or put a backup in its place.",
        )
    return StoreError(f"The chats in {path} cannot be used: {text}.")
