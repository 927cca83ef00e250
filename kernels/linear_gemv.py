"""Skinny linear on plain multiply-adds: y[t] = W x[t] for a few rows t, read at the rate of the memory.

Grid: one program a block of BLOCK_N output features, over all of the input. A thread keeps 8 neighbouring weights of
every row of the block in registers (one 16-byte load each), multiplies them in float32 with 8 activations it loaded
once, and adds up; threads meet only at the end. The RMS norm before the product is folded in: the weights meet
x * norm_weight, the squares of x are summed on the way, and the results are scaled by 1/rms at the end (Zhang &
Sennrich, "Root Mean Square Layer Normalization", 2019). Bias, gated activation and residual are epilogues in float32.
Weights may be 8-bit codes with a scale for each output, which the sums are multiplied by, or one for each group of
columns, which a thread's products are. Bound by reading the weights
once.
"""

# A kernel's tuples grow while it is compiled, which types do not follow.
# mypy: ignore-errors

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from octavo.kernels.linear_epilogue import of_outputs, store_row
from octavo.kernels.quant_number import scaled_by_bits, wide_number


@triton.jit(do_not_specialize=["outs"])
def gemv_kernel(
    x_ptr,
    norm_ptr,
    weight_ptr,
    scale_ptr,
    bias_ptr,
    residual_ptr,
    out_ptr,
    ids_ptr,
    outs,
    eps,
    SIZE: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    NORM: tl.constexpr,
    BIAS: tl.constexpr,
    RESIDUAL: tl.constexpr,
    ACT: tl.constexpr,
    BEST: tl.constexpr,
    EARLY: tl.constexpr,
    CODE: tl.constexpr,
    GROUP: tl.constexpr,
):
    """x [ROWS, SIZE]; weight [outs, SIZE], or [2 outs, SIZE] = gate | up if ACT >= 0; residual, out [ROWS, outs].
    CODE > 0: weight holds codes (see quant_number.py), scale [outs] or [2 outs] what each output's are times, or
    float32 [outs or 2 outs, groups] if GROUP > 0, a multiple of 8: one for so many columns.
    BEST writes only each program's highest value of a row to out [ROWS, programs] and its lowest index to ids; NaN if
    there is one."""
    GATED: tl.constexpr = ACT >= 0
    first = tl.program_id(0) * BLOCK_N
    row = tl.minimum(first + tl.arange(0, BLOCK_N), outs - 1).to(tl.int64)
    col = tl.arange(0, BLOCK_K)
    weights = weight_ptr + row[:, None] * SIZE
    ups = weights + outs.to(tl.int64) * SIZE
    # what no kernel of the step writes is asked for before the kernel that computes x has ended
    w = _weights(weights, col, SIZE)
    if GATED:
        up = _weights(ups, col, SIZE)
    if NORM:
        scale = tl.load(norm_ptr + col, mask=col < SIZE, other=0.0)
    out_col = first + tl.arange(0, BLOCK_N)
    valid = out_col < outs
    bias = of_outputs(bias_ptr, out_col, valid, outs, GATED, BIAS)
    if CODE > 0 and GROUP == 0:
        code_scale = scaled_by_bits(tl.load(scale_ptr + out_col, mask=valid, other=0.0), CODE)
        if GATED:
            up_code_scale = scaled_by_bits(tl.load(scale_ptr + outs + out_col, mask=valid, other=0.0), CODE)
    if EARLY:
        gdc_wait()
        gdc_launch_dependents()
    sums = ()
    up_sums = ()
    squares = ()
    x = ()
    residual = ()
    for t in tl.static_range(ROWS):
        sums += (tl.zeros((BLOCK_N, BLOCK_K // 8), tl.float32),)
        up_sums += (tl.zeros((BLOCK_N, BLOCK_K // 8), tl.float32),)
        squares += (tl.zeros((BLOCK_K // 8,), tl.float32),)
        x += (tl.load(x_ptr + t * SIZE + col, mask=col < SIZE, other=0.0),)
        residual += of_outputs(residual_ptr + t * outs, out_col, valid, outs, False, RESIDUAL)
    for begin in range(0, SIZE, BLOCK_K):
        this = wide_number(w, CODE)
        these = x
        if GATED:
            this_up = wide_number(up, CODE)
        if GROUP > 0:
            this *= _group_scales(scale_ptr, row, begin + col, SIZE, GROUP, CODE)
            if GATED:
                this_up *= _group_scales(scale_ptr, row + outs, begin + col, SIZE, GROUP, CODE)
        if NORM:
            this_scale = scale.to(tl.float32)
        if SIZE > BLOCK_K:
            # the next turn's loads are under way while this turn's are used
            next_col = begin + BLOCK_K + col
            w = _weights(weights, next_col, SIZE)
            if GATED:
                up = _weights(ups, next_col, SIZE)
            if NORM:
                scale = tl.load(norm_ptr + next_col, mask=next_col < SIZE, other=0.0)
            x = ()
            for t in tl.static_range(ROWS):
                x += (tl.load(x_ptr + t * SIZE + next_col, mask=next_col < SIZE, other=0.0),)
        new_sums = ()
        new_up_sums = ()
        new_squares = ()
        for t in tl.static_range(ROWS):
            wide = these[t].to(tl.float32)
            if NORM:
                new_squares += (squares[t] + tl.sum((wide * wide).reshape(BLOCK_K // 8, 8), 1),)
                wide = wide * this_scale
            else:
                new_squares += (squares[t],)
            new_sums += (sums[t] + tl.sum((this * wide[None, :]).reshape(BLOCK_N, BLOCK_K // 8, 8), 2),)
            if GATED:
                new_up_sums += (up_sums[t] + tl.sum((this_up * wide[None, :]).reshape(BLOCK_N, BLOCK_K // 8, 8), 2),)
            else:
                new_up_sums += (up_sums[t],)
        sums = new_sums
        up_sums = new_up_sums
        squares = new_squares
    for t in tl.static_range(ROWS):
        y = tl.sum(sums[t], 1)
        u = y
        if GATED:
            u = tl.sum(up_sums[t], 1)
        if CODE > 0 and GROUP == 0:
            y *= code_scale
            if GATED:
                u *= up_code_scale
        store_row(y, u, squares[t], bias, residual, out_ptr, ids_ptr, outs, eps, t, SIZE, BLOCK_N, NORM, ACT, BEST)


@triton.jit
def _group_scales(scale_ptr, row, col, SIZE: tl.constexpr, GROUP: tl.constexpr, CODE: tl.constexpr):
    """float32 of what the codes of these rows and columns are multiplied by; 0 beyond a row."""
    GROUPS: tl.constexpr = (SIZE + GROUP - 1) // GROUP
    at = row[:, None] * GROUPS + (col // GROUP)[None, :]
    return scaled_by_bits(tl.load(scale_ptr + at, mask=(col < SIZE)[None, :], other=0.0), CODE)


@triton.jit
def _weights(rows, col, SIZE: tl.constexpr):
    """A tile of the weight, read once and not kept in the caches; zeros beyond the input size."""
    return tl.load(rows + col[None, :], mask=(col < SIZE)[None, :], other=0, eviction_policy="evict_first")
