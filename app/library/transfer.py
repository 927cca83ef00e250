"""One file of a repository into the hub's cache: goes on where it stopped, and counts only once its hash is right.

The hub library begins a broken file anew (its temporary names are made for one try), so the bytes come through its
session, but are kept here as blobs/<etag>.incomplete, which stays when a download is paused or the power goes.
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import filelock

from octavo.app.library.cache import INCOMPLETE, hub_cache, repository_folder
from octavo.app.library.errors import DownloadError
from octavo.app.library.progress import CHECKING, DOWNLOADING, Cancelled, stop_if
from octavo.app.library.refusals import is_transport, plain_errors
from octavo.app.library.repository import RemoteFile

if TYPE_CHECKING:
    from hashlib import _Hash

log = logging.getLogger(__name__)

Moved = Callable[[str, int], None]
"""Called with the stage and the bytes of the file that are there; also now and then while nothing moves."""

SILENCE_S = 15.0  # a connection that sends nothing for so long is given up
WAITS_S = (1.0, 2.0, 4.0, 8.0)  # before each further try while nothing comes; any byte starts them anew
RANGE_BYTES = 16 << 30  # asked for at once: delivery networks answer no request for more than 50 GB
_ETAG = re.compile(r"[\w.-]{1,128}")
_TRANSIENT = frozenset({408, 425, 429, 500, 502, 503, 504})


def transfer(
    repo_id: str, commit: str, file: RemoteFile, cache: Path | None, moved: Moved, cancelled: Cancelled
) -> Path:
    """The file in the cache's snapshot of `commit`, fetched if it is not there yet.

    Raises FetchCancelledError (what has come stays and is used by the next try) and what `plain_errors` makes.
    """
    root = repository_folder(repo_id, cache)
    pointer = root / "snapshots" / commit / file.name
    with plain_errors(repo_id, commit, hub_cache(cache)):
        if pointer.exists():
            return pointer
        file = _described(repo_id, commit, file)
        blob = root / "blobs" / file.etag
        lock_file = hub_cache(cache) / ".locks" / root.name / f"{file.etag}.lock"
        with _alone(lock_file, lambda: moved(DOWNLOADING, bytes_there(repo_id, commit, file, cache)), cancelled):
            if not pointer.exists():
                if not blob.exists():
                    blob.parent.mkdir(parents=True, exist_ok=True)
                    _Receiver(repo_id, commit, file, blob, moved, cancelled).run()
                _point(pointer, blob)
    return pointer


def bytes_there(repo_id: str, commit: str, file: RemoteFile, cache: Path | None) -> int:
    """How much of a file the cache has already, finished or not."""
    root = repository_folder(repo_id, cache)
    for path in (root / "snapshots" / commit / file.name, root / "blobs" / (file.etag or "?")):
        if path.exists():
            return file.size
    try:
        return min(file.size, _part(root / "blobs" / (file.etag or "?")).stat().st_size)
    except OSError:
        return 0


def discard_part(repo_id: str, file: RemoteFile, cache: Path | None) -> None:
    """Deletes what has come of an unfinished file."""
    if file.etag:
        _part(repository_folder(repo_id, cache) / "blobs" / file.etag).unlink(missing_ok=True)


def _part(blob: Path) -> Path:
    return blob.with_name(blob.name + INCOMPLETE)


def _described(repo_id: str, commit: str, file: RemoteFile) -> RemoteFile:
    """With the content's name and its size, asked of the hub where its list left them out."""
    if not file.etag or not file.size:
        from huggingface_hub import get_hf_file_metadata, hf_hub_url

        found = get_hf_file_metadata(hf_hub_url(repo_id, file.name, revision=commit), timeout=SILENCE_S)
        file = RemoteFile(file.name, found.size if found.size is not None else file.size, found.etag or "")
    if not _ETAG.fullmatch(file.etag) or file.etag.strip(".") == "":
        raise DownloadError(
            f"The hub does not say which content {file.name} of {repo_id} has.", remedy="Try again later."
        )
    return file


