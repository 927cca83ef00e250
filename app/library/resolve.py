"""From `model.id` to files on disk: the starter, a folder, a .gguf file, or a repository of the hub."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from octavo.app.library import hub
from octavo.app.library.cache import find_cached, lacking, missing_files, what_is_missing
from octavo.app.library.errors import LibraryError, ModelNotFoundError
from octavo.app.library.progress import Cancelled, Report, ignore, never
from octavo.app.library.repository import first_parts
from octavo.app.library.starter import fetch_starter, find_starter

_REPOSITORY = re.compile(r"([A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*?)(?::([\w.-]+))?")


def resolve_model(
    model_id: str,
    *,
    folders: Iterable[str | Path] = (),
    cache: Path | None = None,
    revision: str = "main",
    progress: Report | None = None,
    cancelled: Cancelled | None = None,
    may_fetch: bool = True,
) -> Path:
    """The folder or .gguf file that `model_id` stands for, fetched first where that is needed.

    In this order: `starter`; a path (absolute, or beginning with . or ~); a name inside one of `folders`; `org/name` or
    `org/name:Q4_K_M` of the Hugging Face hub, from its cache where it is complete there; a file or folder right here.
    With `may_fetch=False` only what is on disk counts. `cache` is the folder of the starter; the hub's cache is where
    HF_HOME says. Raises LibraryError's kinds.
    """
    progress, cancelled = progress or ignore, cancelled or never
    if model_id == "none":
        raise LibraryError("model.id is none: no model is chosen.", remedy="Choose one on the page or in config.yaml.")
    if model_id == "starter":
        starter = find_starter(cache) if not may_fetch else fetch_starter(cache, progress, cancelled)
        if starter is None:
            raise ModelNotFoundError("The starter is not on disk.", remedy="Fetch it: octavo models pull starter")
        return starter
    if is_path(model_id):
        return _on_disk(Path(model_id).expanduser().absolute())
    for folder in folders:
        inside = Path(folder).expanduser() / model_id
        for path in (inside, inside.with_name(f"{inside.name}.gguf")):
            if path.exists():
                return _on_disk(path.absolute())
    match = _REPOSITORY.fullmatch(model_id)
    if match is not None and not model_id.lower().endswith(".gguf"):
        found = find_cached(match[1], match[2], revision)
        if found is not None:
            return found
        if not may_fetch:
            raise ModelNotFoundError(
                what_is_missing(match[1], match[2], revision, None),
                remedy=f"Fetch it: octavo models pull {model_id}",
            )
        return hub.fetch(match[1], match[2], revision=revision, progress=progress, cancelled=cancelled)
    if model_id.lower().endswith(".gguf") or Path(model_id).exists():
        return _on_disk(Path(model_id).absolute())
    raise ModelNotFoundError(
        f"There is no model {model_id!r}.",
        remedy="Write starter, org/name, org/name:Q4_K_M, a folder (./name), or a .gguf file.",
    )


def split_repository(model_id: str) -> tuple[str, str | None] | None:
    """("org/name", "Q4_K_M" or None) of a hub model's id; None for what is no such id."""
    match = None if is_path(model_id) else _REPOSITORY.fullmatch(model_id)
    return None if match is None else (match[1], match[2])


def is_path(model_id: str) -> bool:
    """Whether `model_id` can only mean a place on disk: it begins with / . ~ or a drive, or holds a backslash."""
    return model_id.startswith((".", "~", "/")) or "\\" in model_id or re.match(r"[A-Za-z]:/", model_id) is not None


def _on_disk(path: Path) -> Path:
    try:
        if path.is_file():
            if path.suffix.lower() != ".gguf":
                raise ModelNotFoundError(
                    f"{path} is not a .gguf file.", remedy="Name a .gguf file or a folder with safetensors."
                )
            return path
        if not path.is_dir():
            raise ModelNotFoundError(f"There is no folder or file {path}.", remedy="Check how the path is written.")
        names = sorted(item.name for item in path.iterdir())
    except OSError as error:
        raise LibraryError(
            f"{path} cannot be read ({error.strerror or error}).",
            remedy="Check its permissions; some systems allow only 260 characters in a path."
            if len(str(path)) > 250
            else None,
        ) from error
    gguf = first_parts(name for name in names if name.lower().endswith(".gguf"))
    if any(name.endswith(".safetensors") or name == "config.json" for name in names):
        missing = missing_files(path)
        if missing:
            raise lacking(path, missing)
        return path
    if len(gguf) == 1:
        return path / gguf[0]
    if gguf:
        raise ModelNotFoundError(
            f"{path} holds several models: {', '.join(gguf)}.",
            remedy=f"Name one of them, for example {path / gguf[0]}.",
        )
    pickles = any(name.endswith((".bin", ".pt", ".pth")) for name in names)
    what = "only pickled weights, which could run code when read" if pickles else "no config.json and no weights"
    raise ModelNotFoundError(f"{path} holds {what}.", remedy="Name a folder with safetensors or a .gguf file.")
