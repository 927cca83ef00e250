"""A quantized safetensors folder as a Checkpoint whose weights have the names and shapes of the plain model.

`stream` gives them expanded, for whoever wants plain numbers; `stream_planes` as they are stored.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from octavo.engine.errors import CheckpointError
from octavo.engine.load.ahead import read_ahead
from octavo.engine.load.checkpoint import Checkpoint, TensorInfo
from octavo.engine.load.files import FETCH_AGAIN
from octavo.engine.load.packed.detect import SCHEMES, find_method
from octavo.engine.load.packed.scheme import Planes, Scheme, StoredWeight
from octavo.engine.quant.base import Packed

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


# What torch and Python raise for sizes, types and settings that no writer of the format would produce.
_ODD = (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError, re.error)


class PackedCheckpoint(Checkpoint):
    """Wraps the folder it reads from. Its config names no quantization any more: whoever reads it gets weights."""

    kind = "safetensors"

    def __init__(self, inner: Checkpoint, method: str, stored: dict[str, StoredWeight], dropped: set[str]) -> None:
        self.path = inner.path
        self.method = method
        self.config = _without_quantization(inner.config)
        self.generation_config = inner.generation_config
        self._inner = inner
        self._stored = stored
        claimed = {info.name for weight in stored.values() for info in weight.tensors.values()} | dropped
        plain = {name: info for name, info in inner.tensors.items() if name not in claimed}
        both = plain.keys() & stored.keys()
        if both:
            name = min(both)
            raise CheckpointError(
                f"{inner.path.name} holds {name} quantized and again in full.",
                file=str(plain[name].file),
                tensor=name,
                remedy=FETCH_AGAIN,
            )
        self.tensors = plain | {name: _info(weight) for name, weight in stored.items()}

    def stream(
        self, names: Collection[str] | None = None, dtype: torch.dtype | None = None, *, pinned: bool = False
    ) -> Iterator[tuple[str, Tensor]]:
        self.check(names)
        wanted = list(self.tensors if names is None else names)
        return self._stream(wanted, dtype, pinned)

    def stream_planes(self, names: Collection[str], *, pinned: bool = False) -> Iterator[tuple[str, Planes]]:
        self.check(names)
        sizes = [(name, self.tensors[name].size_bytes) for name in names]
        yield from read_ahead(sizes, lambda name: self._planes(self._stored[name], pinned))

    def check(self, names: Collection[str] | None = None) -> None:
        super().check(names)
        for name in self.tensors if names is None else names:
            parts = self._stored[name].tensors.values() if name in self._stored else (self.tensors[name],)
            self._inner.check([info.name for info in parts])

    def load_tokenizer(self) -> PreTrainedTokenizerBase:
        return self._inner.load_tokenizer()

    def close(self) -> None:
        self._inner.close()

    def _stream(self, names: list[str], dtype: torch.dtype | None, pinned: bool) -> Iterator[tuple[str, Tensor]]:
        yield from self._inner.stream([name for name in names if name not in self._stored], dtype, pinned=pinned)
        for name in names:
            if name in self._stored:
                yield name, self._expanded(self._stored[name], dtype)

    def _planes(self, weight: StoredWeight, pinned: bool = False) -> Planes:
        found = {role: self._inner.read(info.name, pinned=pinned) for role, info in weight.tensors.items()}
        try:
            return weight.convert(found)
        except _ODD as error:
            first = next(iter(weight.tensors.values()))
            raise CheckpointError(
                f"{weight.name} in {first.file.name} is no {weight.kind} weight ({_first_line(error)}).",
                file=str(first.file),
                tensor=first.name,
                remedy=FETCH_AGAIN,
            ) from error

    def _expanded(self, weight: StoredWeight, dtype: torch.dtype | None) -> Tensor:
        planes = self._planes(weight)
        if weight.format is None:
            return planes["weight"].to(dtype or planes["weight"].dtype)
        return weight.format.dequantize(Packed(planes, None, weight.shape[-1], dtype or torch.float32))


def open_packed(inner: Checkpoint) -> Checkpoint:
    """The folder itself if its weights are plain, else what reads its method. Raises UnsupportedModelError for a
    method that is not read, CheckpointError for tensors that do not fit together."""
    found = find_method(inner.path, inner.config, inner.tensors)
    if found is None:
        return inner
    method, settings = found
    try:
        return _wrapped(inner, method, SCHEMES[method](settings, inner.read, inner.path))
    except _ODD as error:
        raise CheckpointError(
            f"The quantization settings of {inner.path.name} do not fit its weights ({_first_line(error)}).",
            file=str(inner.path / "config.json"),
            remedy=FETCH_AGAIN,
        ) from error


def _wrapped(inner: Checkpoint, method: str, scheme: Scheme) -> PackedCheckpoint:
    modules: dict[str, dict[str, TensorInfo]] = {}
    dropped: set[str] = set()
    for name, info in inner.tensors.items():
        place = scheme.module_of(name)
        if place is not None:
            modules.setdefault(place[0], {})[place[1]] = info
        elif name.endswith(tuple(f".{ending}" for ending in scheme.ignored)):
            dropped.add(name)
    stored = {}
    for module, tensors in modules.items():
        if scheme.key in tensors:
            weight = scheme.weight(module, tensors)
            stored[weight.name] = weight
    return PackedCheckpoint(inner, method, stored, dropped)


def _first_line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)


def _info(weight: StoredWeight) -> TensorInfo:
    first = next(iter(weight.tensors.values()))
    size = sum(info.size_bytes for info in weight.tensors.values())
    return TensorInfo(weight.name, weight.kind, weight.shape, first.file, size, weight.format)


def _without_quantization(config: dict[str, object]) -> dict[str, object]:
    names = ("quantization_config", "compression_config")
    plain = {name: value for name, value in config.items() if name not in names}
    text = plain.get("text_config")
    if isinstance(text, dict) and "quantization_config" in text:
        plain["text_config"] = {name: value for name, value in text.items() if name not in names}
    return plain
