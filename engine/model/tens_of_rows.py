"""The products of a step with some tens of rows of 16-bit weights, and the norm that adds up what they leave in parts.

Between a few rows (few_rows.py) and a prompt's many, a product still takes as long as its weights take to be read, if
nothing waits: kernels/linear_wide.py says for which devices and shapes that is so.
"""

from __future__ import annotations

import torch
from torch import Tensor

from octavo.engine.quant.base import WeightRef
from octavo.engine.quant.plain import PlainFormat
from octavo.kernels import linear_wide

FUSED_ACTIVATIONS = ("silu", "swish")


def takes(x: Tensor, ref: WeightRef) -> bool:
    """Whether this product of x [T, in] is computed here: dense, by resident 16-bit weights."""
    if type(ref) is not WeightRef or ref.spec.experts is not None or not isinstance(ref.format, PlainFormat):
        return False
    if x.ndim != 2 or not x.is_contiguous():
        return False
    weight = ref.acquire().weight
    return weight.dtype == x.dtype and linear_wide.suits_wide(x.shape[0], weight, x.device)


def linear(x: Tensor, ref: WeightRef, out_dtype: torch.dtype | None = None) -> Tensor:
    """[T, out] in x's type or `out_dtype`, with its bias."""
    packed = ref.acquire()
    out = linear_wide.wide_linear(x, packed.weight, packed.bias, out_dtype=out_dtype)
    ref.release()
    return out


def gated(x: Tensor, ref: WeightRef) -> Tensor:
    """silu(gate) * up [T, out / 2] of a merged gate and up projection."""
    packed = ref.acquire()
    out = linear_wide.wide_linear(x, packed.weight, packed.bias, gated=True)
    ref.release()
    return out


def parts(x: Tensor, ref: WeightRef) -> Tensor | None:
    """float32 [P, T, out], whose sum over P is the linear; None if it has a bias."""
    packed = ref.acquire()
    out = None if packed.bias is not None else linear_wide.wide_linear_parts(x, packed.weight)
    ref.release()
    return out
