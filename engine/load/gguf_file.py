"""The header of one GGUF file: metadata and tensor descriptions, read as hostile input.

Layout by the GGUF specification, versions 2 and 3: magic "GGUF", u32 version, u64 tensor count, u64 metadata count,
metadata pairs, tensor descriptions (name, dimensions with the row length first, type, offset), then data aligned to
`general.alignment`. Everything read here is copied, so that the file is not held open.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from octavo.engine.errors import CheckpointError
from octavo.engine.load.files import FETCH_AGAIN, refuse_lfs_pointer
from octavo.engine.load.gguf_types import GGML_TYPES, GGMLType

_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_MAX_DIMS = 4
_MAX_DEPTH = 4  # arrays of arrays
_STRING, _ARRAY, _BOOL = 8, 9, 7
_SCALARS: dict[int, str] = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "B", 10: "Q", 11: "q", 12: "d"}
_MIN_PAIR_BYTES = 8 + 4 + 1  # key length, type, smallest value
_MIN_TENSOR_BYTES = 8 + 4 + 8 + 4 + 8
_U32, _U64 = struct.Struct("<I"), struct.Struct("<Q")


@dataclass(frozen=True, slots=True)
class GGUFTensor:
    """One stored tensor. `shape` is row-major (the row length comes last, unlike in the file)."""

    name: str
    type: GGMLType
    shape: tuple[int, ...]
    offset: int  # bytes from the start of the file
    size_bytes: int


@dataclass(frozen=True, slots=True)
class GGUFFile:
    """A checked header. `metadata` holds int, float, bool, str, lists of str and numpy arrays of numbers."""

    path: Path
    version: int
    metadata: Mapping[str, Any]
    tensors: Mapping[str, GGUFTensor]
    size_bytes: int


def read_gguf(path: Path) -> GGUFFile:
    """Reads and checks the header; raises CheckpointError naming the file and what is wrong with it."""
    size = path.stat().st_size
    if size < 24:
        raise _error(path, f"is cut off: it has {size} bytes, a GGUF header has at least 24")
    with path.open("rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as data:
        return _Reader(path, data, size).read()


def read_gguf_beginning(name: str, beginning: bytes, size_bytes: int) -> GGUFFile | None:
    """The header of a file of `size_bytes` of which only the first bytes are at hand; None if they do not hold all of
    it. Raises CheckpointError as `read_gguf` does."""
    if len(beginning) < min(24, size_bytes):
        return None
    reader = _Reader(Path(name), beginning, size_bytes)
    try:
        header = reader.read()
    except (struct.error, ValueError):  # it went on behind the bytes at hand
        return None
    except CheckpointError:
        if reader.pos > len(beginning):
            return None
        raise
    return header if reader.pos <= len(beginning) else None


def _error(path: Path, what: str, tensor: str | None = None) -> CheckpointError:
    return CheckpointError(
        f"{path.name} {what}.",
        file=str(path),
        tensor=tensor,
        remedy=FETCH_AGAIN,
    )


class _Reader:
    """A cursor over the mapped header that never reads past the file's end."""

    def __init__(self, path: Path, data: mmap.mmap | bytes, size: int) -> None:
        self.path, self.data, self.size = path, data, size
        self.pos = 0

    def read(self) -> GGUFFile:
        version, num_tensors, num_pairs = self._preamble()
        metadata: dict[str, Any] = {}
        for index in range(num_pairs):
            key = self._key(index)
            if key in metadata:
                raise _error(self.path, f"has the metadata key {key} twice")
            metadata[key] = self._value(self._u32(), key)
        tensors = self._tensors(num_tensors, metadata)
        return GGUFFile(self.path, version, metadata, tensors, self.size)

    def _preamble(self) -> tuple[int, int, int]:
        magic = self.data[:4]
        refuse_lfs_pointer(self.path, self.data[:24])
        if magic != _MAGIC:
            raise CheckpointError(
                f"{self.path.name} is not a GGUF file: it begins with {magic!r}.",
                file=str(self.path),
                remedy="Choose a model file in GGUF format.",
            )
        self.pos = 4
        version = self._u32()
        if version not in _VERSIONS:
            swapped = int.from_bytes(version.to_bytes(4, "little"), "big")
            found = f"version {swapped}, big-endian" if swapped in (*_VERSIONS, 1) else f"version {version}"
            raise CheckpointError(
                f"{self.path.name} is GGUF {found}; read are the little-endian versions 2 and 3.",
                file=str(self.path),
                remedy="Fetch a newer conversion of this model.",
            )
        num_tensors, num_pairs = self._u64(), self._u64()
        if num_pairs * _MIN_PAIR_BYTES + num_tensors * _MIN_TENSOR_BYTES > self.size - self.pos:
            raise _error(
                self.path,
                f"claims {num_pairs} metadata entries and {num_tensors} tensors, more than {self.size} bytes can hold",
            )
        return version, num_tensors, num_pairs

    def _need(self, count: int, what: str) -> int:
        """Moves past `count` bytes and returns where they begin."""
        start = self.pos
        if count > self.size - start:
            raise _error(
                self.path, f"is cut off in its header: {what} ends at byte {start + count}, the file has {self.size}"
            )
        self.pos = start + count
        return start

    def _u32(self) -> int:
        return int(_U32.unpack_from(self.data, self._need(4, "a number"))[0])

    def _u64(self) -> int:
        return int(_U64.unpack_from(self.data, self._need(8, "a number"))[0])

    def _text(self, what: str) -> bytes:
        length = self._u64()
        start = self._need(length, what)
        return self.data[start : start + length]

    def _key(self, index: int) -> str:
        raw = self._text(f"the name of metadata entry {index}")
        try:
            return raw.decode("utf-8")
        except UnicodeDecodeError:
            raise _error(self.path, f"has a metadata key that is not UTF-8 ({raw[:40]!r})") from None

    def _value(self, kind: int, key: str, depth: int = 0) -> Any:
        if kind == _STRING:
            return self._text(f"the value of {key}").decode("utf-8", errors="replace")
        if kind == _ARRAY:
            return self._array(key, depth + 1)
        code = _SCALARS.get(kind)
        if code is None:
            raise _error(self.path, f"has a value of the unknown type {kind} under {key}")
        start = self._need(struct.calcsize("<" + code), f"the value of {key}")
        value = struct.unpack_from("<" + code, self.data, start)[0]
        return bool(value) if kind == _BOOL else value

    def _array(self, key: str, depth: int) -> Any:
        if depth > _MAX_DEPTH:
            raise _error(self.path, f"nests arrays deeper than {_MAX_DEPTH} under {key}")
        kind, count = self._u32(), self._u64()
        if kind == _STRING:
            return self._strings(count, key)
        if kind == _ARRAY:
            if count * 12 > self.size - self.pos:
                raise _error(self.path, f"claims {count} arrays under {key}, more than it can hold")
            return [self._array(key, depth + 1) for _ in range(count)]
        code = _SCALARS.get(kind)
        if code is None:
            raise _error(self.path, f"has an array of the unknown type {kind} under {key}")
        dtype = np.dtype("<" + code)
        start = self._need(count * dtype.itemsize, f"the array {key}")
        values = np.frombuffer(self.data[start : self.pos], dtype=dtype)
        return values.astype(np.bool_) if kind == _BOOL else values

    def _strings(self, count: int, key: str) -> list[str]:
        """A vocabulary has some 100,000 of them: one tight loop."""
        if count * 8 > self.size - self.pos:
            raise _error(self.path, f"claims {count} strings under {key}, more than it can hold")
        data, unpack, pos, size = self.data, _U64.unpack_from, self.pos, self.size
        texts: list[str] = []
        for _ in range(count):
            if pos + 8 > size:
                break
            start = pos + 8
            pos = start + unpack(data, pos)[0]
            if pos > size:
                break
            texts.append(data[start:pos].decode("utf-8", errors="replace"))
        if len(texts) != count:
            raise _error(self.path, f"is cut off in its header: the list {key} ends past the file's {size} bytes")
        self.pos = pos
        return texts

    def _tensors(self, count: int, metadata: Mapping[str, Any]) -> dict[str, GGUFTensor]:
        described = [self._tensor_description() for _ in range(count)]
        alignment = metadata.get("general.alignment", 32)
        if type(alignment) is not int or alignment < 1 or alignment & (alignment - 1):
            raise _error(self.path, f"has general.alignment {alignment!r}, which is not a power of two")
        data_start = -(-self.pos // alignment) * alignment
        tensors: dict[str, GGUFTensor] = {}
        for name, kind, shape, offset in described:
            if name in tensors:
                raise _error(self.path, f"describes the tensor {name} twice", name)
            if offset % alignment:
                raise _error(self.path, f"puts {name} at {offset}, which is no multiple of {alignment}", name)
            tensors[name] = self._checked(name, kind, shape, data_start + offset)
        previous: GGUFTensor | None = None
        for tensor in sorted(tensors.values(), key=lambda t: t.offset):
            if previous is not None and previous.offset + previous.size_bytes > tensor.offset:
                raise _error(self.path, f"has the tensors {previous.name} and {tensor.name} overlap", tensor.name)
            previous = tensor
        return tensors

    def _tensor_description(self) -> tuple[str, int, tuple[int, ...], int]:
        raw = self._text("a tensor's name")
        try:
            name = raw.decode("utf-8")
        except UnicodeDecodeError:
            raise _error(self.path, f"has a tensor name that is not UTF-8 ({raw[:40]!r})") from None
        num_dims = self._u32()
        if not 1 <= num_dims <= _MAX_DIMS:
            raise _error(self.path, f"gives {name} {num_dims} dimensions", name)
        dims = tuple(self._u64() for _ in range(num_dims))
        return name, self._u32(), dims[::-1], self._u64()

    def _checked(self, name: str, kind: int, shape: tuple[int, ...], start: int) -> GGUFTensor:
        ggml = GGML_TYPES.get(kind)
        if ggml is None:
            raise _error(self.path, f"stores {name} in the unknown type {kind}", name)
        numel = 1
        for dim in shape:
            numel *= dim
        if numel == 0 or shape[-1] % ggml.block_size:
            raise _error(
                self.path,
                f"gives {name} the shape {list(shape)}, which {ggml.name} blocks of {ggml.block_size} cannot fill",
                name,
            )
        size_bytes = numel // ggml.block_size * ggml.block_bytes
        if start + size_bytes > self.size:
            raise _error(
                self.path, f"is cut off: {name} ends at byte {start + size_bytes}, the file has {self.size}", name
            )
        return GGUFTensor(name, ggml, shape, start, size_bytes)
