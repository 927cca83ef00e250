"""The models that are on disk, and removing one."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from octavo.app import paths
from octavo.app.library.cache import hub_cache, missing_files, repository_folder, snapshot_folder
from octavo.app.library.errors import LibraryError, ModelNotFoundError
from octavo.app.library.repository import first_parts, gguf_files, of_variant, parts_of, variants
from octavo.app.library.starter import STARTER, find_starter

SEE_LIST = "`octavo models list` shows what is; files of your own you delete yourself."


@dataclass(frozen=True, slots=True)
class LocalModel:
    """A model on disk. `id` is what model.id would be; `complete` is False after a broken download:
    the rest can be fetched."""

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
            raise ModelNotFoundError("The starter model is not in Octavo's cache.", remedy=SEE_LIST)
        size = file.stat().st_size
        _delete(folder)
        return size
    repository, _, variant = model_id.partition(":")
    folder = repository_folder(repository)
    if repository.count("/") != 1 or not folder.is_dir():
        raise ModelNotFoundError(
            f"{model_id} is not in the Hugging Face cache.",
            remedy=SEE_LIST,
        )
    if variant and not _is_alone(repository, variant):
        return _delete_variant(folder, repository, variant)
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file() and not path.is_symlink())
    _delete(folder)
    return size


def _is_alone(repository: str, variant: str) -> bool:
    """Whether the cache holds no other model of the repository."""
    return all(model.id == f"{repository}:{variant}" for model in _of_repository(repository_folder(repository)))


def _delete_variant(folder: Path, repository: str, variant: str) -> int:
    """Deletes one GGUF file with all its parts, and the contents that nothing else in the cache points to."""
    freed, found = 0, False
    try:
        for snapshot in (folder / "snapshots").iterdir():
            names = gguf_files(path.name for path in snapshot.iterdir())
            for first in of_variant(names, variant):
                for name in parts_of(first, names):
                    found, blob = True, (snapshot / name).resolve()
                    size = blob.stat().st_size if blob.exists() else 0
                    (snapshot / name).unlink()
                    if not any(link.resolve() == blob for link in folder.glob("snapshots/*/*")):
                        blob.unlink(missing_ok=True)
                        freed += size
    except OSError as error:
        raise LibraryError(
            f"{repository}:{variant} could not be deleted ({error.strerror or error}).",
            remedy="Unload the model and try again.",
        ) from error
    if not found:
        raise ModelNotFoundError(f"{repository}:{variant} is not in the Hugging Face cache.", remedy=SEE_LIST)
    return freed


def _delete(folder: Path) -> None:
    try:
        shutil.rmtree(folder)
    except OSError as error:
        raise LibraryError(
            f"{folder} could not be deleted ({error.strerror or error}).", remedy="Unload the model and try again."
        ) from error


def _in_hub_cache() -> Iterator[LocalModel]:
    root = hub_cache()
    for folder in sorted(root.glob("models--*--*")) if root.is_dir() else []:
        with suppress(OSError):  # a cache that others change, or that is not all ours to read
            yield from _of_repository(folder)


def _of_repository(folder: Path) -> list[LocalModel]:
    repo_id = "/".join(folder.name.split("--")[1:])
    snapshots = sorted((folder / "snapshots").glob("*"), key=lambda path: path.stat().st_mtime)
    main = snapshot_folder(repo_id)
    return list(_in_snapshot(repo_id, main or snapshots[-1])) if main is not None or snapshots else []


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
        try:
            names = [path.name for path in folder.iterdir()]
        except OSError:  # not ours to read
            continue
        if any(name.endswith(".safetensors") for name in names):
            name = folder.relative_to(root).as_posix() if folder != root else str(folder)
            yield LocalModel(name, folder, "safetensors", _weights(folder))
        for first in first_parts(name for name in names if name.lower().endswith(".gguf")):
            path = folder / first
            size = sum((folder / part).stat().st_size for part in parts_of(first, names))
            yield LocalModel(path.relative_to(root).as_posix(), path, "gguf", size)


def _weights(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.glob("*.safetensors") if path.exists())
