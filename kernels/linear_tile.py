"""Skinny linear on tensor cores: y = x W^T for up to 16 rows, read at the rate of the memory.

Grid: one program a block of BLOCK_N output features, over all of the input. Weight tiles stream through shared memory,
several in flight; the rows of x, padded to 8 or 16, are the narrow operand. The RMS norm is split over two launches so
that neither waits for it: the product that completes the residual stream also writes its rows times the next norm's
weights, and the sum of squares of each block; the product that follows multiplies the former, adds up the latter and
scales by 1/rms at the end (Zhang & Sennrich, "Root Mean Square Layer Normalization", 2019). Bias, gated activation and
residual are epilogues in float32. Weights may be 8-bit codes with a scale for each output: they become operands on the
way from shared memory to the tensor cores; of codes in words, each half is a product with the columns it belongs to.
Where groups of columns have scales, each block's product is multiplied by its own before it is added up.
Bound by reading the weights once.
"""

# mypy: disallow-untyped-defs=False, check-untyped-defs=False, allow-untyped-calls=True

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from octavo.kernels.dependent_launch import prefetch_lines
from octavo.kernels.linear_epilogue import of_outputs, store_tile
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
    GROUP: tl.constexpr,
):
    """x [rows, SIZE]; weight [outs, SIZE], or [2 outs, SIZE] = gate | up if ACT >= 0; residual, out [rows, outs].

    SLICES > 1: every turn takes that many neighbouring blocks of the input, each multiplied by warps of its own.
    CODE > 0: weight holds codes (see quant_number.py), or words of two columns in blocks of 128 (see quant_weight.py),
    scale [outs] or [2 outs] what each output's are multiplied by. GROUP > 0, a multiple of BLOCK_K: float32 [outs or
    2 outs, groups], one for so many columns.
    PARTS > 0: squares [rows, parts] are partial sums of squares of the rows x stands for, parts <= PARTS. NEXT writes
    next_x = out * next_norm and next_squares [rows, programs]. BEST writes only each program's highest value of a row
    to out [rows, programs] and its lowest index to ids; NaN if there is one. FIRST: so many weights of each row are
    asked for before the kernel that computes x has ended.
    """
    GATED: tl.constexpr = ACT >= 0
    first = tl.program_id(0) * BLOCK_N
    t = tl.program_id(1) * BLOCK_T + tl.arange(0, BLOCK_T)
    n = first + tl.arange(0, BLOCK_N)
    HALVES: tl.constexpr = 2 if CODE >= 5 else 1  # codes of an entry of the weight
    ROW: tl.constexpr = (SIZE + 127) // 128 * 64 if HALVES == 2 else SIZE  # entries of a row
    entry = tl.arange(0, BLOCK_K // HALVES)
    col = entry // 64 * 128 + entry % 64 if HALVES == 2 else entry  # the column of an entry's first half
    up_offset = outs.to(tl.int64) * ROW
    row = tl.minimum(n, outs - 1).to(tl.int64)
    out_at = t[:, None] * outs + n[None, :]
    valid = (t < rows)[:, None] & (n < outs)[None, :]
    EVEN: tl.constexpr = SIZE % (BLOCK_K * SLICES) == 0
    TURNS: tl.constexpr = (SIZE + BLOCK_K * SLICES - 1) // (BLOCK_K * SLICES)
    bias = of_outputs(bias_ptr, n, n < outs, outs, GATED, BIAS)
    if CODE > 0 and GROUP == 0:
        code_scale = scaled_by_bits(tl.load(scale_ptr + n, mask=n < outs, other=0.0), CODE)
        if GATED:
            up_code_scale = scaled_by_bits(tl.load(scale_ptr + outs + n, mask=n < outs, other=0.0), CODE)
    if EARLY:
        if FIRST > 0:
            PER_LINE: tl.constexpr = 64 if CODE == 0 else 128
            ahead = tl.arange(0, FIRST // PER_LINE) * PER_LINE
            lines = row[:, None] * ROW + tl.minimum(ahead, ROW - 1)[None, :]
            prefetch_lines(weight_ptr + lines)
            if GATED:
                prefetch_lines(weight_ptr + up_offset + lines)
        gdc_wait()
        gdc_launch_dependents()
    residual = (tl.load(residual_ptr + out_at, mask=valid, other=0.0),) if RESIDUAL else ()
    # rows that are not there are not asked for: many loads of one row would wait for one another
    here_rows = t < rows
    if SLICES > 1:
        slice_ = tl.arange(0, SLICES)[:, None, None]
        x_at = t[None, :, None] * SIZE
        x_inside = here_rows[None, :, None]
        column = slice_ * BLOCK_K + col[None, None, :]
        w_at = row[None, :, None] * ROW
        place = slice_ * (BLOCK_K // HALVES) + entry[None, None, :]
        scale_row = row[None, :, None]
        block = slice_
        sums = tl.zeros((SLICES, BLOCK_N, BLOCK_T), tl.float32)
    else:
        x_at = t[:, None] * SIZE
        x_inside = here_rows[:, None]
        column = col[None, :]
        w_at = row[:, None] * ROW
        place = entry[None, :]
        scale_row = row[:, None]
        block = tl.zeros((1, 1), tl.int32)
        sums = tl.zeros((BLOCK_N, BLOCK_T), tl.float32)
    up_sums = sums
    for turn in tl.range(0, TURNS, num_stages=STAGES):
        at = turn * (BLOCK_K // HALVES * SLICES) + place
        for half in tl.static_range(HALVES):
            here = turn * (BLOCK_K * SLICES) + half * 64 + column
            x = _piece(x_ptr + x_at + here, here, x_inside, SIZE, EVEN)
            x = x.permute(0, 2, 1) if SLICES > 1 else x.T
            if half == 0:
                w = _weights(weight_ptr + w_at + at, at, ROW, EVEN)
            if GROUP > 0:
                here_block = turn * SLICES + block
                by = _group_scale(scale_ptr, scale_row, here_block, SIZE, BLOCK_K, GROUP, CODE)
                sums += tl.dot(operand(w, x.dtype, CODE, half), x, input_precision="ieee") * by
            else:
                sums = tl.dot(operand(w, x.dtype, CODE, half), x, sums, input_precision="ieee")
            if GATED:
                if half == 0:
                    up = _weights(weight_ptr + up_offset + w_at + at, at, ROW, EVEN)
                if GROUP > 0:
                    by = _group_scale(scale_ptr, scale_row + outs, here_block, SIZE, BLOCK_K, GROUP, CODE)
                    up_sums += tl.dot(operand(up, x.dtype, CODE, half), x, input_precision="ieee") * by
                else:
                    up_sums = tl.dot(operand(up, x.dtype, CODE, half), x, up_sums, input_precision="ieee")
    if SLICES > 1:
        y = tl.sum(sums, 0).T
        u = tl.sum(up_sums, 0).T
    else:
        y = sums.T
        u = up_sums.T
    if CODE > 0 and GROUP == 0:
        y *= code_scale[None, :]
        if GATED:
            u *= up_code_scale[None, :]
    store_tile(
        y, u, squares_ptr, bias, residual, out_ptr, ids_ptr, next_norm_ptr, next_x_ptr, next_squares_ptr,
        rows, outs, parts, eps, first, tl.program_id(0), tl.num_programs(0),
        SIZE, BLOCK_T, BLOCK_N, PARTS, NEXT, ACT, BEST,
    )  # fmt: skip


@triton.jit
def _group_scale(
    scale_ptr, row, block, SIZE: tl.constexpr, BLOCK_K: tl.constexpr, GROUP: tl.constexpr, CODE: tl.constexpr
):
    """float32 of what the codes of these rows in these blocks of columns are multiplied by; 0 beyond a row."""
    GROUPS: tl.constexpr = (SIZE + GROUP - 1) // GROUP
    group = block * BLOCK_K // GROUP
    return scaled_by_bits(tl.load(scale_ptr + row * GROUPS + group, mask=group < GROUPS, other=0.0), CODE)


@triton.jit
def _piece(pointers, at, inside, SIZE: tl.constexpr, EVEN: tl.constexpr):
    """The entries `at` of rows of SIZE; 0 of rows that are not `inside` and beyond a row, where an EVEN walk never
    comes."""
    if EVEN:
        return tl.load(pointers, mask=inside, other=0)
    return tl.load(pointers, mask=inside & (at < SIZE), other=0)


@triton.jit
def _weights(pointers, at, SIZE: tl.constexpr, EVEN: tl.constexpr):
    """The same of weights, which nobody reads again."""
    if EVEN:
        return tl.load(pointers, eviction_policy="evict_first")
    return tl.load(pointers, mask=at < SIZE, other=0, eviction_policy="evict_first")
