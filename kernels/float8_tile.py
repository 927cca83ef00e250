"""Linear by E4M3 weights on FP8 tensor cores: y = x W^T for up to 64 rows, read at the rate of the memory.

Grid: a block of BLOCK_N outputs, a block of BLOCK_T rows, a part of the input (see linear_split.py). Weights go from
memory to shared memory and from there into the tensor cores; no instruction touches one. What costs instructions are
the activations, and few: each turn, a row's BLOCK_K of them are divided by a power of two that brings their largest to
between 128 and 256, and rounded to E4M3. With TERMS = 2, 16 times what that rounding left is rounded as well and
multiplied as a row of its own. Both terms together are a bfloat16 number to the last bit, as long as it is at least
1/8,192 of the largest; smaller ones are off by at most 2^-21 of it, so that the product is one of 16-bit activations.
Tensor cores of compute capability 9.0 add E4M3 products with some 14 bits: a turn's sums are therefore scaled and added
up in float32, and multiplied by the scales of their group of columns, where groups have some. What stands around the
product is as in linear_tile.py.
"""

# mypy: disallow-untyped-defs=False, check-untyped-defs=False, allow-untyped-calls=True

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from octavo.kernels.dependent_launch import once_there
from octavo.kernels.kv_codes import FP8, codes_of
from octavo.kernels.linear_epilogue import of_outputs, store_tile
from octavo.kernels.linear_split import summed_by_last


