"""Models of the Hugging Face hub: what is in the local cache, which files of a repository are needed, fetching them.

Only safetensors and GGUF weights with their configuration and tokenizer are fetched; never pickles, never code.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from octavo.app.library.errors import (
    AccessError,
    DiskFullError,
    DownloadError,
    LibraryError,
    ModelNotFoundError,
    OfflineError,
    is_disk_full,
    require_space,
)
from octavo.app.library.progress import DOWNLOADING, Cancelled, Report, ignore, never, stop_if

HUB = "Hugging Face hub"
PROBE_S = 3.0

_TEXT_FILES = re.compile(
    r"(config|generation_config|tokenizer|tokenizer_config|special_tokens_map|added_tokens|vocab|chat_template"
    r"|preprocessor_config|params)\.json|model\.safetensors\.index\.json|merges\.txt|vocab\.txt"
    r"|[\w.-]*\.model|[\w.-]*\.tiktoken|chat_template\.jinja"
)
_SPLIT = re.compile(r"-(\d{5})-of-(\d{5})\.gguf$", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """One file of a repository."""

    name: str
    size: int


def find_cached(
    repo_id: str, variant: str | None = None, revision: str = "main", cache: Path | None = None
) -> Path | None:
    """The model in the local cache if all of it is there, without asking the network: a folder, or the GGUF file."""
    folder = snapshot_folder(repo_id, revision, cache)
    if folder is None or missing_files(folder, variant):
        return None
    if variant is None and not list(folder.glob("*.safetensors")):
        files = first_parts(path.name for path in folder.glob("*.gguf"))
        return folder / files[0] if len(files) == 1 else None
    if variant is not None:
        return folder / _of_variant([path.name for path in folder.glob("*.gguf")], variant)[0]
    return folder


def repository_folder(repo_id: str, cache: Path | None = None) -> Path:
    """Where the hub's cache keeps a repository, whether it is there or not."""
    from huggingface_hub import constants

    return Path(cache or constants.HF_HUB_CACHE) / f"models--{repo_id.replace('/', '--')}"


def snapshot_folder(repo_id: str, revision: str = "main", cache: Path | None = None) -> Path | None:
    """Where the cache keeps this revision, complete or not."""
    root = repository_folder(repo_id, cache)
    commit = revision
    with suppress(OSError):
        commit = (root / "refs" / revision).read_text(encoding="utf-8").strip()
    folder = root / "snapshots" / commit
    return folder if folder.is_dir() else None


def missing_files(folder: Path, variant: str | None = None) -> list[str]:
    """Names of the files a model folder lacks; empty if it can be loaded."""
    present = {path.name for path in folder.iterdir() if path.exists()}  # a link whose blob is gone does not exist
    gguf = sorted(name for name in present if name.lower().endswith(".gguf"))
    if variant is not None:
        chosen = _of_variant(gguf, variant)
        return _other_parts(chosen[0], present) if chosen else [f"*{variant}*.gguf"]
    index = folder / "model.safetensors.index.json"
    if index.exists():
        try:
            weights = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
        except (ValueError, KeyError, AttributeError, TypeError):
            return [index.name]
        missing = sorted(weights - present)
    elif any(name.endswith(".safetensors") for name in present):
        missing = []
    elif gguf:
        return _other_parts(gguf[0], present)
    else:
        missing = ["model.safetensors"]
    missing += ["config.json"] if "config.json" not in present else []
    if not any(re.fullmatch(r"tokenizer\.json|vocab\.(json|txt)|.*\.(model|tiktoken)", name) for name in present):
        missing.append("tokenizer.json")
    return missing


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
    commit, files = list_files(repo_id, revision)
    wanted = needed_files(repo_id, files, variant)
    folder = _download(repo_id, commit, wanted, cache, progress, cancelled)
    if revision != commit:
        _remember(folder, revision, commit)
    gguf = first_parts(file.name for file in wanted if file.name.lower().endswith(".gguf"))
    return folder / gguf[0] if gguf else folder


def probe(consequence: str = "") -> None:
    """Asks once, for at most three seconds, whether the hub answers; its library alone takes far longer to give up.

    Raises OfflineError, with `consequence` (what is missing on disk) in the message.
    """
    from huggingface_hub import constants
    from huggingface_hub.utils import get_session

    tail = f" {consequence}" if consequence else ""
    if constants.HF_HUB_OFFLINE:
        raise OfflineError(f"HF_HUB_OFFLINE is set, so nothing is downloaded.{tail}", remedy="Unset it to download.")
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


def list_files(repo_id: str, revision: str = "main") -> tuple[str, list[RemoteFile]]:
    """The commit of a revision and its files. Raises ModelNotFoundError, AccessError or OfflineError."""
    from huggingface_hub import HfApi

    with _Plain(repo_id, revision):
        info = HfApi().model_info(repo_id, revision=revision, files_metadata=True, timeout=20)
    return info.sha or revision, [RemoteFile(item.rfilename, item.size or 0) for item in info.siblings or ()]


