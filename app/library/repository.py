"""What the files of a repository are, by their names: which a model needs, and how its quantizations are called.

Only safetensors and GGUF weights with their configuration and tokenizer are wanted; never pickles, never code.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from octavo.app.library.errors import ModelNotFoundError

_TEXT_FILES = re.compile(
    r"(config|generation_config|tokenizer|tokenizer_config|special_tokens_map|added_tokens|vocab|chat_template"
    r"|preprocessor_config|params)\.json|model\.safetensors\.index\.json|merges\.txt|vocab\.txt"
    r"|[\w.-]*\.model|[\w.-]*\.tiktoken|chat_template\.jinja"
)
_SPLIT = re.compile(r"-(\d{5})-of-(\d{5})\.gguf$", re.IGNORECASE)
_PLAIN_NAME = re.compile(r"[^\x00-\x1f/\\:*?\"<>|]+")  # no folder, no drive, nothing that Windows refuses


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """One file of a repository. `etag` names its content as the hub does: SHA-256 in hex for large files, git's SHA-1
    for the others, empty if the hub did not say."""

    name: str
    size: int
    etag: str = ""


def needed_files(repo_id: str, files: Iterable[RemoteFile], variant: str | None = None) -> list[RemoteFile]:
    """Which files of a repository a model needs. Raises ModelNotFoundError where there is none or no single one."""
    top = {file.name: file for file in files if _PLAIN_NAME.fullmatch(file.name)}
    gguf = gguf_files(top)
    if variant is not None:
        chosen = of_variant(gguf, variant)
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
    if any(name.endswith((".bin", ".pt", ".pth", ".ckpt")) for name in top):
        raise ModelNotFoundError(
            f"{repo_id} has only pickled weights, which could run code when read.",
            remedy="Choose a repository with safetensors or GGUF files.",
        )
    raise ModelNotFoundError(f"{repo_id} has no safetensors or GGUF weights.", remedy="Choose another model.")


def gguf_files(names: Iterable[str]) -> list[str]:
    """The GGUF files that are language models: a projector of images ("mmproj") is not."""
    return sorted(name for name in names if name.lower().endswith(".gguf") and "mmproj" not in name.lower())


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


def parts_of(first: str, names: Iterable[str]) -> list[str]:
    """All parts of the split GGUF file whose first part is `first`; an unsplit file is its own only part."""
    match = _SPLIT.search(first)
    if match is None:
        return [first]
    stem = first[: match.start()]
    return sorted(name for name in names if name.startswith(stem) and _SPLIT.search(name))


def absent_parts(first: str, present: Iterable[str]) -> list[str]:
    """Names of the parts that the split GGUF file `first` should have and `present` lacks."""
    match = _SPLIT.search(first)
    if match is None:
        return []
    names = {f"{first[: match.start()]}-{part:05d}-of-{match[2]}.gguf" for part in range(1, int(match[2]) + 1)}
    return sorted(names - set(present))


def of_variant(names: list[str], variant: str) -> list[str]:
    """The first parts that `variant` can mean: a file's own name, or its quantization."""
    by_name = {name.lower(): name for name in first_parts(names)}
    exact = by_name.get(variant.lower()) or by_name.get(f"{variant.lower()}.gguf")
    if exact:
        return [exact]
    return [name for name in by_name.values() if variants([name])[0].lower() == variant.lower()]