@triton.jit(do_not_specialize=["rows", "outs", "parts"])
def float8_tile_kernel(
    x_ptr,
    squares_ptr,
    weight_ptr,
    scale_ptr,
    bias_ptr,
    residual_ptr,
    out_ptr,
    ids_ptr,
    next_norm_ptr,
    next_x_ptr,
    next_squares_ptr,
    partial_ptr,
    tickets_ptr,
    rows,
    outs,
    parts,
    eps,
    SIZE: tl.constexpr,
    BLOCK_T: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    STAGES: tl.constexpr,
    SPLIT: tl.constexpr,
    TERMS: tl.constexpr,
    PARTS: tl.constexpr,
    GROUP: tl.constexpr,
    BIAS: tl.constexpr,
    RESIDUAL: tl.constexpr,
    NEXT: tl.constexpr,
    ACT: tl.constexpr,
    BEST: tl.constexpr,
    EARLY: tl.constexpr,
    ASM: tl.constexpr,
):
    """x [rows, SIZE]; weight E4M3 [outs, SIZE] with scale [outs], or twice as many outputs = gate | up if ACT >= 0;
    residual, out [rows, outs]. PARTS, NEXT and BEST as in linear_tile.py; SPLIT, partial and tickets as in
    linear_split.py. Gates and ups of BLOCK_N outputs lie in one tile. GROUP > 0, a multiple of BLOCK_K: scale is
    float32 [outs or 2 outs, groups], one for so many columns.
    """
    GATED: tl.constexpr = ACT >= 0
    LINES: tl.constexpr = 2 * BLOCK_N if GATED else BLOCK_N
    EVEN: tl.constexpr = SIZE % BLOCK_K == 0
    TURNS: tl.constexpr = (SIZE + BLOCK_K - 1) // BLOCK_K
    EACH: tl.constexpr = (TURNS + SPLIT - 1) // SPLIT
    first = tl.program_id(0) * BLOCK_N
    t = tl.program_id(1) * BLOCK_T + tl.arange(0, BLOCK_T)
    n = first + tl.arange(0, BLOCK_N)
    line = tl.arange(0, LINES)
    row = tl.minimum(first + line % BLOCK_N, outs - 1).to(tl.int64)
    if GATED:
        row += (line // BLOCK_N).to(tl.int64) * outs
    col = tl.arange(0, BLOCK_K)[None, :]
    weights = weight_ptr + row[:, None] * SIZE
    xs = x_ptr + t[:, None] * SIZE
    inside = (t < rows)[:, None]
    begin = tl.program_id(2) * EACH
    end = tl.minimum(begin + EACH, TURNS)
    sums = tl.zeros((LINES, BLOCK_T * TERMS), tl.float32)
    if EARLY:
        gdc_launch_dependents()
    for turn in tl.range(begin, end, num_stages=STAGES):
        at = turn * BLOCK_K + col
        # the loop's first loads of weights, but not of x, are on their way before x is there
        x_at = once_there(turn, EARLY) * BLOCK_K + col
        if EVEN:
            w = tl.load(weights + at, eviction_policy="evict_first")
            x = tl.load(xs + x_at, mask=inside, other=0.0)
        else:
            w = tl.load(weights + at, mask=at < SIZE, other=0.0, eviction_policy="evict_first")
            x = tl.load(xs + x_at, mask=inside & (x_at < SIZE), other=0.0)
        terms, scale = in_terms(x.to(tl.float32), TERMS, ASM)
        if GROUP > 0:
            group_scale = tl.load(scale_ptr + row * ((SIZE + GROUP - 1) // GROUP) + turn * BLOCK_K // GROUP)
            sums += tl.dot(w, terms.T) * (group_scale[:, None] * scale[None, :])
        else:
            sums += tl.dot(w, terms.T) * scale[None, :]
    if EARLY:
        gdc_wait()
    if TERMS == 2:
        sums = tl.sum(sums.reshape(LINES, BLOCK_T, 2), 2)
    if GATED:
        y, u = tl.split(sums.T.reshape(BLOCK_T, 2, BLOCK_N).permute(0, 2, 1))
    else:
        y = sums.T
        u = y
    if SPLIT > 1:
        y, u, last = summed_by_last(y, u, partial_ptr, tickets_ptr, 2 if GATED else 1, SPLIT)
        if not last:
            return
    valid = n < outs
    if GROUP == 0:
        y *= tl.load(scale_ptr + n, mask=valid, other=0.0).to(tl.float32)[None, :]
    if GATED and GROUP == 0:
        u *= tl.load(scale_ptr + outs + n, mask=valid, other=0.0).to(tl.float32)[None, :]
    bias = of_outputs(bias_ptr, n, valid, outs, GATED, BIAS)
    residual_at = residual_ptr + t[:, None] * outs + n[None, :]
    residual = (tl.load(residual_at, mask=inside & valid[None, :], other=0.0),) if RESIDUAL else ()
    store_tile(
        y, u, squares_ptr, bias, residual, out_ptr, ids_ptr, next_norm_ptr, next_x_ptr, next_squares_ptr,
        rows, outs, parts, eps, first, tl.program_id(0), tl.num_programs(0),
        SIZE, BLOCK_T, BLOCK_N, PARTS, NEXT, ACT, BEST,
    )  # fmt: skip


@triton.jit
def in_terms(x, TERMS: tl.constexpr, ASM: tl.constexpr):
    """float32 x [rows, columns] as E4M3 terms [rows * TERMS, columns], those of a row after each other, and the float32
    scale of each term [rows * TERMS]; NaN for rows that hold no numbers."""
    ROWS: tl.constexpr = x.shape[0]
    most = tl.max(tl.where(x == x, tl.abs(x), float("inf")), 1)
    # 2^(e - 7) of the largest's exponent e, at least 2^-100: its bits without the mantissa's
    power = tl.maximum(most.to(tl.int32, bitcast=True) & 0x7F800000, 34 << 23) - (7 << 23)
    scale = power.to(tl.float32, bitcast=True)
    inverse = ((254 << 23) - power).to(tl.float32, bitcast=True)
    scale = tl.where(most < float("inf"), scale, float("nan"))
    x *= inverse[:, None]
    first = to_float8(x, ASM)
    if TERMS == 2:
        # rounded after they are in their places: operands that are merely put into another shape go into shared memory
        # in their old one, where triton 3.6 gives those of three dimensions too little room
        nearest = first.to(tl.float32)
        both = tl.join(nearest, (x - nearest) * 16.0).permute(0, 2, 1).reshape(ROWS * 2, x.shape[1])
        terms = to_float8(both, ASM)
        scale = tl.join(scale, scale * 0.0625).reshape(ROWS * 2)
    else:
        terms = first
    return terms, scale


@triton.jit
def to_float8(x, ASM: tl.constexpr):
    """E4M3, to the nearest; without ASM by whole-number instructions, for the interpreter, which rounds otherwise."""
    if ASM:
        return x.to(tl.float8e4nv)
    return codes_of(x, FP8).to(tl.float8e4nv, bitcast=True)
