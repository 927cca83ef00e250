"""Everything Octavo keeps of its user in one place: how large it is, a copy of it, moving it, deleting it."""

from __future__ import annotations

import contextlib
import json
import logging
import shutil
import sqlite3
import time
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from octavo.app.config.files import write_atomically
from octavo.engine.errors import OctavoError

log = logging.getLogger(__name__)

CHATS = "chats.sqlite3"
MOVE_NOTE = "move-from.json"
LEFTOVERS = ("-wal", "-shm", "-journal")
ABOUT = """\
A copy of what Octavo keeps: chats.sqlite3 (all chats, an SQLite database), config.yaml (the settings, without the key)
and the log. To have the chats in another Octavo, choose this zip there under "Import chats". What is there stays.
"""


class DataError(OctavoError):
    """The data cannot be copied or moved as asked; nothing was changed."""


@dataclass(frozen=True, slots=True)
class Place:
    """A folder or file that belongs to Octavo."""

    name: str
    path: Path
    size_bytes: int


def size_of(path: Path) -> int:
    """Bytes of a file or of everything in a folder; 0 for nothing."""
    if path.is_dir():
        return sum(size_of(entry) for entry in path.iterdir() if not entry.is_symlink())
    with contextlib.suppress(OSError):
        return path.stat().st_size
    return 0


def chats_size(folder: Path) -> int:
    """The database with what is not yet folded into it."""
    return sum(size_of(folder / f"{CHATS}{end}") for end in ("", *LEFTOVERS)) + sum(
        size_of(path) for path in folder.glob(f"{CHATS}.*")
    )


def copy_database(source: Path, target: Path) -> None:
    """A complete copy of a database that may be in use, checked. Raises DataError and leaves nothing behind."""
    try:
        with (
            contextlib.closing(sqlite3.connect(f"{source.absolute().as_uri()}?mode=ro", uri=True)) as old,
            contextlib.closing(sqlite3.connect(target)) as new,
        ):
            old.backup(new)
            verdict = new.execute("PRAGMA integrity_check").fetchone()[0]
        if verdict != "ok":
            raise DataError(
                f"The copy of {source} is not whole ({verdict}).", remedy="Close Octavo and copy the file yourself."
            )
    except (sqlite3.Error, OSError) as error:
        target.unlink(missing_ok=True)
        raise DataError(
            f"{source} could not be copied to {target.parent} ({error}).",
            remedy="Check that there is space and that you may write there.",
        ) from error
    except DataError:
        target.unlink(missing_ok=True)
        raise


def export(target: Path, data: Path, config: Path, log_file: Path) -> None:
    """Write a zip of chats, settings (without the key) and log. Raises DataError."""
    copy = target.with_suffix(".part")
    try:
        with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED, compresslevel=6) as archive:
            archive.writestr("README.txt", ABOUT)
            if (data / CHATS).exists():
                copy_database(data / CHATS, copy)
                archive.write(copy, CHATS)
            if config.exists():
                archive.writestr("config.yaml", "\n".join(_without_key(config.read_text(encoding="utf-8-sig"))) + "\n")
            if log_file.exists():
                archive.write(log_file, log_file.name)
    except OSError as error:
        target.unlink(missing_ok=True)
        raise DataError(
            f"The copy could not be written to {target.parent} ({error.strerror or error}).",
            remedy="Check that there is space and that you may write there.",
        ) from error
    finally:
        copy.unlink(missing_ok=True)


def _without_key(text: str) -> Iterator[str]:
    for line in text.splitlines():
        name, colon, _ = line.partition(":")
        yield f"{name}: null" if colon and name.strip().lstrip("{ ") == "api_key" else line


def prepare_move(data: Path, folder: str) -> Path:
    """Check a folder for moving there and leave a note in it: `finish_move` does the rest at the next start, when
    nothing writes. Raises DataError saying what is wrong with the folder."""
    target = Path(folder)
    try:
        target = target.expanduser()
        if not target.is_absolute():
            raise DataError(f"{folder} is no complete path.", remedy="Begin with the drive or with /.")
        target = target.resolve()
        if target == data.resolve():
            raise DataError("The data is in this folder already.", remedy="Choose another folder.")
        if (target / CHATS).exists():
            raise DataError(f"{target} holds chats of its own.", remedy="Choose another folder.")
        target.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(target).free
        needed = 2 * chats_size(data)
        if free < needed:
            raise DataError(
                f"{target} has too little space: {free} bytes are free, {needed} are needed.",
                remedy="Choose another folder.",
            )
        write_atomically(target / MOVE_NOTE, json.dumps({"from": str(data), "at": time.time()}).encode())
    except OSError as error:
        raise DataError(
            f"{target} cannot be written ({error.strerror or error}).", remedy="Choose another folder."
        ) from error
    except (RuntimeError, ValueError) as error:  # a home that nobody has; a character that no path holds
        raise DataError(f"{folder} is no complete path.", remedy="Begin with the drive or with /.") from error
    return target


def finish_move(data: Path) -> str | None:
    """Bring the chats from where they were, if a note in `data` says so; returns a sentence for the user.

    They are copied and checked first and deleted last: whatever happens in between, one whole set remains.
    Raises DataError; then the old folder is as it was.
    """
    note = data / MOVE_NOTE
    try:
        old = Path(json.loads(note.read_text(encoding="utf-8"))["from"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
    if (old / CHATS).exists() and not (data / CHATS).exists():
        part = data / f"{CHATS}.part"
        part.unlink(missing_ok=True)
        copy_database(old / CHATS, part)
        part.replace(data / CHATS)
    note.unlink(missing_ok=True)
    left = [path for path in old.glob(f"{CHATS}*") if _gone(path) is False]
    moved = f"The chats were moved from {old} to {data}."
    return f"{moved} {left[0]} could not be deleted; delete it yourself." if left else moved


def _gone(path: Path) -> bool:
    with contextlib.suppress(OSError):
        path.unlink()
        return True
    return False


def compact(data: Path) -> None:
    """Give back the space of deleted chats, so that their text is no longer in the file."""
    try:
        with contextlib.closing(sqlite3.connect(data / CHATS, timeout=5)) as database:
            database.execute("PRAGMA secure_delete = ON")
            database.execute("VACUUM")
            database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    except sqlite3.Error:  # in use just now; it happens at a later deletion or never, and harms nothing
        log.info("The file of chats could not be compacted now", exc_info=True)


def clear(folder: Path) -> None:
    """Delete what is in a folder; what is in use stays."""
    if not folder.is_dir():
        return
    for entry in folder.iterdir():
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry, ignore_errors=True)
        else:
            _gone(entry)
