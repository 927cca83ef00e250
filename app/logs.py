"""The one set-up of logging: short lines to stderr, full ones to a rotating file. Standard output stays for results."""

from __future__ import annotations

import contextvars
import io
import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from logging.handlers import RotatingFileHandler
from pathlib import Path

from octavo.app import paths
from octavo.app.monitor.lines import LINES

FILE_NAME = "octavo.log"
_supposing = contextvars.ContextVar("supposing", default=False)


@contextmanager
def supposing() -> Iterator[None]:
    """Inside, the engine only works out what a load would take: what it chooses is no news until it is done."""
    token = _supposing.set(True)
    try:
        yield
    finally:
        _supposing.reset(token)


def _is_news(record: logging.LogRecord) -> bool:
    return not (_supposing.get() and record.name.startswith("octavo.engine"))


def set_up_logging(level: str = "info", folder: Path | None = None) -> Path | None:
    """Sends the log to stderr, to `octavo.log` (5 MB, three old ones kept) and to the page's monitor.

    Returns the file, None without one.
    """
    root = logging.getLogger()
    for handler in [handler for handler in root.handlers if getattr(handler, "of_octavo", False)]:
        root.removeHandler(handler)
        handler.close()
    if isinstance(sys.stderr, io.TextIOWrapper):
        sys.stderr.reconfigure(errors="backslashreplace")  # a Windows code page must not end a line of log in an error
    _add(root, logging.StreamHandler(sys.stderr), "%(asctime)s %(levelname)s %(message)s", "%H:%M:%S")
    _add(root, LINES, "%(message)s", None)
    file = (folder or paths.log_dir()) / FILE_NAME
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        handler = RotatingFileHandler(file, maxBytes=5_000_000, backupCount=3, encoding="utf-8")
    except OSError as error:
        logging.getLogger(__name__).warning("No log file: %s cannot be written (%s).", file, error.strerror or error)
        is_kept = False
    else:
        _add(root, handler, "%(asctime)s %(levelname)s %(name)s: %(message)s", None)
        is_kept = True
    root.setLevel(logging.WARNING)
    set_level(level)
    return file if is_kept else None


def set_level(level: str) -> None:
    """Changes how much of Octavo's own log is kept; other libraries' warnings always are."""
    logging.getLogger("octavo").setLevel(level.upper())


def _add(root: logging.Logger, handler: logging.Handler, form: str, date_form: str | None) -> None:
    handler.setFormatter(logging.Formatter(form, date_form))
    handler.of_octavo = True  # type: ignore[attr-defined]
    handler.addFilter(_is_news)
    root.addHandler(handler)
