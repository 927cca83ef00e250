"""The Hugging Face hub: what a repository holds, and a model of it onto the disk.

Nothing here runs unless somebody asked for a model by name; HF_ENDPOINT, HF_TOKEN, HF_HOME and HF_HUB_OFFLINE hold.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from octavo.app.library.cache import find_cached, hub_cache, remember, what_is_missing
from octavo.app.library.errors import OfflineError, require_space
from octavo.app.library.progress import CHECKING, DOWNLOADING, Cancelled, Report, ignore, never, stop_if
from octavo.app.library.refusals import plain_errors
from octavo.app.library.repository import RemoteFile, first_parts, needed_files
from octavo.app.library.transfer import bytes_there, discard_part, transfer

HUB = "Hugging Face hub"
PROBE_S = 3.0
ANSWER_S = 20.0


@dataclass(frozen=True, slots=True)
class Repository:
    """What the hub says of one revision. `parameters` by stored type ("BF16": 4e9), empty where it does not say."""

    id: str
    commit: str
    files: tuple[RemoteFile, ...]
    gated: bool = False
    license: str | None = None
    parameters: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class FetchPlan:
    """The files of one model that are to be on the disk, and where. Sizes in bytes."""

    repo_id: str
    variant: str | None
    revision: str
    commit: str
    files: tuple[RemoteFile, ...]
    cache: Path | None

    @property
    def total_bytes(self) -> int:
        return sum(file.size for file in self.files)

    def there_bytes(self) -> int:
        """What the cache has already, parts of unfinished files included."""
        return sum(bytes_there(self.repo_id, self.commit, file, self.cache) for file in self.files)

    def require_space(self) -> None:
        """Raises DiskFullError if the disk has no room for what is still to come."""
        require_space(hub_cache(self.cache), self.total_bytes - self.there_bytes())

    def run(self, progress: Report = ignore, cancelled: Cancelled = never) -> Path:
        """Fetches what is missing; returns the snapshot's folder, or the GGUF file. Raises LibraryError's kinds."""
        self.require_space()
        there = {file.name: bytes_there(self.repo_id, self.commit, file, self.cache) for file in self.files}
        path = hub_cache(self.cache)

        def moved(name: str) -> Callable[[str, int], None]:
            def tell(stage: str, done: int) -> None:
                if stage == DOWNLOADING:
                    there[name] = done
                    progress(stage, min(sum(there.values()), self.total_bytes), self.total_bytes, HUB)
                else:
                    progress(CHECKING, done, sizes[name], HUB)

            return tell

        sizes = {file.name: file.size for file in self.files}
        progress(DOWNLOADING, sum(there.values()), self.total_bytes, HUB)
        for file in sorted(self.files, key=lambda file: file.size):  # the small ones first: a wrong model shows early
            stop_if(cancelled)
            path = transfer(self.repo_id, self.commit, file, self.cache, moved(file.name), cancelled)
            moved(file.name)(DOWNLOADING, file.size)
        if self.revision != self.commit:
            remember(self.repo_id, self.revision, self.commit, self.cache)
        gguf = first_parts(file.name for file in self.files if file.name.lower().endswith(".gguf"))
        return path.parent / gguf[0] if gguf else path.parent

    def discard(self) -> None:
        """Deletes the parts of unfinished files; whole files stay."""
        for file in self.files:
            discard_part(self.repo_id, file, self.cache)


def fetch(
    repo_id: str,
    variant: str | None = None,
    *,
    revision: str = "main",
    cache: Path | None = None,
    progress: Report = ignore,
    cancelled: Cancelled = never,
) -> Path:
    """A hub model on disk: from the cache if it is complete there, else the needed files are downloaded first.

    Returns the snapshot's folder, or the GGUF file if `variant` names one or the repository holds only one. Raises
    ModelNotFoundError, AccessError, OfflineError, DiskFullError, DownloadError or FetchCancelledError.
    """
    found = find_cached(repo_id, variant, revision, cache)
    if found is not None:
        return found
    probe(what_is_missing(repo_id, variant, revision, cache))
    stop_if(cancelled)
    return plan_fetch(repo_id, variant, revision=revision, cache=cache).run(progress, cancelled)


def plan_fetch(
    repo_id: str,
    variant: str | None = None,
    *,
    revision: str = "main",
    commit: str | None = None,
    cache: Path | None = None,
) -> FetchPlan:
    """Asks the hub what a model consists of. `commit` pins what an earlier plan of the revision found."""
    found = look_up(repo_id, commit or revision)
    files = needed_files(repo_id, found.files, variant)
    return FetchPlan(repo_id, variant, revision, found.commit, tuple(files), cache)


def probe(consequence: str = "") -> None:
    """Asks once, for at most three seconds, whether the hub answers; its library alone takes far longer to give up.

    Raises OfflineError, with `consequence` (what is missing on disk) in the message.
    """
    from huggingface_hub import constants
    from huggingface_hub.utils import get_session

    tail = f" {consequence}" if consequence else ""
    require_online(tail)
    answered = threading.Event()

    def ask() -> None:
        with suppress(Exception):  # whatever goes wrong means: no answer
            get_session().head(constants.ENDPOINT, timeout=PROBE_S)
            answered.set()

    thread = threading.Thread(target=ask, name="octavo-probe", daemon=True)
    thread.start()
    thread.join(PROBE_S)
    if not answered.is_set():
        raise OfflineError(f"The Hugging Face hub cannot be reached.{tail}", remedy="Check the network and try again.")


def require_online(tail: str = "") -> None:
    """Raises OfflineError if HF_HUB_OFFLINE forbids to ask."""
    from huggingface_hub import constants

    if constants.HF_HUB_OFFLINE:
        raise OfflineError(f"HF_HUB_OFFLINE is set, so nothing is downloaded.{tail}", remedy="Unset it to download.")


def look_up(repo_id: str, revision: str = "main") -> Repository:
    """What a revision of a repository holds. Raises ModelNotFoundError, AccessError, DownloadError or OfflineError."""
    from huggingface_hub import HfApi

    with plain_errors(repo_id, revision):
        info = HfApi().model_info(repo_id, revision=revision, files_metadata=True, timeout=ANSWER_S)
    files = []
    for item in info.siblings or ():
        lfs = getattr(item, "lfs", None)
        etag = getattr(lfs, "sha256", None) or getattr(item, "blob_id", None) or ""
        files.append(RemoteFile(item.rfilename, item.size or 0, etag))
    card = getattr(info, "card_data", None)
    return Repository(
        id=info.id or repo_id,
        commit=info.sha or revision,
        files=tuple(files),
        gated=bool(getattr(info, "gated", False)),
        license=str(name) if (name := getattr(card, "license", None)) else None,
        parameters=dict(getattr(getattr(info, "safetensors", None), "parameters", None) or {}),
    )


def fetch_file(repo_id: str, name: str, commit: str, cache: Path | None = None) -> Path:
    """One small file of a repository, from the cache or the hub."""
    return transfer(repo_id, commit, RemoteFile(name, 0), cache, lambda *_: None, never)
