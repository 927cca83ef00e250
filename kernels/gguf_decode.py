"""GGUF blocks as plain numbers, for products of so many rows that the library's kernels are worth a copy.

Grid: rows of the weight times blocks of 1,024 columns; a thread reads codes once and writes each number once, in the
order of the format's own arithmetic, so that float32 is exact to the bit. Bound by writing: more than three times the
bytes of 4-bit codes.
"""

# mypy: disallow-untyped-defs=False, check-untyped-defs=False, allow-untyped-calls=True
# ruff: noqa: SIM109 - the kernels' language has no `in`

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from octavo.kernels.gguf_number import Q4_0, Q4_1, Q4_K, Q6_K, Q8_0
from octavo.kernels.gguf_weight import BlockWeight

_BLOCK = 1024


def decode_planes(weight: BlockWeight, dtype: torch.dtype, ids: Tensor | None = None) -> Tensor:
    """[outs, size], or only its rows of int64 ids, rounded once: as BlockWeight.plain."""
    outs, size = weight.shape
    if ids is not None:
        outs = ids.shape[0]
    out = torch.empty((outs, size), dtype=dtype, device=weight.codes.device)
    high = weight.codes if weight.high is None else weight.high
    unit = weight.scale if weight.unit is None else weight.unit
    if outs == 0:
        return out
    gguf_decode_kernel[(outs, triton.cdiv(size, _BLOCK))](
        weight.codes, high, weight.scale, unit, weight.codes if ids is None else ids, out,
        SIZE=size, PICKED=ids is not None, KIND=weight.kind.number, FIVE=weight.kind.high == 1, BLOCK=_BLOCK,
        num_warps=4, enable_fp_fusion=False,
    )  # fmt: skip
    return out


@triton.jit
def gguf_decode_kernel(
    codes_ptr,
    high_ptr,
    scale_ptr,
    unit_ptr,
    ids_ptr,
    out_ptr,
    SIZE: tl.constexpr,
    KIND: tl.constexpr,
    FIVE: tl.constexpr,
    PICKED: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """The planes of a BlockWeight as they are; out [rows, SIZE], of all rows or of those of ids if PICKED."""
    BLOCKS: tl.constexpr = (SIZE + 127) // 128
    place = tl.program_id(0).to(tl.int64)
    row = tl.load(ids_ptr + place) if PICKED else place
    col = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = col < SIZE
    block = col // 128
    group = col // 32 % 4
    if KIND == Q8_0:
        number = tl.load(codes_ptr + row * SIZE + col, mask=inside, other=0).to(tl.float32)
    elif KIND == Q6_K:
        w = tl.load(codes_ptr + row * (BLOCKS * 32) + col // 64 * 16 + col % 16, mask=inside, other=0).to(tl.int32)
        h = tl.load(high_ptr + row * (BLOCKS * 16) + block * 16 + col % 16, mask=inside, other=0).to(tl.int32)
        field = col // 16 % 8
        # fields 0 to 3 begin at bits 4, 8, 6 and 10 (HIGH_BITS), 4 to 7 at those of the swapped bytes
        bit = (4 + field % 2 * 4 + field // 2 % 2 * 2 + field // 4 * 8) % 16
        number = (((w >> (field % 4 * 4)) & 15) | (((h >> bit) & 3) << 4)).to(tl.float32) - 32.0
    else:
        w = tl.load(codes_ptr + row * (BLOCKS * 32) + block * 32 + col % 32, mask=inside, other=0).to(tl.int32)
        code = (w >> (group * 4)) & 15
        if FIVE:
            at = block * 8 + col // 8 % 4 * 2 + col % 2
            h = tl.load(high_ptr + row * (BLOCKS * 8) + at, mask=inside, other=0).to(tl.int32)
            code |= ((h >> (group * 4 + col // 2 % 4)) & 1) << 4
        number = code.to(tl.float32)
        if KIND == Q4_0:
            number -= 16.0 if FIVE else 8.0
    if KIND == Q6_K:
        scale = tl.load(scale_ptr + row * (BLOCKS * 8) + col // 16, mask=inside, other=0).to(tl.float32)
        scale *= tl.load(unit_ptr + row * (SIZE // 256) + col // 256, mask=inside, other=0.0).to(tl.float32)
    elif KIND == Q4_1 or KIND == Q4_K:
        at = row * (BLOCKS * 8) + block * 8 + group
        scale = tl.load(scale_ptr + at, mask=inside, other=0).to(tl.float32)
        minimum = tl.load(scale_ptr + at + 4, mask=inside, other=0).to(tl.float32)
        if KIND == Q4_K:
            unit = unit_ptr + row * (SIZE // 128) + col // 256 * 2
            scale *= tl.load(unit, mask=inside, other=0.0).to(tl.float32)
            minimum *= -tl.load(unit + 1, mask=inside, other=0.0).to(tl.float32)
    else:
        scale = tl.load(scale_ptr + row * (BLOCKS * 4) + col // 32, mask=inside, other=0.0).to(tl.float32)
    number *= scale
    if KIND == Q4_1 or KIND == Q4_K:
        number += minimum
    tl.store(out_ptr + place * SIZE + col, number.to(out_ptr.dtype.element_ty), mask=inside)
