"""The models that are on disk, and removing one."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from octavo.app import paths
from octavo.app.library.cache import missing_files, repository_folder, snapshot_folder
from octavo.app.library.errors import LibraryError, ModelNotFoundError
from octavo.app.library.repository import first_parts, parts_of, variants
from octavo.app.library.starter import STARTER, find_starter


@dataclass(frozen=True, slots=True)
class LocalModel:
    """A model on disk. `id` is what model.id would be; `complete` is False after a broken download."""

    id: str
    path: Path
    format: Literal["safetensors", "gguf"]
    size_bytes: int
    complete: bool = True
    origin: Literal["starter", "hub", "folder"] = "folder"


def list_models(folders: Iterable[str | Path] = (), cache: Path | None = None) -> list[LocalModel]:
    """The starter, the text models of the Hugging Face cache, and those in `folders` (two levels deep), by name."""
    found: dict[Path, LocalModel] = {}
    starter = find_starter(cache)
    if starter is not None and starter.is_file():
        found[starter.resolve()] = LocalModel("starter", starter, "gguf", starter.stat().st_size, origin="starter")
    for model in (*_in_hub_cache(), *(model for folder in folders for model in _in_folder(Path(folder).expanduser()))):
        found.setdefault(model.path.resolve(), model)
    return sorted(found.values(), key=lambda model: (model.id != "starter", model.id.lower()))


def remove_model(model_id: str, cache: Path | None = None) -> int:
    """Deletes a model that Octavo or the hub's cache fetched; returns the freed bytes.

    A folder or file of the user's own is never deleted. Raises ModelNotFoundError or LibraryError.
    """
    if model_id == "starter":
        folder = (cache or paths.cache_dir()) / "starter"
        file = folder / STARTER.file
        if not file.is_file():
            raise ModelNotFoundError("The starter model is not in Octavo's cache.")
        size = file.stat().st_size
        _delete(folder)
        return size
    repository, _, variant = model_id.partition(":")
    folder = repository_folder(repository)
    if repository.count("/") != 1 or not folder.is_dir():
        raise ModelNotFoundError(
            f"{model_id} is not in the Hugging Face cache.",
            remedy="`octavo models list` shows what is; files of your own you delete yourself.",
        )
    if variant:
        raise LibraryError(
            f"{repository} is removed as a whole, not file by file.", remedy=f"Run: octavo models remove {repository}"
        )
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file() and not path.is_symlink())
    _delete(folder)
    return size


def _delete(folder: Path) -> None:
    try:
        shutil.rmtree(folder)
    except OSError as error:
        raise LibraryError(
            f"{folder} could not be deleted ({error.strerror or error}).", remedy="Unload the model and try again."
        ) from error


def _in_hub_cache() -> Iterator[LocalModel]:
    from huggingface_hub import constants

    root = Path(constants.HF_HUB_CACHE)
    for repository in sorted(root.glob("models--*--*")) if root.is_dir() else []:
        repo_id = "/".join(repository.name.split("--")[1:])
        snapshots = sorted((repository / "snapshots").glob("*"), key=lambda path: path.stat().st_mtime)
        main = snapshot_folder(repo_id)
        if main is not None or snapshots:
            yield from _in_snapshot(repo_id, main or snapshots[-1])


def _in_snapshot(repo_id: str, folder: Path) -> Iterator[LocalModel]:
    present = [path for path in folder.iterdir() if path.exists()]
    gguf = [path for path in present if path.suffix.lower() == ".gguf"]
    if any(path.suffix == ".safetensors" for path in present):
        yield LocalModel(repo_id, folder, "safetensors", _weights(folder), not missing_files(folder), "hub")
    for first in first_parts(path.name for path in gguf):
        variant = variants([first])[0]
        parts = parts_of(first, [path.name for path in gguf])
        size = sum((folder / part).stat().st_size for part in parts)
        complete = not missing_files(folder, variant)
        yield LocalModel(f"{repo_id}:{variant}", folder / first, "gguf", size, complete, "hub")


def _in_folder(root: Path) -> Iterator[LocalModel]:
    for folder in (root, *sorted(root.glob("*/")), *sorted(root.glob("*/*/"))) if root.is_dir() else ():
        names = [path.name for path in folder.iterdir()]
        if any(name.endswith(".safetensors") for name in names):
            name = folder.relative_to(root).as_posix() if folder != root else str(folder)
            yield LocalModel(name, folder, "safetensors", _weights(folder), not missing_files(folder))
        for first in first_parts(name for name in names if name.lower().endswith(".gguf")):
            path = folder / first
            size = sum((folder / part).stat().st_size for part in parts_of(first, names))
            yield LocalModel(path.relative_to(root).as_posix(), path, "gguf", size)


def _weights(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.glob("*.safetensors") if path.exists())
