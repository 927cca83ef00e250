"""Starting anew in the same place: after a change that needs it, and when the GPU is lost.

A broken CUDA context stays broken for the life of its process, so a new process must take over. Where the system can
replace a process (Linux), it does: same terminal, same process id. On Windows a small parent that holds no GPU starts
the app and starts it again.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from octavo.app.config.files import write_atomically

log = logging.getLogger(__name__)

Reason = Literal["asked", "gpu"]

CODE = 75  # the exit code by which the app asks its parent for a new start
SUPERVISED = "OCTAVO_SUPERVISED"  # set for the child of such a parent
NOTE = "restart.json"
MOST_LOSSES = 3  # of the GPU within the time below; then something is wrong that a restart does not mend
WITHIN_S = 600.0


@dataclass(frozen=True, slots=True)
class Restart:
    """Why and when the app started itself anew; `losses` are the times at which the GPU was lost lately.

    `port` is where it answered while `asked_port` was set: open pages look for it there.
    """

    reason: Reason
    at_s: float
    losses: tuple[float, ...] = ()
    asked_port: int | None = None
    port: int | None = None

    def port_to_keep(self, asked_port: int) -> int | None:
        """The port to answer at again, unless another one is asked for now."""
        return self.port if asked_port == self.asked_port else None


class RestartNote:
    """What one life of the app leaves for the next, in the data folder."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / NOTE
        self._before: Restart | None = None

    def take(self) -> Restart | None:
        """The note of the life before, if it ended in a restart just now; it is read once."""
        with suppress(OSError, ValueError, KeyError, TypeError):
            found = json.loads(self._path.read_text(encoding="utf-8"))
            losses = tuple(map(float, found["losses"]))
            ports = [None if found.get(name) is None else int(found[name]) for name in ("asked_port", "port")]
            self._before = Restart(found["reason"], float(found["at_s"]), losses, *ports)
        self._path.unlink(missing_ok=True)
        return self._before

    def may_restart(self, now_s: float | None = None) -> bool:
        """Whether another loss of the GPU is worth another try."""
        return len(self._losses(now_s)) < MOST_LOSSES

    def leave(
        self, reason: Reason, now_s: float | None = None, *, asked_port: int | None = None, port: int | None = None
    ) -> None:
        now = time.time() if now_s is None else now_s
        losses = (*self._losses(now), *([now] if reason == "gpu" else []))
        note = asdict(Restart(reason, now, losses, asked_port, port))
        with suppress(OSError):  # then the next start is an ordinary one
            write_atomically(self._path, json.dumps(note).encode())

    def _losses(self, now_s: float | None) -> tuple[float, ...]:
        now = time.time() if now_s is None else now_s
        known = () if self._before is None else self._before.losses
        return tuple(at for at in known if now - at < WITHIN_S)


def is_parents_turn(platform: str = sys.platform) -> bool:
    """Whether this process should only watch over another one that does the work."""
    return platform == "win32" and SUPERVISED not in os.environ


def supervise(command: Sequence[str] | None = None) -> int:
    """Run the app in a child, and again as often as it asks for it; returns its last exit code.

    Ctrl+C reaches the child as well; it decides when it is over.
    """
    before = signal.signal(signal.SIGINT, lambda *_: None)  # not SIG_IGN, which a child would inherit
    environment = {**os.environ, SUPERVISED: "1"}
    try:
        while True:
            code = subprocess.call(list(command or _own_command()), env=environment)
            if code != CODE:
                return code
            log.info("Starting again.")
    finally:
        signal.signal(signal.SIGINT, before)


def again() -> int:
    """Start this very command anew. Does not return where the process can be replaced; else gives the exit code that
    the parent waits for."""
    if os.name != "posix" or SUPERVISED in os.environ:
        return CODE
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError, AttributeError):
            stream.flush()
    command = _own_command()
    os.execv(command[0], command)


def force(note: RestartNote, reason: Reason, asked_port: int | None = None, port: int | None = None) -> None:
    """The same from any thread, without an orderly end: for a process that hangs on a GPU that is gone."""
    log.error("The GPU does not let go; starting anew without waiting for it.")
    note.leave(reason, asked_port=asked_port, port=port)
    os._exit(again())


def _own_command() -> list[str]:
    return [sys.executable, *sys.orig_argv[1:]]
