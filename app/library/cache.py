"""The local cache of the Hugging Face hub, asked without a network: what is there, what is missing, what was begun.

Its layout is the hub library's own: models--org--name/blobs holds the contents, snapshots/<commit> the names, refs the
commit of each branch.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from octavo.app.library.errors import ModelNotFoundError
from octavo.app.library.repository import absent_parts, first_parts, of_variant

INCOMPLETE = ".incomplete"  # ends the name of a blob that is not whole yet


def hub_cache(cache: Path | None = None) -> Path:
    """`cache`, or the place HF_HOME and HF_HUB_CACHE name."""
    from huggingface_hub import constants

    return Path(cache or constants.HF_HUB_CACHE)


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
        return folder / of_variant([path.name for path in folder.glob("*.gguf")], variant)[0]
    return folder


def repository_folder(repo_id: str, cache: Path | None = None) -> Path:
    """Where the hub's cache keeps a repository, whether it is there or not."""
    return hub_cache(cache) / f"models--{repo_id.replace('/', '--')}"


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
        chosen = of_variant(gguf, variant)
        return absent_parts(chosen[0], present) if chosen else [f"*{variant}*.gguf"]
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
        return absent_parts(gguf[0], present)
    else:
        missing = ["model.safetensors"]
    missing += ["config.json"] if "config.json" not in present else []
    if not any(re.fullmatch(r"tokenizer\.json|vocab\.(json|txt)|.*\.(model|tiktoken)", name) for name in present):
        missing.append("tokenizer.json")
    return missing


def lacking(folder: Path, missing: Sequence[str]) -> ModelNotFoundError:
    """Why a folder of the user's own cannot be loaded."""
    return ModelNotFoundError(
        f"The model folder {folder} is not complete: {', '.join(missing[:4])} missing.",
        remedy="Copy or download the missing files.",
    )


def what_is_missing(repo_id: str, variant: str | None, revision: str, cache: Path | None) -> str:
    """A sentence: not on disk at all, or which files are missing."""
    folder = snapshot_folder(repo_id, revision, cache)
    if folder is None:
        return f"{repo_id} is not on disk."
    missing = missing_files(folder, variant)
    shown = ", ".join(missing[:4]) + (f" and {len(missing) - 4} more" if len(missing) > 4 else "")
    return f"{repo_id} is only partly on disk: {shown} missing."


def remember(repo_id: str, revision: str, commit: str, cache: Path | None = None) -> None:
    """Notes which commit a branch pointed to, as the hub's own library does: the next start needs no network."""
    reference = repository_folder(repo_id, cache) / "refs" / revision
    with suppress(OSError):
        reference.parent.mkdir(parents=True, exist_ok=True)
        reference.write_text(commit, encoding="utf-8")
