"""Opening the page in the user's browser, where there is one to see it."""

from __future__ import annotations

import logging
import os
import sys
import threading
import webbrowser
from collections.abc import Mapping

log = logging.getLogger(__name__)


def can_open(environment: Mapping[str, str] | None = None, platform: str = sys.platform) -> bool:
    """Whether a browser would appear before the user: there is a display, and this is no remote shell."""
    environment = os.environ if environment is None else environment
    if any(environment.get(name) for name in ("SSH_CONNECTION", "SSH_TTY", "SSH_CLIENT")):
        return False
    if platform.startswith("linux"):
        return any(environment.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY"))
    return True


def open_page(url: str) -> bool:
    """Opens the page without waiting for the browser; False where none can appear. Never fails."""
    if not can_open():
        return False
    threading.Thread(target=_open, args=(url,), name="octavo-browser", daemon=True).start()
    return True


def _open(url: str) -> None:
    try:
        if not webbrowser.open(url):
            log.info("No browser could be opened; the page is at %s", url)
    except Exception as error:  # a broken browser setting must not end the app
        log.info("No browser could be opened (%s); the page is at %s", error, url)