class _Receiver:
    """Fills one blob, over as many connections as it takes."""

    def __init__(
        self, repo_id: str, commit: str, file: RemoteFile, blob: Path, moved: Moved, cancelled: Cancelled
    ) -> None:
        self._repo_id, self._commit, self._file = repo_id, commit, file
        self._blob, self._part = blob, _part(blob)
        self._moved, self._cancelled = moved, cancelled
        self._digest = _Digest(file)

    def run(self) -> None:
        """Raises DownloadError if the content is not what its name says; then nothing of it stays."""
        failures = 0
        while (have := self._have()) < self._file.size:
            try:
                self._receive(have)
            except Exception as error:
                if not _is_worth_another_try(error):
                    raise
                failures = failures + 1 if self._have() <= have else 0
                if failures > len(WAITS_S):
                    raise
                log.info("The connection for %s broke (%s); trying again.", self._file.name, type(error).__name__)
                self._wait(WAITS_S[max(0, failures - 1)] if failures else 0.0)
        if not self._part.exists():  # a file of no bytes
            self._part.touch()
        self._check()
        self._part.replace(self._blob)

    def _have(self) -> int:
        have = self._part.stat().st_size if self._part.exists() else 0
        if have > self._file.size:
            self._part.unlink()
            have = 0
        return have

    def _receive(self, have: int) -> None:
        from huggingface_hub import hf_hub_url
        from huggingface_hub.utils import build_hf_headers, get_session, hf_raise_for_status

        url = hf_hub_url(self._repo_id, self._file.name, revision=self._commit)
        headers = {**build_hf_headers(), "Accept-Encoding": "identity"}
        if have or self._file.size > RANGE_BYTES:
            headers["Range"] = f"bytes={have}-{min(have + RANGE_BYTES, self._file.size) - 1}"
        self._moved(DOWNLOADING, have)
        with get_session().stream("GET", url, headers=headers, timeout=SILENCE_S) as response:
            hf_raise_for_status(response)
            if have and response.status_code != 206:  # the server knows no ranges: from the beginning
                have = 0
            with self._part.open("ab" if have else "wb") as stream:
                for block in response.iter_bytes():
                    stop_if(self._cancelled)
                    stream.write(block)
                    self._digest.take(have, block)
                    have += len(block)
                    if have > self._file.size:
                        raise self._untrue(f"more than the {self._file.size} bytes it said")
                    self._moved(DOWNLOADING, have)
                stream.flush()
                os.fsync(stream.fileno())

    def _check(self) -> None:
        stop_if(self._cancelled)
        found = self._digest.of(self._part, lambda done: self._moved(CHECKING, done), self._cancelled)
        if found is not None and found != self._file.etag:
            raise self._untrue("other bytes than its hash says")

    def _untrue(self, what: str) -> DownloadError:
        self._part.unlink(missing_ok=True)
        return DownloadError(
            f"The hub sent {what} for {self._file.name} of {self._repo_id}.",
            remedy="What came of it was deleted; try again.",
        )

    def _wait(self, seconds: float) -> None:
        end_s = time.monotonic() + seconds
        while (left_s := end_s - time.monotonic()) > 0:
            stop_if(self._cancelled)
            self._moved(DOWNLOADING, self._have())
            time.sleep(min(0.1, left_s))


class _Digest:
    """The hash a content is named by, computed while it comes; a part from an earlier try is read again at the end."""

    def __init__(self, file: RemoteFile) -> None:
        self._file = file
        self._hash, self._hashed = self._new(), 0

    def take(self, start: int, block: bytes) -> None:
        if self._hash is None or start != self._hashed:
            return
        self._hash.update(block)
        self._hashed += len(block)

    def of(self, path: Path, moved: Callable[[int], None], cancelled: Cancelled) -> str | None:
        """In hex; None where the content is not named by a hash that is known here."""
        size = path.stat().st_size
        if self._hash is not None and self._hashed != size:
            self._hash, done = self._new(), 0
            assert self._hash is not None
            with path.open("rb") as stream:
                while block := stream.read(1 << 20):
                    stop_if(cancelled)
                    self._hash.update(block)
                    done += len(block)
                    moved(done)
            self._hashed = size
        return None if self._hash is None else self._hash.hexdigest()

    def _new(self) -> _Hash | None:
        if re.fullmatch(r"[0-9a-f]{64}", self._file.etag):
            return hashlib.sha256()
        if re.fullmatch(r"[0-9a-f]{40}", self._file.etag):  # git's name of a file: SHA-1 of a header and the content
            return hashlib.sha1(b"blob %d\0" % self._file.size, usedforsecurity=False)
        return None


def _is_worth_another_try(error: Exception) -> bool:
    status = getattr(getattr(error, "response", None), "status_code", None)
    return status in _TRANSIENT if status is not None else is_transport(error)


def _point(pointer: Path, blob: Path) -> None:
    """Gives the content its name in the snapshot: a link, or where there is no right to make one the file itself."""
    from huggingface_hub import constants

    pointer.parent.mkdir(parents=True, exist_ok=True)
    pointer.unlink(missing_ok=True)  # a link whose content is gone
    if not getattr(constants, "HF_HUB_DISABLE_SYMLINKS", False):  # newer versions of the library know it
        try:
            pointer.symlink_to(os.path.relpath(blob, pointer.parent))
            return
        except (OSError, NotImplementedError) as error:
            log.debug("No link could be made (%s); the file is moved.", error)
    blob.replace(pointer)


@contextmanager
def _alone(lock_file: Path, waiting: Callable[[], None], cancelled: Cancelled) -> Iterator[None]:
    """Only one program writes a blob; another waits, and can be cancelled while it waits."""
    lock_file.parent.mkdir(parents=True, exist_ok=True)
    lock: Any = filelock.FileLock(lock_file)
    while True:
        try:
            lock.acquire(timeout=0.2)
            break
        except filelock.Timeout:
            stop_if(cancelled)
            waiting()
    try:
        yield
    finally:
        lock.release()
