"""Keys and values in 8 bits: what a cached head of a token is rounded to, in plain torch.

Every head of every token has codes and one float32 scale of its own, so that what a token is read as depends on that
token alone: not on its chunk, its neighbours or who shares its page. int8: whole numbers -127 .. 127, the scale is the
largest magnitude / 127. float8_e4m3fn (OCP 8-bit floating point specification, 2023): the scale is the least power of
two that brings the largest magnitude to 448 or below; a power of two costs a float nothing, and the products of codes
and scale are then exact in 16 bits. A head with a number that is not finite has the scale NaN, and is NaN as a whole.
The kernels that write (kv_codes.py) round to the same codes.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

INT8_LARGEST = 127.0
FP8_LARGEST = 448.0
LEAST_PEAK = 1e-30  # a head of smaller numbers becomes zeros; its scale and the inverse stay in float32's normal range
SCALE_BYTES = 4
NAMES = {torch.int8: "int8", torch.float8_e4m3fn: "fp8"}

# What kernels are compiled for.
PLAIN, INT8, FP8 = 0, 1, 2


@dataclass(frozen=True, slots=True)
class KVScales:
    """The scales beside an 8-bit cache's planes: float32 [pages, Hkv, page_size] each, contiguous."""

    k: Tensor
    v: Tensor


def is_quantized(dtype: torch.dtype) -> bool:
    """Whether planes of this type are codes, with scales beside them."""
    return dtype in NAMES


def kind(dtype: torch.dtype) -> int:
    """PLAIN, INT8 or FP8."""
    return {torch.int8: INT8, torch.float8_e4m3fn: FP8}.get(dtype, PLAIN)


def head_bytes(dim: int, dtype: torch.dtype) -> int:
    """Bytes of one head of one token in one plane, its scale included."""
    return dim * dtype.itemsize + (SCALE_BYTES if is_quantized(dtype) else 0)


def quantize(x: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """x [..., D] as (codes of `dtype` [..., D], scales float32 [...]); codes * scale is nearest to x."""
    x = x.float()
    peak = x.abs().amax(-1)
    finite = peak.isfinite()
    peak = torch.where(finite, peak, 1.0).clamp(min=LEAST_PEAK)
    if dtype == torch.int8:
        scale, inverse = peak * (1 / INT8_LARGEST), torch.full_like(peak, INT8_LARGEST) / peak
    else:
        bits = (peak * (1 / FP8_LARGEST)).view(torch.int32)
        exponent = (bits + 0x7FFFFF) & 0x7F800000
        scale, inverse = exponent.view(torch.float32), (0x7F000000 - exponent).view(torch.float32)
    codes = (x * inverse[..., None]).masked_fill(~finite[..., None], 0)
    if dtype == torch.int8:
        codes = codes.round()
    return codes.to(dtype), scale.masked_fill(~finite, float("nan"))


def dequantize(codes: Tensor, scales: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """codes [..., D] times scales [...], in float32, then as `dtype`."""
    return (codes.float() * scales[..., None]).to(dtype)


def as_bytes(pages: Tensor) -> Tensor:
    """Planes as kernels take them, which need no type that a device lacks: codes as uint8, others as they are."""
    return pages.view(torch.uint8) if is_quantized(pages.dtype) else pages


def as_pairs(pages: Tensor) -> Tensor:
    """The same with two neighbouring codes as one uint16, the first in the low byte; D must be even."""
    return pages.view(torch.uint16) if is_quantized(pages.dtype) else pages


@dataclass(frozen=True, slots=True)
class KernelPlanes:
    """A layer's cache as an attention kernel takes it; scales are any tensor if `kind` is PLAIN."""

    k: Tensor
    v: Tensor
    k_scale: Tensor
    v_scale: Tensor
    kind: int
    wide: bool  # codes are multiplied as float32, else bfloat16

    @property
    def tensors(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """In the order in which kernels take them."""
        return self.k, self.v, self.k_scale, self.v_scale

    @property
    def strides(self) -> dict[str, int]:
        """What kernels call k_page_stride, k_head_stride, k_slot_stride, and the same of v."""
        names = ("page_stride", "head_stride", "slot_stride")
        return {
            f"{plane}_{name}": stride
            for plane, pages in (("k", self.k), ("v", self.v))
            for name, stride in zip(names, pages.stride())
        }

    @property
    def least_block(self) -> int:
        """The narrowest block of channels: dots take 16 at least, of half the channels each where words are loaded."""
        return 32 if self.kind != PLAIN else 16


def kernel_planes(k: Tensor, v: Tensor, scales: KVScales | None, q: Tensor, *, words: bool) -> KernelPlanes:
    """Planes for a kernel that multiplies with `q`, 8-bit codes as words of two or as bytes."""
    if scales is None:
        return KernelPlanes(k, v, k, v, PLAIN, False)
    view = as_pairs if words else as_bytes
    wide = q.dtype == torch.float32 or q.device.type == "cpu"  # on the CPU runs Triton's interpreter, without bfloat16
    return KernelPlanes(view(k), view(v), scales.k, scales.v, kind(k.dtype), wide)
