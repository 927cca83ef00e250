"""A folder with config.json and safetensors files, single or sharded, as a Checkpoint."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterator
from io import BufferedReader
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from octavo.engine.errors import CheckpointError
from octavo.engine.load.ahead import AHEAD_BYTES, read_ahead
from octavo.engine.load.checkpoint import Checkpoint, TensorInfo
from octavo.engine.load.files import FETCH_AGAIN, read_into, read_json_object
from octavo.engine.load.safetensors_header import STORED_TYPES, StoredTensor, read_header
from octavo.engine.sending import host_room

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_SINGLE = "model.safetensors"
_INDEX = "model.safetensors.index.json"
_SHARD = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.safetensors")
_PICKLES = (".bin", ".pt", ".pth", ".ckpt")
_CHUNK_BYTES = 16 << 20  # converting in pieces keeps one whole tensor in memory, not two


class SafetensorsCheckpoint(Checkpoint):
    """Headers of all shards are checked when it opens; files are open only while they are read."""

    kind = "safetensors"

    def __init__(self, path: Path) -> None:
        self.path = path
        files, weight_map = find_weights(path)
        self.config = read_config(path)
        generation = path / "generation_config.json"
        self.generation_config = read_json_object(generation) if generation.is_file() else {}
        self._stored: dict[str, tuple[Path, StoredTensor]] = {}
        for file in files:
            for name, stored in read_header(file).items():
                if name in self._stored:
                    raise CheckpointError(
                        f"The tensor {name} is in {self._stored[name][0].name} and again in {file.name}.",
                        file=str(file),
                        tensor=name,
                        remedy="Remove the files that belong to another model or version.",
                    )
                self._stored[name] = (file, stored)
        _check_index(path, weight_map, self._stored)
        self.tensors = {
            name: TensorInfo(name, stored.dtype, stored.shape, file, stored.size_bytes)
            for name, (file, stored) in self._stored.items()
        }

    def stream(
        self, names: Collection[str] | None = None, dtype: torch.dtype | None = None, *, pinned: bool = False
    ) -> Iterator[tuple[str, Tensor]]:
        self.check(names)
        wanted = self._stored if names is None else set(names)
        return self._read_all([self._stored[name] for name in self._stored if name in wanted], dtype, pinned)

    def read(self, name: str, dtype: torch.dtype | None = None, *, pinned: bool = False) -> Tensor:
        self.check((name,))
        return _read(*self._stored[name], dtype, pinned)

    def check(self, names: Collection[str] | None = None) -> None:
        super().check(names)
        for name in self._stored if names is None else names:
            file, stored = self._stored[name]
            if STORED_TYPES[stored.dtype].torch is None:
                raise CheckpointError(
                    f"{file.name} stores {name} as {stored.dtype}, which is not supported.",
                    file=str(file),
                    tensor=name,
                    remedy="Use a version of the model in bfloat16, float16 or float32.",
                )

    def load_tokenizer(self) -> PreTrainedTokenizerBase:
        from octavo.engine.load.folder_tokenizer import load_folder_tokenizer

        return load_folder_tokenizer(self.path)

    def _read_all(
        self, wanted: list[tuple[Path, StoredTensor]], dtype: torch.dtype | None, pinned: bool
    ) -> Iterator[tuple[str, Tensor]]:
        def size(stored: StoredTensor) -> int:
            return max(stored.size_bytes, math.prod(stored.shape) * (dtype.itemsize if dtype else 0))

        sizes = [((file, stored), size(stored)) for file, stored in wanted]
        for (_, stored), tensor in read_ahead(sizes, lambda entry: _read(*entry, dtype, pinned), AHEAD_BYTES):
            yield stored.name, tensor


def read_config(folder: Path) -> dict[str, Any]:
    """The folder's config.json; CheckpointError if there is none."""
    config = folder / "config.json"
    if not config.is_file():
        raise CheckpointError(
            f"{folder} has no config.json, so its architecture is unknown.",
            file=str(config),
            remedy="Fetch the whole repository of the model, not only its weights.",
        )
    return read_json_object(config)


