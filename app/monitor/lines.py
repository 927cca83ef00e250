"""The log's last lines in memory, for those who look at the page instead of at a file."""

from __future__ import annotations

import logging
import threading
import traceback
from collections import deque
from dataclasses import dataclass

KEPT = 1000
LONGEST = 2000  # characters of a line


@dataclass(frozen=True, slots=True)
class Line:
    """One record. `trace` is the whole trace as the file has it; `frames` the same without what the errors said, which
    may quote a chat."""

    number: int
    at_s: float
    level: str
    source: str
    text: str
    trace: str = ""
    frames: str = ""


class LogLines(logging.Handler):
    """A handler that keeps the newest lines."""

    def __init__(self) -> None:
        super().__init__()
        self._kept: deque[Line] = deque(maxlen=KEPT)
        self._guard = threading.Lock()
        self._number = 0

    def emit(self, record: logging.LogRecord) -> None:
        try:
            trace, frames = _trace(record)
            with self._guard:
                self._number += 1
                text = record.getMessage()[:LONGEST]
                self._kept.append(
                    Line(self._number, record.created, record.levelname.lower(), record.name, text, trace, frames)
                )
        except Exception:  # a line that cannot be formatted must not end what logged it
            self.handleError(record)

    def after(self, number: int = 0) -> list[Line]:
        """The kept lines with a higher number, oldest first; all of them for a number that was never given, which a
        reader has from an Octavo before this one."""
        with self._guard:
            if number > self._number:
                number = 0
            return [line for line in self._kept if line.number > number]


def _trace(record: logging.LogRecord) -> tuple[str, str]:
    if not record.exc_info or record.exc_info[1] is None:
        return "", ""
    _, error, place = record.exc_info
    frames = [f"{frame.filename}:{frame.lineno} in {frame.name}" for frame in traceback.extract_tb(place)]
    return "".join(traceback.format_exception(error)).strip(), "\n".join([*frames, type(error).__name__])


LINES = LogLines()
