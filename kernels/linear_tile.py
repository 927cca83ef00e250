"""Skinny linear on tensor cores: y = x W^T for up to 16 rows, read at the rate of the memory.

Grid: one program a block of BLOCK_N output features, over all of the input. Weight tiles stream through shared memory,
several in flight; the rows of x, padded to 8 or 16, are the narrow operand. The RMS norm before the product is folded
in: x * norm_weight is rounded to the operands' type, the squares of x are summed on the way in float32, and the results
are scaled by 1/rms at the end (Zhang & Sennrich, "Root Mean Square Layer Normalization", 2019). Bias, gated activation
and residual are epilogues in float32. Bound by reading the weights once.
"""

# mypy: disallow-untyped-defs=False, check-untyped-defs=False, allow-untyped-calls=True

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from octavo.kernels.activation import activated


@triton.jit(do_not_specialize=["rows", "outs"])
def tile_kernel(
    x_ptr,
    norm_ptr,
    weight_ptr,
    bias_ptr,
    residual_ptr,
    out_ptr,
    ids_ptr,
    rows,
    outs,
    eps,
    SIZE: tl.constexpr,
    BLOCK_T: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    STAGES: tl.constexpr,
    WEIGHT_FIRST: tl.constexpr,
    NORM: tl.constexpr,
    BIAS: tl.constexpr,
    RESIDUAL: tl.constexpr,
    ACT: tl.constexpr,
    BEST: tl.constexpr,
    EARLY: tl.constexpr,
):
    """x [rows, SIZE]; weight [outs, SIZE], or [2 outs, SIZE] = gate | up if ACT >= 0; residual, out
    [rows, outs]. WEIGHT_FIRST computes W x^T (wgmma), else x W^T.
    BEST writes only each program's highest value of a row to out [rows, programs] and its lowest index to ids; NaN if
    there is one."""
    GATED: tl.constexpr = ACT >= 0
    first = tl.program_id(0) * BLOCK_N
    t = tl.arange(0, BLOCK_T)
    n = first + tl.arange(0, BLOCK_N)
    col = tl.arange(0, BLOCK_K)
    up_offset = outs.to(tl.int64) * SIZE
    if NORM:
        next_scale = tl.load(norm_ptr + col, mask=col < SIZE, other=0.0)
    if EARLY:
        gdc_wait()
        gdc_launch_dependents()
    row = tl.minimum(n, outs - 1).to(tl.int64)
    squares = tl.zeros((BLOCK_T, BLOCK_K), tl.float32)
    if WEIGHT_FIRST:
        sums = tl.zeros((BLOCK_N, BLOCK_T), tl.float32)
    else:
        sums = tl.zeros((BLOCK_T, BLOCK_N), tl.float32)
    up_sums = sums
    for begin in tl.range(0, SIZE, BLOCK_K, num_stages=STAGES):
        inside = begin + col < SIZE
        x_at = t[:, None] * SIZE + begin + col[None, :]
        x_mask = (t < rows)[:, None] & inside[None, :]
        x = tl.load(x_ptr + x_at, mask=x_mask, other=0.0)
        if NORM:
            wide = x.to(tl.float32)
            squares += wide * wide
            scale = next_scale.to(tl.float32)
            # too few bytes to be copied ahead like the tiles, so it is read one turn ahead
            next_scale = tl.load(norm_ptr + begin + BLOCK_K + col, mask=begin + BLOCK_K + col < SIZE, other=0.0)
            x = (wide * scale[None, :]).to(x.dtype)
        w_at = weight_ptr + row[:, None] * SIZE + begin + col[None, :]
        w = tl.load(w_at, mask=inside[None, :], other=0.0, eviction_policy="evict_first")
        if WEIGHT_FIRST:
            sums = tl.dot(w, x.T, sums, input_precision="ieee")
        else:
            sums = tl.dot(x, w.T, sums, input_precision="ieee")
        if GATED:
            up = tl.load(w_at + up_offset, mask=inside[None, :], other=0.0, eviction_policy="evict_first")
            if WEIGHT_FIRST:
                up_sums = tl.dot(up, x.T, up_sums, input_precision="ieee")
            else:
                up_sums = tl.dot(x, up.T, up_sums, input_precision="ieee")
    if WEIGHT_FIRST:
        y = sums.T
        u = up_sums.T
    else:
        y = sums
        u = up_sums
    if NORM:
        inverse = tl.rsqrt(tl.sum(squares, 1) / SIZE + eps)[:, None]
        y *= inverse
        u *= inverse
    if BIAS:
        y += tl.load(bias_ptr + n, mask=n < outs, other=0.0).to(tl.float32)[None, :]
        if GATED:
            u += tl.load(bias_ptr + outs + n, mask=n < outs, other=0.0).to(tl.float32)[None, :]
    if GATED:
        y = activated(y, ACT) * u
    out_at = t[:, None] * outs + n[None, :]
    valid = (t < rows)[:, None] & (n < outs)[None, :]
    if RESIDUAL:
        y += tl.load(residual_ptr + out_at, mask=valid, other=0.0).to(tl.float32)
    if BEST:
        y = tl.where(valid, y, float("-inf"))
        broken = tl.max((y != y).to(tl.int32), 1)
        y = tl.where(y == y, y, float("-inf"))
        best, index = tl.max(y, 1, return_indices=True, return_indices_tie_break_left=True)
        at = t * tl.num_programs(0) + tl.program_id(0)
        tl.store(out_ptr + at, tl.where(broken > 0, float("nan"), best), mask=t < rows)
        tl.store(ids_ptr + at, tl.minimum(first + index, outs - 1), mask=t < rows)
    else:
        tl.store(out_ptr + out_at, y.to(out_ptr.dtype.element_ty), mask=valid)
