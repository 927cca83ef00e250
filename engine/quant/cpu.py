"""Dense 16-bit weights in the blocked order of oneDNN, which the CPU's matrix products read faster.

Measured on two cores with AVX-512 and AMX, bfloat16: 30 % less time at 1 to 64 rows, 10 % at 512, the same bits.
"""

from __future__ import annotations

import torch
from torch import Tensor

from octavo.engine.quant.base import LinearSpec, Packed
from octavo.engine.quant.plain import PlainFormat


class BlockedFormat(PlainFormat):
    """`quantization: none` on the CPU with fusion. Filled as plain planes that `finish` reorders."""

    shares_embedding = False

    @staticmethod
    def available(dtype: torch.dtype) -> bool:
        """Whether this torch and this processor can do it, by trying."""
        if dtype not in (torch.bfloat16, torch.float16) or not torch.backends.mkldnn.is_available():
            return False
        try:
            weight = torch.eye(64, dtype=dtype)
            result = _multiply(torch.ones((1, 64), dtype=dtype), _reorder(weight), None)
            return bool((result == 1).all())
        except (RuntimeError, AttributeError, NotImplementedError):
            return False

    def finish(self, packed: Packed, spec: LinearSpec) -> None:
        weight = packed.planes.pop("weight")
        if spec.experts is None:
            packed.planes["blocked"] = _reorder(weight)
        else:
            packed.planes.update({f"blocked.{e}": _reorder(weight[e]) for e in range(spec.experts)})

    def dequantize(self, packed: Packed, rows: Tensor | None = None) -> Tensor:
        if len(packed.planes) == 1:
            weight = packed.planes["blocked"].to_dense()
        else:
            weight = torch.stack([plane.to_dense() for plane in packed.planes.values()])
        return weight if rows is None else weight[rows]

    def linear(self, x: Tensor, packed: Packed) -> Tensor:
        return _multiply(x, packed.planes["blocked"], packed.bias)

    def linear_grouped(self, x: Tensor, packed: Packed, ends: Tensor) -> Tensor:
        begin, pieces = 0, []
        for expert, end in enumerate(ends.tolist()):
            if end > begin:
                pieces.append(_multiply(x[begin:end], packed.planes[f"blocked.{expert}"], None))
            begin = end
        return torch.cat(pieces)


def _reorder(weight: Tensor) -> Tensor:
    return torch.ops.mkldnn._reorder_linear_weight(weight, 1)


def _multiply(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
