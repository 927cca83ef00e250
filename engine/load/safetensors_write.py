"""Writes a safetensors file one tensor at a time, so that no more than one is in memory. Layout by the format."""

from __future__ import annotations

import json
import math
import uuid
from collections.abc import Iterable, Mapping
from pathlib import Path

import torch
from torch import Tensor

from octavo.engine.load.safetensors_header import STORED_TYPES

NAMES: dict[torch.dtype, str] = {kept.torch: name for name, kept in STORED_TYPES.items() if kept.torch is not None}
_ALIGNMENT = 8  # bytes; the header is padded with spaces to a multiple


def write_safetensors(
    path: Path,
    entries: Mapping[str, tuple[tuple[int, ...], torch.dtype]],
    tensors: Iterable[tuple[str, Tensor]],
    metadata: Mapping[str, str] | None = None,
) -> None:
    """Writes the tensors, which come in the order of `entries`, and puts the file into place when it is whole.

    Raises OSError, leaving what was at `path` before, and ValueError for tensors that are not those of `entries`.
    """
    header, end = {}, 0
    for name, (shape, dtype) in entries.items():
        begin, end = end, end + math.prod(shape) * dtype.itemsize
        header[name] = {"dtype": NAMES[dtype], "shape": list(shape), "data_offsets": [begin, end]}
    text = json.dumps(({"__metadata__": dict(metadata)} if metadata else {}) | header).encode()
    text += b" " * (-len(text) % _ALIGNMENT)
    unfinished = path.with_name(f"{path.name}.{uuid.uuid4().hex[:8]}.part")
    try:
        with unfinished.open("wb") as stream:
            stream.write(len(text).to_bytes(8, "little") + text)
            wanted = iter(entries.items())
            for name, tensor in tensors:
                expected = next(wanted, None)
                if expected != (name, (tuple(tensor.shape), tensor.dtype)):
                    raise ValueError(f"{name} came where {expected[0] if expected else 'nothing'} was to be written")
                stream.write(memoryview(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data))
            if next(wanted, None) is not None:
                raise ValueError("tensors are missing")
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)
