"""Skinny linear on tensor cores: y = x W^T for up to 16 rows, read at the rate of the memory.

Grid: one program a block of BLOCK_N output features, over all of the input. Weight tiles stream through shared memory,
several in flight; the rows of x, padded to 8 or 16, are the narrow operand. The RMS norm is split over two launches so
that neither waits for it: the product that completes the residual stream also writes its rows times the next norm's
weights, and the sum of squares of each block; the product that follows multiplies the former, adds up the latter and
scales by 1/rms at the end (Zhang & Sennrich, "Root Mean Square Layer Normalization", 2019). Bias, gated activation and
residual are epilogues in float32. Weights may be 8-bit codes with a scale for each output: they become operands on the
way from shared memory to the tensor cores. Bound by reading the weights once.
"""

# mypy: disallow-untyped-defs=False, check-untyped-defs=False, allow-untyped-calls=True

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from octavo.kernels.dependent_launch import prefetch_lines
from octavo.kernels.linear_epilogue import store_tile
from octavo.kernels.linear_split import summed_by_last
from octavo.kernels.quant_number import operand, scaled_by_bits


@triton.jit(do_not_specialize=["rows", "outs", "parts"])
def tile_kernel(
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
    SLICES: tl.constexpr,
    PARTS: tl.constexpr,
    BIAS: tl.constexpr,
    RESIDUAL: tl.constexpr,
    NEXT: tl.constexpr,
    ACT: tl.constexpr,
    BEST: tl.constexpr,
    EARLY: tl.constexpr,
    FIRST: tl.constexpr,
    CODE: tl.constexpr,
    SPLIT: tl.constexpr,
):
    """x [rows, SIZE]; weight [outs, SIZE], or [2 outs, SIZE] = gate | up if ACT >= 0; residual, out [rows, outs].

    SLICES > 1: every turn takes that many neighbouring blocks of the input, each multiplied by warps of its own.
    CODE > 0: weight holds codes (see quant_number.py), scale [outs] or [2 outs] what each output's are multiplied by.
    PARTS > 0: squares [rows, parts] are partial sums of squares of the rows x stands for, parts <= PARTS. NEXT writes
    next_x = out * next_norm and next_squares [rows, programs]. BEST writes only each program's highest value of a row
    to out [rows, programs] and its lowest index to ids; NaN if there is one. FIRST: so many weights of each row are
    asked for before the kernel that computes x has ended. SPLIT > 1: so many programs share a block of outputs, each
    over its part of the input; partial and tickets as in linear_split.py.
    """
    GATED: tl.constexpr = ACT >= 0
    first = tl.program_id(0) * BLOCK_N
    t = tl.program_id(1) * BLOCK_T + tl.arange(0, BLOCK_T)
    n = first + tl.arange(0, BLOCK_N)
    col = tl.arange(0, BLOCK_K)
    up_offset = outs.to(tl.int64) * SIZE
    row = tl.minimum(n, outs - 1).to(tl.int64)
    out_at = t[:, None] * outs + n[None, :]
    valid = (t < rows)[:, None] & (n < outs)[None, :]
    EVEN: tl.constexpr = SIZE % (BLOCK_K * SLICES) == 0
    TURNS: tl.constexpr = (SIZE + BLOCK_K * SLICES - 1) // (BLOCK_K * SLICES)
    EACH: tl.constexpr = (TURNS + SPLIT - 1) // SPLIT
    begin_turn = tl.program_id(2) * EACH
    if BIAS:
        bias = tl.load(bias_ptr + n, mask=n < outs, other=0.0)
        if GATED:
            up_bias = tl.load(bias_ptr + outs + n, mask=n < outs, other=0.0)
    if CODE > 0:
        code_scale = scaled_by_bits(tl.load(scale_ptr + n, mask=n < outs, other=0.0), CODE)
        if GATED:
            up_code_scale = scaled_by_bits(tl.load(scale_ptr + outs + n, mask=n < outs, other=0.0), CODE)
    if EARLY:
        if FIRST > 0:
            PER_LINE: tl.constexpr = 64 if CODE == 0 else 128
            ahead = begin_turn * (BLOCK_K * SLICES) + tl.arange(0, FIRST // PER_LINE) * PER_LINE
            lines = row[:, None] * SIZE + tl.minimum(ahead, SIZE - 1)[None, :]
            prefetch_lines(weight_ptr + lines)
            if GATED:
                prefetch_lines(weight_ptr + up_offset + lines)
        gdc_wait()
        gdc_launch_dependents()
    if RESIDUAL:
        residual = tl.load(residual_ptr + out_at, mask=valid, other=0.0)
    if SLICES > 1:
        slice_col = tl.arange(0, SLICES)[:, None, None] * BLOCK_K + col[None, None, :]
        sums = tl.zeros((SLICES, BLOCK_N, BLOCK_T), tl.float32)
    else:
        sums = tl.zeros((BLOCK_N, BLOCK_T), tl.float32)
    up_sums = sums
    x_row = tl.minimum(t, rows - 1)
    for turn in tl.range(begin_turn, tl.minimum(begin_turn + EACH, TURNS), num_stages=STAGES):
        begin = turn * (BLOCK_K * SLICES)
        if SLICES > 1:
            at = begin + slice_col
            x_at = x_ptr + x_row[None, :, None] * SIZE + at
            w_at = weight_ptr + row[None, :, None] * SIZE + at
        else:
            at = begin + col[None, :]
            x_at = x_ptr + x_row[:, None] * SIZE + at
            w_at = weight_ptr + row[:, None] * SIZE + at
        x = _piece(x_at, at, SIZE, EVEN)
        x = x.permute(0, 2, 1) if SLICES > 1 else x.T
        w = _weights(w_at, at, SIZE, EVEN)
        sums = tl.dot(operand(w, x.dtype, CODE), x, sums, input_precision="ieee")
        if GATED:
            up = _weights(w_at + up_offset, at, SIZE, EVEN)
            up_sums = tl.dot(operand(up, x.dtype, CODE), x, up_sums, input_precision="ieee")
    if SLICES > 1:
        y = tl.sum(sums, 0).T
        u = tl.sum(up_sums, 0).T
    else:
        y = sums.T
        u = up_sums.T
    if SPLIT > 1:
        y, u, last = summed_by_last(y, u, partial_ptr, tickets_ptr, 2 if GATED else 1, SPLIT)
        if not last:
            return
    if CODE > 0:
        y *= code_scale[None, :]
        if GATED:
            u *= up_code_scale[None, :]
    store_tile(
        y, u, squares_ptr, bias if BIAS else y, up_bias if BIAS and GATED else y, residual if RESIDUAL else y,
        out_ptr, ids_ptr, next_norm_ptr, next_x_ptr, next_squares_ptr,
        rows, outs, parts, eps, first, tl.program_id(0), tl.num_programs(0),
        SIZE, BLOCK_T, BLOCK_N, PARTS, BIAS, RESIDUAL, NEXT, ACT, BEST,
    )  # fmt: skip


@triton.jit
def _piece(pointers, at, SIZE: tl.constexpr, EVEN: tl.constexpr):
    """Entries of columns `at`; 0 beyond SIZE, which an EVEN walk never reaches."""
    if EVEN:
        return tl.load(pointers)
    return tl.load(pointers, mask=at < SIZE, other=0)


@triton.jit
def _weights(pointers, at, SIZE: tl.constexpr, EVEN: tl.constexpr):
    """The same of weights, which nobody reads again."""
    if EVEN:
        return tl.load(pointers, eviction_policy="evict_first")
    return tl.load(pointers, mask=at < SIZE, other=0, eviction_policy="evict_first")