def fetch_file(repo_id: str, name: str, commit: str, cache: Path | None = None) -> Path:
    """One small file of a repository, from the cache or the hub."""
    from huggingface_hub import constants, hf_hub_download

    place = Path(cache or constants.HF_HUB_CACHE)
    with _Plain(repo_id, commit, place):
        return Path(hf_hub_download(repo_id, name, revision=commit, cache_dir=place))


def needed_files(repo_id: str, files: Iterable[RemoteFile], variant: str | None = None) -> list[RemoteFile]:
    """Which files of a repository a model needs. Raises ModelNotFoundError where there is none or no single one."""
    top = {file.name: file for file in files if "/" not in file.name}
    gguf = sorted(name for name in top if name.lower().endswith(".gguf") and "mmproj" not in name.lower())
    if variant is not None:
        chosen = _of_variant(gguf, variant)
        if not chosen:
            raise ModelNotFoundError(
                f"{repo_id} has no GGUF file {variant!r}.",
                remedy=f"It has: {', '.join(variants(gguf))}." if gguf else "It has no GGUF files at all.",
            )
        return [top[name] for name in parts_of(chosen[0], top)]
    weights = [name for name in top if name.endswith(".safetensors")]
    if any(not name.startswith("consolidated") for name in weights):  # Mistral's second copy of the same weights
        weights = [name for name in weights if not name.startswith("consolidated")]
    if weights:
        return [top[name] for name in sorted(top) if name in weights or _TEXT_FILES.fullmatch(name)]
    starts = first_parts(gguf)
    if len(starts) == 1:
        return [top[name] for name in parts_of(starts[0], top)]
    if starts:
        raise ModelNotFoundError(
            f"{repo_id} has several GGUF files: {', '.join(variants(gguf))}.",
            remedy=f"Name one, for example {repo_id}:{variants(gguf)[0]}.",
        )
    if any(name.endswith((".bin", ".pt", ".pth")) for name in top):
        raise ModelNotFoundError(
            f"{repo_id} has only pickled weights, which could run code when read.",
            remedy="Choose a repository with safetensors or GGUF files.",
        )
    raise ModelNotFoundError(f"{repo_id} has no safetensors or GGUF weights.", remedy="Choose another model.")


def variants(names: Iterable[str]) -> list[str]:
    """The quantization parts of GGUF file names (`Q4_K_M`), or the whole stem where none is recognised."""
    found = []
    for name in names:
        stem = _SPLIT.sub("", name).removesuffix(".gguf")
        match = re.search(r"(?:^|[-._])((?:I?Q\d\w*|B?F16|F32|MXFP4\w*|TQ\d\w*))$", stem, re.IGNORECASE)
        found.append(match[1] if match else stem)
    return list(dict.fromkeys(found))


def first_parts(names: Iterable[str]) -> list[str]:
    """The files to open: the first part of each split GGUF file, and every unsplit one."""
    return sorted(name for name in names if not (match := _SPLIT.search(name)) or match[1] == "00001")


def _of_variant(names: list[str], variant: str) -> list[str]:
    by_name = {name.lower(): name for name in first_parts(names)}
    exact = by_name.get(variant.lower()) or by_name.get(f"{variant.lower()}.gguf")
    if exact:
        return [exact]
    return [name for name in by_name.values() if variants([name])[0].lower() == variant.lower()]


def parts_of(first: str, names: Iterable[str]) -> list[str]:
    """All parts of the split GGUF file whose first part is `first`; an unsplit file is its own only part."""
    match = _SPLIT.search(first)
    if match is None:
        return [first]
    stem = first[: match.start()]
    return sorted(name for name in names if name.startswith(stem) and _SPLIT.search(name))


def _other_parts(first: str, present: Iterable[str]) -> list[str]:
    match = _SPLIT.search(first)
    if match is None:
        return []
    names = {f"{first[: match.start()]}-{part:05d}-of-{match[2]}.gguf" for part in range(1, int(match[2]) + 1)}
    return sorted(names - set(present))


def what_is_missing(repo_id: str, variant: str | None, revision: str, cache: Path | None) -> str:
    """A sentence: not on disk at all, or which files are missing."""
    folder = snapshot_folder(repo_id, revision, cache)
    if folder is None:
        return f"{repo_id} is not on disk."
    missing = missing_files(folder, variant)
    shown = ", ".join(missing[:4]) + (f" and {len(missing) - 4} more" if len(missing) > 4 else "")
    return f"{repo_id} is only partly on disk: {shown} missing."


def _download(
    repo_id: str, commit: str, files: list[RemoteFile], cache: Path | None, progress: Report, cancelled: Cancelled
) -> Path:
    from huggingface_hub import constants, hf_hub_download, try_to_load_from_cache

    place = Path(cache or constants.HF_HUB_CACHE)
    there = {
        file.name: isinstance(try_to_load_from_cache(repo_id, file.name, cache_dir=place, revision=commit), str)
        for file in files
    }
    total = sum(file.size for file in files)
    require_space(place, sum(file.size for file in files if not there[file.name]))
    meter = _Meter(total, sum(file.size for file in files if there[file.name]), progress, cancelled)
    path = place
    for file in sorted(files, key=lambda file: file.size):  # the small ones first: a wrong model shows early
        stop_if(cancelled)
        with _Plain(repo_id, commit, place):
            path = Path(
                hf_hub_download(
                    repo_id,
                    file.name,
                    revision=commit,
                    cache_dir=place,
                    tqdm_class=meter.bar_class(),
                )
            )
        if not there[file.name]:
            meter.finish(file.size)
    return path.parent


