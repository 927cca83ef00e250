"""bitsandbytes: 4-bit tables (nf4, fp4) by blocks of the flattened weight, and int8 by rows."""

from __future__ import annotations

import json
from collections.abc import Mapping
from math import prod
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from octavo.engine.errors import UnsupportedModelError
from octavo.engine.load.checkpoint import TensorInfo
from octavo.engine.load.packed.bits import halves
from octavo.engine.load.packed.scheme import Planes, Read, Scheme, StoredWeight
from octavo.engine.quant.codes import TableCode
from octavo.engine.quant.dynamic import LLMInt8Format
from octavo.engine.quant.grouped import GroupedFormat
from octavo.kernels.code_tables import TABLES

_NESTED_BLOCK = 256
_STATE = "weight.quant_state.bitsandbytes__"


class BitsAndBytes(Scheme):
    """4-bit weights carry the JSON of their state in a tensor of bytes; int8 weights a scale for each row (SCB)."""

    key = "weight.absmax"
    roles: tuple[str, ...] = (
        "weight.absmax",
        "weight.quant_map",
        "weight.nested_absmax",
        "weight.nested_quant_map",
        f"{_STATE}nf4",
        f"{_STATE}fp4",
        "weight",
    )
    ignored = ("weight_format",)

    def __init__(self, settings: Mapping[str, Any], read: Read, path: Path) -> None:
        super().__init__(settings, read, path)
        if settings.get("load_in_8bit") or settings.get("_load_in_8bit"):
            self.key, self.roles = "SCB", ("SCB", "weight")

    def weight(self, module: str, tensors: Mapping[str, TensorInfo]) -> StoredWeight:
        return self._int8(module, tensors) if self.key == "SCB" else self._four_bit(module, tensors)

    def _int8(self, module: str, tensors: Mapping[str, TensorInfo]) -> StoredWeight:
        weight = self.expect(tensors, "weight")
        if weight.dtype != "I8" or len(weight.shape) != 2:
            self.fail(f"{weight.name} is stored as {weight.dtype} {list(weight.shape)} with int8 scales", weight)
        self.expect(tensors, "SCB", weight.shape[:1])

        def convert(found: Mapping[str, Tensor]) -> Planes:
            return {"codes": found["weight"], "scale": found["SCB"].float().unsqueeze(1)}

        form = LLMInt8Format(quantizes=False)
        return StoredWeight(f"{module}.weight", weight.shape, "bitsandbytes int8", form, tensors, convert)

    def _four_bit(self, module: str, tensors: Mapping[str, TensorInfo]) -> StoredWeight:
        name, state = self._state(tensors)
        shape, size = tuple(int(n) for n in state["shape"]), int(state["blocksize"])
        count = prod(shape)
        self.expect(tensors, "weight", (-(-count // 2), 1), (-(-count // 2),))
        blocks = -(-count // size)
        self.expect(tensors, "weight.absmax", (blocks,))
        if "weight.nested_absmax" in tensors:
            self.expect(tensors, "weight.nested_absmax", (-(-blocks // _NESTED_BLOCK),))
            self.expect(tensors, "weight.nested_quant_map", (256,))
        code = TableCode(name)
        rows = shape[-1] % size == 0  # else blocks run over the ends of rows, which no format of ours does
        form = GroupedFormat(name, code, size, torch.float32, quantizes=False) if rows else None

        def convert(found: Mapping[str, Tensor]) -> Planes:
            scales = _scales(found, float(state.get("nested_offset", 0.0)))
            codes = halves(found["weight"].flatten())
            if rows:
                return {"codes": codes.view(shape[0], -1), "scale": scales.view(shape[0], -1)}
            numbers = code.decode(code.unpack(codes, count))
            return {"weight": numbers.mul_(scales.repeat_interleave(size)[:count]).view(shape)}

        return StoredWeight(f"{module}.weight", shape, f"bitsandbytes {name}", form, tensors, convert)

    def _state(self, tensors: Mapping[str, TensorInfo]) -> tuple[str, dict[str, Any]]:
        for name in ("nf4", "fp4"):
            info = tensors.get(_STATE + name)
            if info is None:
                continue
            try:
                state = json.loads(bytes(self.read(info.name).flatten().tolist()).decode("utf-8"))
                shape = [int(n) for n in state["shape"]]
                if len(shape) != 2 or min(shape) < 1 or int(state["blocksize"]) < 1:
                    raise ValueError("sizes")
            except (ValueError, KeyError, TypeError, AttributeError):
                self.fail(f"{info.name} is not the description of a weight", info)
            table = self.read(self.expect(tensors, "weight.quant_map", (16,)).name).float()
            if not torch.allclose(table, torch.tensor(TABLES[name]), atol=1e-6):
                raise UnsupportedModelError(
                    f"{info.file.name} stores {info.name.partition('.weight')[0]} in a table of its own.",
                    remedy="Use a version of the model as nf4 or fp4, or a GGUF file.",
                )
            return name, state
        first = next(iter(tensors.values()))
        self.fail(f"{first.name} has no description of its type beside it", first)


def _scales(found: Mapping[str, Tensor], offset: float) -> Tensor:
    """The largest magnitude of each block, float32; stored as such, or as 8-bit codes with scales of their own."""
    stored = found["weight.absmax"]
    if "weight.nested_absmax" not in found:
        return stored.float()
    table, outer = found["weight.nested_quant_map"].float(), found["weight.nested_absmax"].float()
    numbers = table[stored.int()] * outer.repeat_interleave(_NESTED_BLOCK)[: stored.numel()]
    return numbers + offset
