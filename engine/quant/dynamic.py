"""Formats that also round the activations: every token by its own scale, so that no row depends on its neighbours.

int8-dynamic multiplies whole numbers (ZeroQuant, Yao et al. 2022: token-wise activations), fp8 E4M3 numbers on GPUs
that can, llm-int8 whole numbers but for the outliers (LLM.int8(), Dettmers et al. 2022).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor

from octavo.engine.quant.base import Format, LinearSpec, Packed
from octavo.engine.quant.codes import FLOAT8, INT8, Code
from octavo.engine.quant.grouped import GroupedFormat

_INT8 = GroupedFormat("int8", INT8)
OUTLIER = 6.0  # activations from this magnitude on are multiplied in full (LLM.int8(), section 3.2)
_LEAST_ROWS = 17  # torch._int_mm on CUDA takes more than 16
_EXACT_IN_FLOAT32 = (1 << 24) // (127 * 127)  # products of int8 whose sum float32 still holds exactly


@dataclass(frozen=True)
class DynamicInt8Format(GroupedFormat):
    """W8A8: int8 weights by row, int8 activations by token, whole-number sums."""

    name: str = "int8-dynamic"
    code: Code = INT8

    def interleaves(self, spec: LinearSpec) -> bool:
        return False  # whole-number products read the codes in order

    def decodes(self, device: torch.device) -> bool:
        return False

    def product(self, x: Tensor, planes: Mapping[str, Tensor], packed: Packed) -> Tensor:
        codes, scales = round_tokens(x)
        y = int_product(codes, planes["codes"]).mul_(scales)
        return y.mul_(planes["scale"].t()).to(x.dtype)


@dataclass(frozen=True)
class LLMInt8Format(GroupedFormat):
    """bitsandbytes' int8: `scale` holds each row's largest magnitude, weight = code * scale / 127.

    An activation of magnitude 6 or more is multiplied in full. Which ones are is decided for each token by itself,
    where bitsandbytes takes a column of the whole batch; for one token at a time both are the same.
    """

    name: str = "llm-int8"
    code: Code = INT8

    def interleaves(self, spec: LinearSpec) -> bool:
        return False

    def decodes(self, device: torch.device) -> bool:
        return device.type == "cuda"

    def quantize(self, weight: Tensor, scale_dtype: torch.dtype) -> dict[str, Tensor]:
        largest = weight.abs().amax(1, keepdim=True)
        factor = 127.0 / torch.where(largest == 0, 1.0, largest)
        return {"codes": (weight * factor).round_().to(torch.int8), "scale": largest}

    def decode(self, planes: Mapping[str, Tensor], in_dim: int, begin: int, end: int) -> Tensor:
        return planes["codes"][begin:end].float().mul_(planes["scale"][begin:end]).mul_(1 / 127)

    def product(self, x: Tensor, planes: Mapping[str, Tensor], packed: Packed) -> Tensor:
        large = x.abs() >= OUTLIER
        codes, scales = round_tokens(x.masked_fill(large, 0))
        y = int_product(codes, planes["codes"]).mul_(scales)
        y = y.mul_((planes["scale"] * (1 / 127)).t()).to(x.dtype)
        if x.is_cuda:  # asking which columns there are would wait for the device, and end a captured step
            return y.add_(super().product(x.masked_fill(~large, 0), planes, packed))
        columns = large.any(0).nonzero().flatten()
        if columns.numel():
            some = {"codes": planes["codes"][:, columns], "scale": planes["scale"]}
            weight = self.decode(some, columns.numel(), 0, y.shape[1]).to(x.dtype)
            y += F.linear(x.masked_fill(~large, 0)[:, columns], weight)
        return y


@dataclass(frozen=True)
class Float8Format(GroupedFormat):
    """E4M3 weights by row. GPUs with FP8 units also get the activations in E4M3, by token; others keep them as they
    are and multiply with the decoded weights.

    The last layer's second MLP product is held in int8: a few of its inputs are loud in every token, so that what is
    rounded off their weights is nearly the same in every token, and no later layer makes up for it.
    """

    name: str = "fp8"
    code: Code = FLOAT8

    @property
    def for_last(self) -> Format | None:  # type: ignore[override]
        return _INT8

    def decodes(self, device: torch.device) -> bool:
        return not has_float8_units(device)

    def product(self, x: Tensor, planes: Mapping[str, Tensor], packed: Packed) -> Tensor:
        codes = planes["codes"]
        if not has_float8_units(x.device) or any(size % 16 for size in codes.shape) or x.dtype == torch.float32:
            return super().product(x, planes, packed)
        wide = x.float()
        scales = wide.abs().amax(-1, keepdim=True).clamp_(min=1e-12) / 448.0
        rounded = (wide / scales).clamp_(-448.0, 448.0).to(codes.dtype)
        y = torch._scaled_mm(
            rounded, codes.t(), scale_a=scales, scale_b=planes["scale"].t().contiguous(), out_dtype=torch.bfloat16
        )
        return y.to(x.dtype)


def has_float8_units(device: torch.device) -> bool:
    """Whether a GPU multiplies E4M3 numbers (compute capability 8.9 and newer)."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= (8, 9)


def round_tokens(x: Tensor) -> tuple[Tensor, Tensor]:
    """x [T, in] to int8 codes and each token's float32 scale [T, 1]."""
    wide = x.float()
    scales = wide.abs().amax(-1, keepdim=True).clamp_(min=1e-12) / 127.0
    return (wide / scales).round_().to(torch.int8), scales


def int_product(x: Tensor, weight: Tensor) -> Tensor:
    """int8 x [T, in] times the transposed int8 weight [out, in], summed exactly: float32 [T, out]."""
    rows, in_dim = x.shape
    if x.device.type == "cpu":
        if has_whole_number_products():
            return torch._int_mm(x, weight.t()).float()
    elif in_dim % 8 == 0 and weight.shape[0] % 8 == 0:
        padded = F.pad(x, (0, 0, 0, _LEAST_ROWS - rows)) if rows < _LEAST_ROWS else x
        return torch._int_mm(padded, weight.t())[:rows].float()
    wide = torch.float32 if in_dim <= _EXACT_IN_FLOAT32 else torch.float64
    return F.linear(x.to(wide), weight.to(wide)).float()


@lru_cache(maxsize=1)
def has_whole_number_products() -> bool:
    """Whether the CPU's sums of the largest products are exact, which older processors' saturating instructions get
    wrong."""
    try:
        sums = torch._int_mm(torch.full((6, 64), -128, dtype=torch.int8), torch.full((64, 64), -127, dtype=torch.int8))
    except (RuntimeError, AttributeError):
        return False
    return bool((sums == 64 * 128 * 127).all())
