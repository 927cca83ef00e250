"""A coded weight as plain numbers, for products of so many rows that the library's kernels are worth a copy.

Grid: rows of the weight times blocks of 1,024 columns; a thread reads codes once and writes each number once, in
float32 until then. Bound by writing: four times the bytes of 4-bit codes.
"""

# mypy: disallow-untyped-defs=False, check-untyped-defs=False, allow-untyped-calls=True

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from octavo.kernels.code_tables import TABLES
from octavo.kernels.device import device_traits
from octavo.kernels.quant_linear import code_of
from octavo.kernels.quant_number import INT8_WORDS, scaled_by_bits, wide_number
from octavo.kernels.quant_weight import CodedWeight
from octavo.kernels.table_number import scale_number, table_of

_BLOCK = 1024


def decode(weight: CodedWeight, dtype: torch.dtype) -> Tensor:
    """[outs, size], rounded once: as quant_weight.coded_reference."""
    outs, size = weight.shape
    out = torch.empty((outs, size), dtype=dtype, device=weight.codes.device)
    zero = weight.zero if weight.shift is None else weight.shift
    table = weight.code in TABLES
    code = 0 if weight.four_bit else code_of(weight, weight.codes.device, device_traits(weight.codes.device))
    _decode_kernel[(outs, triton.cdiv(size, _BLOCK))](
        weight.codes.view(torch.int8) if code == INT8_WORDS else weight.codes, weight.scale,
        weight.scale if zero is None else zero,
        table_of(weight.code, out.device) if table else weight.scale,
        weight.scale if weight.outer is None else weight.outer, out,
        SIZE=size, GROUP=weight.group, OFFSET=weight.offset if weight.zero is None else 0,
        ZERO=0 if zero is None else 1 if weight.shift is None else 2,
        CODE=code, TABLE=table, OUTER=weight.outer is not None, BLOCK=_BLOCK, num_warps=4, enable_fp_fusion=False,
    )  # fmt: skip
    return out


@triton.jit
def _decode_kernel(
    codes_ptr,
    scale_ptr,
    zero_ptr,
    table_ptr,
    outer_ptr,
    out_ptr,
    SIZE: tl.constexpr,
    GROUP: tl.constexpr,
    OFFSET: tl.constexpr,
    ZERO: tl.constexpr,
    CODE: tl.constexpr,
    TABLE: tl.constexpr,
    OUTER: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Grid (rows of the weight, blocks of BLOCK columns): the planes of a CodedWeight as they are; out [rows, SIZE].
    OFFSET and ZERO as in quant_gemv.py, CODE as in quant_number.py, 0 being 4-bit codes, which TABLE are entries of
    table, float32 [16]. OUTER as in quant_gemv.py."""
    row = tl.program_id(0).to(tl.int64)
    col = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = col < SIZE
    at = row * ((SIZE + GROUP - 1) // GROUP) + col // GROUP
    scale = scaled_by_bits(scale_number(tl.load(scale_ptr + at, mask=inside, other=0), GROUP), CODE)
    if OUTER:
        scale *= tl.load(outer_ptr + row)
    if CODE == 0:
        words: tl.constexpr = (SIZE + 127) // 128 * 32
        w = tl.load(codes_ptr + row * words + col // 128 * 32 + col % 32, mask=inside, other=0).to(tl.int32)
        code = (w >> (col // 32 % 4 * 4)) & 15
        number = tl.load(table_ptr + code) if TABLE else code.to(tl.float32)
    elif CODE == 5:
        filled: tl.constexpr = (SIZE + 127) // 128 * 128
        place = col // 128 * 128 + col % 64 * 2 + col // 64 % 2
        number = tl.load(codes_ptr + row * filled + place, mask=inside, other=0).to(tl.float32)
    else:
        number = wide_number(tl.load(codes_ptr + row * SIZE + col, mask=inside, other=0), CODE)
    if ZERO == 1:
        number -= tl.load(zero_ptr + at, mask=inside, other=0).to(tl.float32)
    else:
        number -= OFFSET
    number *= scale
    if ZERO == 2:
        number += tl.load(zero_ptr + at, mask=inside, other=0.0).to(tl.float32)
    tl.store(out_ptr + row * SIZE + col, number.to(out_ptr.dtype.element_ty), mask=inside)
