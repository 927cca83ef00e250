"""E4M3 weights with a scale for the tensor, for each row or for each block of 128 x 128 (DeepSeek, Qwen; FBGEMM)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from octavo.engine.errors import UnsupportedModelError
from octavo.engine.load.checkpoint import TensorInfo
from octavo.engine.load.packed.scheme import Planes, Read, Scheme, StoredWeight
from octavo.engine.quant.base import Format
from octavo.engine.quant.codes import FLOAT8
from octavo.engine.quant.dynamic import Float8Format
from octavo.engine.quant.grouped import GroupedFormat


class BlockFloat8(Scheme):
    """quant_method "fp8": weight = code * weight_scale_inv of its block, whatever the name says. The last blocks of
    rows and columns may be smaller."""

    key = "weight_scale_inv"
    roles: tuple[str, ...] = ("weight_scale_inv", "weight")
    ignored: tuple[str, ...] = ("input_scale", "activation_scale", "k_scale", "v_scale")

    def __init__(self, settings: Mapping[str, Any], read: Read, path: Path) -> None:
        super().__init__(settings, read, path)
        if settings.get("fmt", "e4m3") not in ("e4m3", "float8_e4m3fn"):
            raise UnsupportedModelError(
                f"{path.name} stores its weights as {settings['fmt']!r} numbers; of 8-bit floats, e4m3 are read.",
                remedy="Use another version of the model, or a GGUF file.",
            )
        block = settings.get("weight_block_size")
        self.block = [int(n) for n in block] if block else None

    def weight(self, module: str, tensors: Mapping[str, TensorInfo]) -> StoredWeight:
        weight, scale = self.expect(tensors, "weight"), self.expect(tensors, self.key)
        if weight.dtype != "F8_E4M3" or len(weight.shape) != 2:
            self.fail(f"{weight.name} is stored as {weight.dtype} with a scale", weight)
        if self.block is not None:
            rows, columns = (-(-size // step) for size, step in zip(weight.shape, self.block))
            self.expect(tensors, self.key, (rows, columns))
        elif scale.shape not in ((), (1,), (weight.shape[0], 1), (weight.shape[0],), (1, 1)):
            self.fail(f"{scale.name} has the shape {list(scale.shape)}", scale)
        form = float8_format(scale.shape, weight.shape, self.block)

        def convert(found: Mapping[str, Tensor]) -> Planes:
            return {"codes": found["weight"], "scale": block_scales(found[self.key], weight.shape, self.block)}

        return StoredWeight(f"{module}.weight", weight.shape, "FP8", form, tensors, convert)


class RowFloat8(BlockFloat8):
    """quant_method "fbgemm_fp8": a scale for each row."""

    key = "weight_scale"
    roles = ("weight_scale", "weight")
    ignored = ("input_scale", "input_scale_ub")


def float8_format(scale: Sequence[int], weight: Sequence[int], block: Sequence[int] | None) -> Format:
    """How E4M3 codes with scales of such a shape are held."""
    if block:
        return GroupedFormat("FP8", FLOAT8, int(block[1]), torch.float32, quantizes=False)
    return Float8Format(name="FP8", quantizes=False)


def block_scales(scales: Tensor, weight: Sequence[int], block: Sequence[int] | None) -> Tensor:
    """Scales of the tensor, of rows or of blocks as float32 [rows, groups]: each row has its block's."""
    rows = weight[0]
    scales = scales.float()
    if block:
        return scales.repeat_interleave(int(block[0]), dim=0)[:rows]
    return scales.reshape(1, 1).expand(rows, 1) if scales.numel() == 1 else scales.reshape(rows, 1)
