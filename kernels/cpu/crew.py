"""Helper threads that compute beside the thread of the engine, with nothing of the operating system but sleeping.

A helper sleeps in Python until there is work, then runs compiled code without the interpreter's lock. Whoever leads
does not wait for helpers to come; it only waits, at the end, for those that came to leave.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Sequence

import numpy as np

OPEN, ACTIVE = 0, 8  # places in the gate, in int64: the number of the work that may be joined, and who is in it

Enter = Callable[..., None]  # (gate, ticket, thread, *arguments), see entry.py


class Crew:
    """`helpers` sleeping threads. One caller at a time. They end with `close` or when the crew is forgotten."""

    def __init__(self, helpers: int) -> None:
        self._gate = np.zeros(16, dtype=np.int64)
        self._address = self._gate.ctypes.data
        self._job = _Job(self._gate)
        self._ticket = 0
        self._wakes = [threading.Lock() for _ in range(helpers)]  # held while there is nothing to wake for
        for wake in self._wakes:
            wake.acquire()
        for index, wake in enumerate(self._wakes, 1):
            threading.Thread(target=_help, args=(self._job, wake, index), name=f"cpu-{index}", daemon=True).start()
        self._finalizer = weakref.finalize(self, _dismiss, self._job, self._wakes)

    @property
    def size(self) -> int:
        """Threads, the caller's own included."""
        return len(self._wakes) + 1

    def run(self, enter: Enter, *arguments: object) -> None:
        """Runs one piece of work with whoever comes in time."""
        self._ticket += 1
        self._job.work = (self._ticket, enter, arguments)
        self._gate[OPEN] = self._ticket
        _release(self._wakes)
        enter(self._address, self._ticket, 0, *arguments)

    def close(self) -> None:
        """Lets the threads end."""
        self._finalizer()


class _Job:
    """What helpers share with the crew; they do not keep the crew itself alive."""

    def __init__(self, gate: np.ndarray) -> None:
        self.gate = gate
        self.work: tuple[int, Enter, tuple[object, ...]] | None = None
        self.over = False


def _release(wakes: Sequence[threading.Lock]) -> None:
    """A lock that is free already wakes its helper as soon as that comes back to it."""
    for wake in wakes:
        if wake.locked():
            wake.release()


def _help(job: _Job, wake: threading.Lock, thread: int) -> None:
    address, done = job.gate.ctypes.data, 0
    while True:
        wake.acquire()
        if job.over:
            return
        if job.work is not None and job.work[0] != done:
            done, enter, arguments = job.work
            enter(address, done, thread, *arguments)


def _dismiss(job: _Job, wakes: Sequence[threading.Lock]) -> None:
    job.over = True
    _release(wakes)
