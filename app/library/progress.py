"""How a fetch tells what it does, and how it is told to stop."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from octavo.app.library.errors import FetchCancelledError

Report: TypeAlias = Callable[[str, int, int, str], None]
"""Called with a stage (downloading, checking, unpacking), the bytes done, the bytes in all, and the source's name.

It is also called while nothing moves, so that a receiver may stop the fetch by raising from it.
"""

Cancelled: TypeAlias = Callable[[], bool]
"""Asked often; once it says True the fetch ends with FetchCancelledError."""

DOWNLOADING = "downloading"
CHECKING = "checking"
UNPACKING = "unpacking"


def ignore(stage: str, done: int, total: int, source: str) -> None:
    """The report nobody reads."""


def never() -> bool:
    """The stop nobody asks for."""
    return False


def stop_if(cancelled: Cancelled) -> None:
    """Raises FetchCancelledError once the user has cancelled."""
    if cancelled():
        raise FetchCancelledError
