"""Chats out of a copy of the file of chats, as the settings' "copy of everything" holds it.

The copy may come from anywhere, so nothing in it is trusted: it is opened read-only, must have our own plain tables and
no programs of its own (triggers, views, computed columns), and each chat goes through the same sieve as one in JSON.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from octavo.app.chat.errors import ChatError
from octavo.app.chat.exporting import chat_to_json
from octavo.app.chat.importing import NotAChatError, read_chat, read_presets, text
from octavo.app.chat.store_file import StoreFile
from octavo.app.chat.store_records import ChatRecord, read_record
from octavo.app.chat.store_schema import MIGRATIONS
from octavo.app.chat.types import Preset
from octavo.app.text import read_json

MAGIC = b"SQLite format 3\0"
TABLES = ("chats", "messages")
LONGEST_VALUE = 64 * 1024 * 1024  # bytes of one text; no chat of ours comes near


class NotADatabaseError(ChatError):
    """A file that is no whole file of chats of a version this one knows."""

    def __init__(self, reason: str) -> None:
        super().__init__(
            f"This is no file of chats that can be read: {reason}.",
            remedy="Choose the copy of everything that Octavo's settings download.",
        )


class ChatDatabase:
    """The chats in a copy of a file of chats, which is the reader's own: an older one is brought to the newest schema.

    All methods may be called from any thread. Raises NotADatabaseError when made and when read.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        with path.open("rb") as file:
            if file.read(len(MAGIC)) != MAGIC:
                raise NotADatabaseError("it is no SQLite database")
        with self._reading() as db:
            found = int(db.execute("PRAGMA user_version").fetchone()[0])
            if not 0 < found <= len(MIGRATIONS):
                newer = found > len(MIGRATIONS)
                raise NotADatabaseError("a newer Octavo wrote it" if newer else "Octavo did not write it")
            _check_tables(db)
            if db.execute("PRAGMA quick_check(1)").fetchone()[0] != "ok":
                raise NotADatabaseError("it is damaged")
        if found < len(MIGRATIONS):
            StoreFile(path, MIGRATIONS).close()
        with self._reading() as db:
            self.chat_ids: tuple[str, ...] = tuple(
                row["id"] for row in db.execute("SELECT id FROM chats WHERE deleted_s IS NULL ORDER BY updated_s")
            )

    def record(self, chat_id: str) -> ChatRecord:
        """A chat with all its versions. Raises NotAChatError for one that makes no sense."""
        with self._reading() as db:
            try:
                record = read_record(db, chat_id)
                if record is None:
                    raise NotAChatError("it is empty")
                messages = tuple(
                    replace(turn, status="stopped") if turn.status == "streaming" else turn for turn in record.messages
                )
                return read_chat(chat_to_json(replace(record, messages=messages)))
            except (ValueError, TypeError, KeyError, AttributeError, OverflowError, OSError, RecursionError) as error:
                raise NotAChatError("its values are damaged") from error

    def presets(self) -> list[Preset]:
        """The presets in it, as far as they can be read."""
        with self._reading() as db:
            if not db.execute("SELECT 1 FROM sqlite_master WHERE name = 'presets' AND type = 'table'").fetchone():
                return []
            rows = db.execute("SELECT name, system, sampling FROM presets").fetchall()
        return read_presets([{**dict(row), "sampling": _object(row["sampling"])} for row in rows])

    @contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection]:
        try:
            with closing(sqlite3.connect(f"{self._path.absolute().as_uri()}?mode=ro&immutable=1", uri=True)) as db:
                db.row_factory = sqlite3.Row
                db.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, LONGEST_VALUE)
                db.execute("PRAGMA trusted_schema = OFF")
                db.execute("PRAGMA cell_size_check = ON")
                yield db
        except sqlite3.Error as error:
            raise NotADatabaseError("it is damaged") from error


def _check_tables(db: sqlite3.Connection) -> None:
    """Refuse what would run code of the file's own: triggers, views, computed columns, virtual tables of our names."""
    if db.execute("SELECT 1 FROM sqlite_master WHERE type IN ('trigger', 'view')").fetchone():
        raise NotADatabaseError("Octavo did not write it")
    for table in (*TABLES, "presets"):
        row = db.execute("SELECT rootpage FROM sqlite_master WHERE type = 'table' AND name = ?", (table,)).fetchone()
        if row is None and table in TABLES:
            raise NotADatabaseError("Octavo did not write it")
        if row is not None and (
            not row["rootpage"]  # a virtual table has no page of its own
            or any(column["hidden"] for column in db.execute(f"PRAGMA table_xinfo({table})"))
        ):
            raise NotADatabaseError("Octavo did not write it")


def _object(value: object) -> Any:
    try:
        return read_json(text(value).encode())
    except (ValueError, RecursionError):
        return {}
