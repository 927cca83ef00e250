"""The header of one safetensors file, read as hostile input.

Layout by the safetensors format: u64 header length, a JSON object of tensors with dtype, shape and byte range, then
the data, which the ranges cover without gap or overlap.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import torch

from octavo.engine.errors import CheckpointError
from octavo.engine.load.files import FETCH_AGAIN, refuse_lfs_pointer

MOST_DIMENSIONS = 8
_MAX_HEADER_BYTES = 100_000_000  # the format's own limit


@dataclass(frozen=True, slots=True)
class StoredType:
    """`torch` is None for types that are known by name but not read."""

    bits: int
    torch: torch.dtype | None


STORED_TYPES: dict[str, StoredType] = {
    "F64": StoredType(64, torch.float64),
    "F32": StoredType(32, torch.float32),
    "F16": StoredType(16, torch.float16),
    "BF16": StoredType(16, torch.bfloat16),
    "I64": StoredType(64, torch.int64),
    "I32": StoredType(32, torch.int32),
    "I16": StoredType(16, torch.int16),
    "I8": StoredType(8, torch.int8),
    "U8": StoredType(8, torch.uint8),
    "BOOL": StoredType(8, torch.bool),
    "U16": StoredType(16, None),
    "U32": StoredType(32, None),
    "U64": StoredType(64, None),
    "C64": StoredType(64, None),
    "F8_E4M3": StoredType(8, torch.float8_e4m3fn),
    "F8_E5M2": StoredType(8, torch.float8_e5m2),
    "F8_E8M0": StoredType(8, torch.float8_e8m0fnu),
    "F8_E4M3FNUZ": StoredType(8, None),
    "F8_E5M2FNUZ": StoredType(8, None),
    "F6_E2M3": StoredType(6, None),
    "F6_E3M2": StoredType(6, None),
    "F4": StoredType(4, None),
}


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """One entry of a checked header; `offset` counts from the start of the file."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int
    size_bytes: int


def read_header(path: Path) -> dict[str, StoredTensor]:
    """All tensors of a file in file order; CheckpointError names the file, the tensor and what does not fit."""
    entries, length, size = _read(path)
    entries.pop("__metadata__", None)
    tensors = [_entry(path, name, value, 8 + length) for name, value in entries.items()]
    tensors.sort(key=lambda tensor: (tensor.offset, tensor.size_bytes))
    _check_layout(path, tensors, 8 + length, size)
    return {tensor.name: tensor for tensor in tensors}


def read_metadata(path: Path) -> dict[str, str]:
    """The header's own words about the file, as far as they are text."""
    found = _read(path)[0].get("__metadata__")
    return {k: v for k, v in found.items() if isinstance(v, str)} if isinstance(found, dict) else {}


def _read(path: Path) -> tuple[dict[str, Any], int, int]:
    """(entries of the header, its length, the file's size)."""
    size = path.stat().st_size
    with path.open("rb") as stream:
        prefix = stream.read(8)
        refuse_lfs_pointer(path, prefix)
        if len(prefix) < 8:
            _fail(path, f"is cut off: it has {size} bytes, a safetensors file has at least 8")
        length = int.from_bytes(prefix, "little")
        if length > _MAX_HEADER_BYTES:
            _fail(path, f"is no safetensors file: its header would have {length} bytes")
        if length > size - 8:
            _fail(path, f"is cut off in its header: expected at least {length + 8} bytes, found {size}")
        return _parse(path, stream.read(length)), length, size


def _parse(path: Path, raw: bytes) -> dict[str, Any]:
    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for name, value in pairs:
            if name in found:
                _fail(path, f"has {name} twice in its header", name)
            found[name] = value
        return found

    try:
        entries = json.loads(raw.decode("utf-8"), object_pairs_hook=unique)
    except (ValueError, RecursionError) as error:
        _fail(path, f"has a header that is not valid JSON ({error})")
    if not isinstance(entries, dict):
        _fail(path, "has a header that is not a JSON object")
    return entries


def _entry(path: Path, name: str, value: Any, data_start: int) -> StoredTensor:
    if not isinstance(value, Mapping):
        _fail(path, f"describes {name} by something that is not an object", name)
    dtype, shape, offsets = value.get("dtype"), value.get("shape"), value.get("data_offsets")
    if not isinstance(dtype, str) or dtype not in STORED_TYPES:
        _fail(path, f"stores {name} in the unknown type {dtype!r}", name)
    if not isinstance(shape, list) or len(shape) > MOST_DIMENSIONS or not all(map(_natural, shape)):
        _fail(path, f"gives {name} the shape {str(shape)[:80]}", name)
    if not isinstance(offsets, list) or len(offsets) != 2 or not all(map(_natural, offsets)):
        _fail(path, f"gives {name} the byte range {offsets!r}", name)
    bits = math.prod(shape) * STORED_TYPES[dtype].bits
    begin, end = offsets
    if bits != 8 * (end - begin):
        _fail(path, f"gives {name} {end - begin} bytes, but {dtype} {shape} takes {bits // 8}", name)
    return StoredTensor(name, dtype, tuple(shape), data_start + begin, end - begin)


def _natural(value: Any) -> bool:
    return type(value) is int and 0 <= value < 1 << 63


def _check_layout(path: Path, tensors: list[StoredTensor], data_start: int, size: int) -> None:
    """The data follow each other from the header's end to the file's end."""
    end, before = data_start, "its header"
    for tensor in tensors:
        if tensor.offset < end:
            _fail(path, f"has {tensor.name} overlap {before}", tensor.name)
        if tensor.offset > end:
            _fail(path, f"has {tensor.offset - end} bytes before {tensor.name} that belong to no tensor", tensor.name)
        end, before = tensor.offset + tensor.size_bytes, tensor.name
    if end > size:
        first = next(t for t in tensors if t.offset + t.size_bytes > size)
        _fail(path, f"is cut off: expected {end} bytes, found {size}; {first.name} is not whole", first.name)
    if end < size:
        _fail(path, f"has {size} bytes where its header accounts for {end}")


def _fail(path: Path, what: str, tensor: str | None = None) -> NoReturn:
    raise CheckpointError(f"{path.name} {what}.", file=str(path), tensor=tensor, remedy=FETCH_AGAIN)
