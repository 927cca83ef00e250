"""The file of chats as SQLite sees it: opened, brought to the newest schema, read and written in transactions."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from octavo.engine.errors import OctavoError

Migration = Callable[[sqlite3.Connection], None]

OPENING_S = 10.0  # how long opening the file waits for another process
LOG_BYTES = 16 * 1024 * 1024  # what the log of changes keeps of the disk after a large one
BUSY_S = 0.05  # and a call later on: an event loop stands still meanwhile


class StoreError(OctavoError):
    """The file of chats cannot be read or written."""


class StoreBusyError(StoreError):
    """Another process is writing to the file of chats; nothing was changed, and the same call may soon succeed."""


class StoreFile:
    """One connection for all threads. `path` None keeps everything in memory.

    Opening brings the file to the schema of `migrations` (its number is their count) and keeps a copy of the older file
    first. Raises StoreError where the file is damaged, newer than this version, or the disk is full.
    """

    def __init__(self, path: Path | None, migrations: Sequence[Migration]) -> None:
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
            self._db.execute(f"PRAGMA journal_size_limit = {LOG_BYTES}")
            self._db.execute("PRAGMA foreign_keys = ON")
            self._db.execute("PRAGMA secure_delete = ON")  # what was deleted is overwritten
            self._migrate(migrations)
            self._db.execute(f"PRAGMA busy_timeout = {round(BUSY_S * 1000)}")
        except (sqlite3.Error, OSError) as error:
            raise _store_error(path, error) from error

    def close(self) -> None:
        with self._lock:
            self._db.close()

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        with self._lock:
            try:
                yield self._db
            except sqlite3.Error as error:
                raise _store_error(self.path, error) from error

    @contextmanager
    def writing(self) -> Iterator[sqlite3.Connection]:
        """One transaction; a nested call joins the one around it. Raises StoreBusyError after BUSY_S at most."""
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

    def _migrate(self, migrations: Sequence[Migration]) -> None:
        wanted = len(migrations)
        found = self._schema(wanted)
        if found == wanted:
            return
        if found > 0 and self.path is not None:
            self._backup(self.path.with_name(f"{self.path.stem}.schema{found}.bak{self.path.suffix}"))
        with self.writing() as db:
            for migrate in migrations[self._schema(wanted) :]:  # another process may have been quicker
                migrate(db)
            db.execute(f"PRAGMA user_version = {wanted}")

    def _schema(self, wanted: int) -> int:
        found = int(self._db.execute("PRAGMA user_version").fetchone()[0])
        if found > wanted:
            raise StoreError(
                f"The chats in {self.path} were written by a newer Octavo (schema {found}, this one knows {wanted}).",
                remedy="Update Octavo, or set OCTAVO_DATA_DIR to another folder.",
            )
        return found

    def _backup(self, target: Path) -> None:
        """A whole copy or none: it gets its name when it is complete."""
        unfinished = target.with_name(f"{target.name}.part")
        unfinished.unlink(missing_ok=True)
        unfinished.touch(mode=0o600)
        copy = sqlite3.connect(unfinished)
        try:
            self._db.backup(copy)
        finally:
            copy.close()
        unfinished.replace(target)


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
    return StoreError(
        f"The chats in {path} cannot be used: {text}.",
        remedy="Check that the folder is there and that you may write to it.",
    )
