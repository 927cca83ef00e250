"""The page in a window of its own, by pywebview, in a process of its own: it needs the main thread.

`python -m octavo.app.window URL FOLDER`; ends when the window is closed.
"""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

from octavo.engine.errors import OctavoError

TITLE = "Octavo"
SIZE = (1280, 860)
LEAST = (420, 500)
END_S = 3.0


class NoWindowError(OctavoError):
    """A window was asked for, but nothing here can draw one."""

    def __init__(self) -> None:
        super().__init__(
            "A window of its own needs pywebview, which is not installed.",
            remedy="Install it with `pip install pywebview` beside Octavo, or start without --window.",
        )


def require_window() -> None:
    """Raises NoWindowError where pywebview is not installed."""
    if find_spec("webview") is None:
        raise NoWindowError


class Window:
    """A running window; `on_close` is called from another thread when its user closes it."""

    def __init__(self, url: str, storage: Path, on_close: Callable[[], None] | None = None) -> None:
        command = [sys.executable, "-m", "octavo.app.window", url, str(storage)]
        self._process = subprocess.Popen(command)
        self._on_close = on_close
        self._ending = False
        if on_close is not None:
            threading.Thread(target=self._wait, name="octavo-window", daemon=True).start()

    def wait(self) -> int:
        """Until it is closed; its exit code."""
        return self._process.wait()

    def close(self) -> None:
        self._ending = True
        with suppress(OSError):
            self._process.terminate()
        try:
            self._process.wait(END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()

    def _wait(self) -> None:
        self._process.wait()
        if not self._ending and self._on_close is not None:
            self._on_close()


def main(url: str, storage: str) -> None:
    import webview

    with suppress(AttributeError, KeyError, TypeError):  # not in every version
        webview.settings["ALLOW_DOWNLOADS"] = True
    webview.create_window(TITLE, url, width=SIZE[0], height=SIZE[1], min_size=LEAST, text_select=True)
    webview.start(private_mode=False, storage_path=storage)


if __name__ == "__main__":
    main(*sys.argv[1:3])