def _remember(folder: Path, revision: str, commit: str) -> None:
    """Notes which commit the branch pointed to, as the hub's own library does: the next start needs no network."""
    reference = folder.parent.parent / "refs" / revision
    with suppress(OSError):
        reference.parent.mkdir(parents=True, exist_ok=True)
        reference.write_text(commit, encoding="utf-8")


class _Meter:
    """Adds up the bytes of one file after the other; the hub's library reports them to objects shaped like tqdm's."""

    def __init__(self, total: int, done: int, progress: Report, cancelled: Cancelled) -> None:
        self._total, self._before, self._current = total, done, 0
        self._progress, self._cancelled = progress, cancelled
        self._tell()

    def add(self, size: int) -> None:
        stop_if(self._cancelled)
        self._current += size
        self._tell()

    def finish(self, size: int) -> None:
        self._before, self._current = self._before + size, 0
        self._tell()

    def _tell(self) -> None:
        self._progress(DOWNLOADING, min(self._before + self._current, self._total), self._total, HUB)

    def bar_class(self) -> type:
        from tqdm import tqdm

        meter = self

        class Bar(tqdm):  # type: ignore[type-arg]
            def __init__(self, *args: Any, **kwargs: Any) -> None:
                kwargs.pop("name", None)
                meter.add(int(kwargs.get("initial") or 0))
                super().__init__(*args, **{**kwargs, "disable": True})

            def update(self, n: float | None = 1) -> bool | None:
                meter.add(int(n or 0))
                return None

        return Bar


class _Plain:
    """Turns the hub library's errors into sentences."""

    def __init__(self, repo_id: str, revision: str, place: Path | None = None) -> None:
        self._repo_id, self._revision, self._place = repo_id, revision, place

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if isinstance(error, Exception) and (plain := self._translate(error)) is not None:
            raise plain from error

    def _translate(self, error: Exception) -> LibraryError | None:
        from huggingface_hub import errors, get_token

        repo_id, status = self._repo_id, getattr(getattr(error, "response", None), "status_code", None)
        if isinstance(error, errors.GatedRepoError):
            return self._no_access(status, get_token() is not None)
        if isinstance(error, errors.RevisionNotFoundError):
            return ModelNotFoundError(f"{repo_id} has no revision {self._revision!r}.", remedy="Check model.revision.")
        if isinstance(error, errors.RepositoryNotFoundError):
            if status == 401 and get_token() is not None:
                return self._no_access(status, True)
            return ModelNotFoundError(
                f"There is no model {repo_id} on the Hugging Face hub, or it is private.",
                remedy="Check the name; for a private model set HF_TOKEN to a token that may read it.",
            )
        if isinstance(error, (errors.LocalEntryNotFoundError, errors.OfflineModeIsEnabled, ConnectionError)):
            return OfflineError(f"The Hugging Face hub cannot be reached for {repo_id}.", remedy="Check the network.")
        if isinstance(error, errors.HfHubHTTPError):
            if status in {401, 403}:
                return self._no_access(status, get_token() is not None)
            if status == 429:
                return DownloadError(
                    "The Hugging Face hub asks for a pause (429).", remedy="Try again in some minutes."
                )
            return DownloadError(f"The Hugging Face hub answered {status} for {repo_id}.", remedy="Try again later.")
        if isinstance(error, errors.HFValidationError):
            return ModelNotFoundError(f"{repo_id!r} is not a name the Hugging Face hub can have.")
        if isinstance(error, OSError):
            if is_disk_full(error):
                return DiskFullError(self._place or Path.cwd())
            return DownloadError(f"Downloading {repo_id} failed ({error}).", remedy="Try again; it goes on from there.")
        if type(error).__module__.split(".")[0] in {"httpx", "httpx2", "httpcore", "httpcore2"}:
            return OfflineError(f"The connection for {repo_id} broke ({error}).", remedy="Try again.")
        return None

    def _no_access(self, status: int | None, has_token: bool) -> AccessError:
        if not has_token:
            return AccessError(
                f"Access to {self._repo_id} must be granted on its Hugging Face page.",
                remedy="Accept the terms there, then set the environment variable HF_TOKEN to a read token.",
            )
        if status == 401:
            return AccessError(
                "The Hugging Face hub refused the token that is set.", remedy="Set HF_TOKEN to a valid read token."
            )
        return AccessError(
            f"The token that is set has no access to {self._repo_id} yet.",
            remedy="Accept the terms on the model's Hugging Face page and wait until access is granted.",
        )
