"""Weights as they are computed with: one dense plane in float32, float16 or bfloat16."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from octavo.engine.quant.base import Format, LinearSpec, Packed
from octavo.engine.sending import send


class PlainFormat(Format):
    """`quantization: none`. A checkpoint's tensors are cast to the compute dtype while they are copied into place."""

    name = "none"

    def stored(self, spec: LinearSpec, dtype: torch.dtype) -> dict[str, tuple[tuple[int, ...], torch.dtype]]:
        return {"weight": (spec.shape, dtype)}

    def pack(
        self, packed: Packed, spec: LinearSpec, planes: Mapping[str, Tensor], *, row: int = 0, expert: int | None = None
    ) -> None:
        source = planes["weight"]
        target = packed.weight if expert is None else packed.weight[expert]
        send(target.narrow(-2, row, source.shape[-2]), source)

    def dequantize(self, packed: Packed, rows: Tensor | None = None) -> Tensor:
        return packed.weight if rows is None else F.embedding(rows, packed.weight)

    def linear(self, x: Tensor, packed: Packed) -> Tensor:
        return F.linear(x, packed.weight, packed.bias)

    def linear_grouped(self, x: Tensor, packed: Packed, ends: Tensor) -> Tensor:
        weight = packed.weight
        if _has_grouped_kernel(weight.device, weight.dtype, weight.shape):
            return F.grouped_mm(x, weight.transpose(1, 2), offs=ends)
        out = x.new_empty((x.shape[0], weight.shape[1]))
        begin = 0
        for expert, end in enumerate(ends.tolist()):  # on a device, this waits for it
            if end > begin:
                torch.mm(x[begin:end], weight[expert].t(), out=out[begin:end])
            begin = end
        return out

    def waits_for_experts(self, spec: LinearSpec, dtype: torch.dtype, device: torch.device) -> bool:
        return not _has_grouped_kernel(device, dtype, spec.shape)

    def randomize(self, packed: Packed, spec: LinearSpec, generator: torch.Generator, std: float) -> None:
        packed.weight.normal_(0.0, std, generator=generator)


def _has_grouped_kernel(device: torch.device, dtype: torch.dtype, shape: Sequence[int]) -> bool:
    """torch's product over experts that reads where each one's rows end on the device: bfloat16, compute capability 8
    and newer, rows of a multiple of 16 bytes."""
    if device.type != "cuda" or dtype != torch.bfloat16 or not hasattr(F, "grouped_mm"):
        return False
    return torch.cuda.get_device_capability(device) >= (8, 0) and all(size % 8 == 0 for size in shape[-2:])
