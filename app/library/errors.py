"""What can go wrong between a model's name and its files on disk."""

from __future__ import annotations

import errno
import shutil
from pathlib import Path
from typing import Literal

from octavo.app.config.sizes import format_size
from octavo.engine.errors import OctavoError


class LibraryError(OctavoError):
    """A model's files could not be found or fetched; nothing half-written stays behind under the final name."""


class ModelNotFoundError(LibraryError):
    """No such folder, file or repository."""


class AccessError(LibraryError):
    """The hub has the model but does not hand it out; `reason` says which of the three it is."""

    def __init__(
        self, message: str, *, reason: Literal["no token", "wrong token", "no access"], remedy: str | None = None
    ) -> None:
        super().__init__(message, remedy=remedy)
        self.reason = reason


class OfflineError(LibraryError):
    """What is missing on disk cannot be reached."""


class DownloadError(LibraryError):
    """A download ended in an error or brought other bytes than promised."""


class DiskFullError(LibraryError):
    """Not enough room on the disk."""

    def __init__(self, folder: Path, needed_bytes: int | None = None, free_bytes: int | None = None) -> None:
        figures = ""
        if needed_bytes is not None and free_bytes is not None:
            figures = f": {format_size(needed_bytes)} are needed, {format_size(free_bytes)} are free"
        super().__init__(f"The disk that holds {folder} is full{figures}.", remedy="Free some space and try again.")


class FetchCancelledError(LibraryError):
    """The user cancelled the download."""

    def __init__(self) -> None:
        super().__init__("The download was cancelled.")


def require_space(folder: Path, needed_bytes: int) -> None:
    """Raises DiskFullError if the disk of `folder` (which may not exist yet) has less than `needed_bytes` free."""
    existing = next(path for path in (folder, *folder.parents) if path.exists())
    free = shutil.disk_usage(existing).free
    if free < needed_bytes:
        raise DiskFullError(folder, needed_bytes, free)


def is_disk_full(error: OSError) -> bool:
    """Whether the system said that there is no room: ENOSPC, a quota, or Windows' own number."""
    return error.errno in {errno.ENOSPC, getattr(errno, "EDQUOT", errno.ENOSPC)} or getattr(
        error, "winerror", None
    ) in {39, 112}