def find_weights(folder: Path) -> tuple[list[Path], dict[str, str]]:
    """The weight files in order and the index's map of tensor to file (empty without an index).

    Raises CheckpointError if weights are missing, ambiguous or only there as pickles.
    """
    if (folder / _SINGLE).is_file():
        return [folder / _SINGLE], {}
    if (folder / _INDEX).is_file():
        weight_map = _read_index(folder / _INDEX)
        files = [folder / name for name in sorted(set(weight_map.values()))]
    else:
        weight_map, files = {}, _without_index(folder)
    missing = [file.name for file in files if not file.is_file()]
    if missing:
        shown = ", ".join(missing[:5]) + (f" and {len(missing) - 5} more" if len(missing) > 5 else "")
        raise CheckpointError(
            f"{len(missing)} of the {len(files)} weight files are missing in {folder}: {shown}.",
            file=str(folder / missing[0]),
            remedy="Fetch them again.",
        )
    return files, weight_map


def _without_index(folder: Path) -> list[Path]:
    names = sorted(entry.name for entry in folder.iterdir() if entry.is_file())
    found = [name for name in names if name.endswith(".safetensors")]
    if "adapter_config.json" in names and not any(name.startswith("model") for name in found):
        raise CheckpointError(
            f"{folder} holds an adapter, not a whole model.",
            file=str(folder),
            remedy="Merge the adapter into its base model and name that folder.",
        )
    if len(found) == 1 and not _SHARD.fullmatch(found[0]):
        return [folder / found[0]]
    shards = [match for name in found if (match := _SHARD.fullmatch(name))]
    if shards and len({(match["stem"], match["count"]) for match in shards}) == 1:
        stem, count = shards[0]["stem"], int(shards[0]["count"])
        return [folder / f"{stem}-{number:05}-of-{count:05}.safetensors" for number in range(1, count + 1)]
    if found:
        raise CheckpointError(
            f"{folder} holds {', '.join(found[:4])} and no {_INDEX} that says which of them are the model.",
            file=str(folder),
            remedy="Fetch the index file too.",
        )
    if any(name.endswith(_PICKLES) for name in names):
        raise CheckpointError(
            f"{folder} holds its weights only as Python pickles, which can run any code and are never opened.",
            file=str(folder),
            remedy="Use the model's safetensors files, or convert it with transformers' save_pretrained.",
        )
    raise CheckpointError(
        f"{folder} holds no model weights.", file=str(folder), remedy="Name a folder with safetensors or a .gguf file."
    )


def _read_index(path: Path) -> dict[str, str]:
    weight_map = read_json_object(path).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise CheckpointError(f"{path.name} has no weight_map.", file=str(path), remedy=FETCH_AGAIN)
    for tensor, file in weight_map.items():
        if not isinstance(file, str) or not file.endswith(".safetensors") or re.search(r"[/\\:]", file):
            raise CheckpointError(
                f"{path.name} places {tensor} in {file!r}, which is not a safetensors file of its folder.",
                file=str(path),
                tensor=tensor,
                remedy=FETCH_AGAIN,
            )
    return weight_map


def _check_index(folder: Path, weight_map: dict[str, str], stored: dict[str, tuple[Path, StoredTensor]]) -> None:
    for tensor, file in weight_map.items():
        if tensor not in stored or stored[tensor][0].name != file:
            raise CheckpointError(
                f"{_INDEX} places {tensor} in {file}, which does not hold it.",
                file=str(folder / file),
                tensor=tensor,
                remedy="The index and the weight files are of different versions; fetch the model again.",
            )


def _read(file: Path, stored: StoredTensor, dtype: torch.dtype | None, pinned: bool) -> Tensor:
    with file.open("rb") as stream:
        return _read_from(stream, file, stored, dtype, pinned)


def _read_from(
    stream: BufferedReader, file: Path, stored: StoredTensor, dtype: torch.dtype | None, pinned: bool
) -> Tensor:
    kept = STORED_TYPES[stored.dtype].torch
    if kept is None:  # refused when the stream began
        raise TypeError(stored.dtype)
    wanted = dtype if dtype is not None and kept.is_floating_point else kept
    out = host_room((math.prod(stored.shape),), wanted, pinned)
    stream.seek(stored.offset)
    if wanted == kept:
        read_into(stream, out.view(torch.uint8), file, stored.name)
        return out.view(stored.shape)
    chunk = torch.empty(min(out.numel(), _CHUNK_BYTES // kept.itemsize), dtype=kept)
    for start in range(0, out.numel(), max(1, chunk.numel())):
        target = out[start : start + chunk.numel()]
        piece = chunk[: target.numel()]
        read_into(stream, piece.view(torch.uint8), file, stored.name)
        target.copy_(piece)
    return out.view(stored.shape)
