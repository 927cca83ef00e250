"""Notices that config.yaml was changed, and keeps the last good settings while it is wrong."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from pathlib import Path

from octavo.app.config import schema
from octavo.app.config.errors import ConfigError
from octavo.app.config.load import Settings

log = logging.getLogger("octavo.config")

Stamp = tuple[int, int, int] | None


class ConfigWatcher:
    """Polls the file (time, size, identity) and brings every change that is valid into `settings`.

    `settings.error` says what is wrong with the file now, while the values stay as they were. `on_change(keys)`, with
    the keys that changed and when each takes effect, and `on_error(error)` are called from the watching thread, or
    from `poll` for those who have a loop of their own; `settings.listen` hears of every change, whoever made it.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        on_change: Callable[[dict[str, schema.Applies]], None] | None = None,
        on_error: Callable[[ConfigError], None] | None = None,
        interval_s: float = 1.0,
    ) -> None:
        self.settings = settings
        self._on_change, self._on_error = on_change, on_error
        self._interval_s = interval_s
        self._stamp = _stamp(settings.path)
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begins to watch in a thread of its own."""
        self._thread = threading.Thread(target=self._run, name="octavo-config", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stops watching."""
        self._stop.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()

    def poll(self) -> bool:
        """Looks once; True if the settings changed."""
        stamp = _stamp(self.settings.path)
        if stamp == self._stamp:
            return False
        self._stamp = stamp
        had_error = self.settings.error is not None
        try:
            keys = self.settings.refresh()
        except ConfigError as error:
            log.warning("%s The previous settings stay.", error)
            if self._on_error:
                self._on_error(error)
            return False
        if (keys or had_error) and self._on_change:
            self._on_change(keys)
        return bool(keys)

    def _run(self) -> None:
        while not self._stop.wait(self._interval_s):
            try:
                self.poll()
            except Exception:  # one faulty receiver must not end the watching
                log.exception("A change of config.yaml could not be handed on")


def _stamp(path: Path) -> Stamp:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino
