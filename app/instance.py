"""One Octavo a data folder: a lock that dies with its process, and a note that says where the running one answers."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

import filelock

from octavo.app.config.files import write_atomically


@dataclass(frozen=True, slots=True)
class Running:
    """The Octavo that holds the lock. `page` is None where an older version wrote the note."""

    pid: int
    port: int
    url: str
    page: bool | None = None


class InstanceLock:
    """Held by the one process that may use the data folder (two engines on one GPU run out of memory).

    The operating system releases the lock when its holder ends, however it ends, so it never goes stale.
    """

    def __init__(self, folder: Path) -> None:
        self._note = folder / "instance.json"
        self._lock = filelock.FileLock(folder / "instance.lock")

    def acquire(self) -> bool:
        """Takes the lock; False if another process has it. Raises OSError if the folder cannot be written."""
        self._note.parent.mkdir(parents=True, exist_ok=True)
        try:
            self._lock.acquire(timeout=0)
        except filelock.Timeout:
            return False
        self._note.unlink(missing_ok=True)  # of one that was killed
        return True

    def announce(self, port: int, url: str, page: bool | None = None) -> None:
        """Says where this process answers, and whether with the page or the API alone."""
        note = asdict(Running(os.getpid(), port, url, page))
        write_atomically(self._note, json.dumps(note).encode("utf-8"))

    def running(self) -> Running | None:
        """What the holder announced; None while it is still starting."""
        try:
            note = json.loads(self._note.read_text(encoding="utf-8"))
            page = note.get("page")
            return Running(int(note["pid"]), int(note["port"]), str(note["url"]), None if page is None else bool(page))
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return None

    def release(self) -> None:
        """Gives the lock back."""
        if self._lock.is_locked:
            self._note.unlink(missing_ok=True)
            self._lock.release()
