"""Keeps runs apart that write the same folder: a file named after the process stands in it while a run goes on."""

from __future__ import annotations

import os
import re
import sys
from contextlib import suppress
from pathlib import Path
from types import TracebackType

from octavo.engine.quant.calibrate.errors import QuantizeError

MARK = re.compile(r"running-(\d{1,10})")
_TRIES = 20
_held: set[Path] = set()  # marks of this process's own runs: its number alone may be that of one which was killed


class FolderLock:
    """`with FolderLock(folder):` one run at a time, of all processes of this machine. Makes the folder, and takes it
    away again if nothing else is in it at the end. Raises QuantizeError if another run holds it, and OSError.

    Each run puts up its own mark first and looks for others then, so of two at once at most one goes on. The mark of
    a process that is gone counts for nothing.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._mark = folder.resolve() / f"running-{os.getpid()}"

    def check(self) -> None:
        """Raises QuantizeError if another run holds the folder."""
        for path in marks(self.folder):
            pid = int(path.name.rpartition("-")[2])
            if path.name != self._mark.name and _alive(pid):
                raise _taken(self.folder, pid, path)

    def __enter__(self) -> FolderLock:
        if self._mark in _held:
            raise _taken(self.folder, os.getpid(), self._mark)
        self._put_up()
        _held.add(self._mark)
        try:
            self.check()
            for path in marks(self.folder):
                if path.name != self._mark.name:
                    path.unlink(missing_ok=True)
        except BaseException:
            self._take_down()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._take_down()

    def _put_up(self) -> None:
        for left in reversed(range(_TRIES)):
            self.folder.mkdir(exist_ok=True)
            try:
                self._mark.touch(exist_ok=False)
            except FileExistsError:
                return  # of a process with this number that was killed
            except FileNotFoundError:
                if not left:
                    raise
                continue  # a run that ended took the folder away in between
            return

    def _take_down(self) -> None:
        _held.discard(self._mark)
        with suppress(OSError):  # it holds what can be gone on with, or is gone
            self._mark.unlink(missing_ok=True)
            self.folder.rmdir()


def marks(folder: Path) -> list[Path]:
    """The marks in a folder, of runs that go on and of those that were killed."""
    return [path for path in folder.iterdir() if MARK.fullmatch(path.name)] if folder.is_dir() else []


def _taken(folder: Path, pid: int, mark: Path) -> QuantizeError:
    return QuantizeError(
        f"Another run (process {pid}) is writing to {folder}.",
        remedy=f"Wait until it ends, or name another OUT; if process {pid} is something else, remove {mark}.",
    )


def _alive(pid: int) -> bool:
    """Whether a process of this machine has the number; one that may not be looked at counts."""
    if sys.platform == "win32":
        return _alive_on_windows(pid)
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        return True
    return True


if sys.platform == "win32":
    import ctypes

    _SYNCHRONIZE, _ACCESS_DENIED, _STILL_RUNS = 0x0010_0000, 5, 0x102

    def _alive_on_windows(pid: int) -> bool:
        # os.kill would end the process there, whatever the signal
        kernel = ctypes.WinDLL("kernel32", use_last_error=True)
        kernel.OpenProcess.restype = ctypes.c_void_p
        kernel.WaitForSingleObject.argtypes = (ctypes.c_void_p, ctypes.c_uint32)
        kernel.CloseHandle.argtypes = (ctypes.c_void_p,)
        handle = kernel.OpenProcess(_SYNCHRONIZE, False, ctypes.c_uint32(pid))
        if not handle:
            return ctypes.get_last_error() == _ACCESS_DENIED
        try:
            return bool(kernel.WaitForSingleObject(handle, 0) == _STILL_RUNS)
        finally:
            kernel.CloseHandle(handle)
