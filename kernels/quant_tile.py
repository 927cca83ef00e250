"""Skinny linear by 4-bit weights on tensor cores: up to some hundred rows, the weight decoded between memory and dot.

Grid: blocks of BLOCK_N output features times blocks of BLOCK_T rows, over all of the input. Tiles of codes stream
through shared memory as 16-bit words; a turn takes 128 columns (or SLICES times as many, each multiplied by warps of
its own), which are four products: the q-th codes of the 32 words of a block belong to 32 neighbouring columns (see
quant_weight.py). Codes become 16-bit operands in registers, two by four instructions, scale and shift included. What
stands around the product is as in linear_tile.py. Bound by reading the codes once for few rows, by the tensor cores and
the decoding for many.
"""

# mypy: disallow-untyped-defs=False, check-untyped-defs=False, allow-untyped-calls=True

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from octavo.kernels.linear_epilogue import store_tile
from octavo.kernels.quant_number import four_bit_operand


@triton.jit(do_not_specialize=["rows", "outs", "parts"])
def quant_tile_kernel(
    x_ptr,
    squares_ptr,
    words_ptr,
    scale_ptr,
    zero_ptr,
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
    GROUP: tl.constexpr,
    OFFSET: tl.constexpr,
    ZERO: tl.constexpr,
    BLOCK_T: tl.constexpr,
    BLOCK_N: tl.constexpr,
    STAGES: tl.constexpr,
    SLICES: tl.constexpr,
    PARTS: tl.constexpr,
    BIAS: tl.constexpr,
    RESIDUAL: tl.constexpr,
    NEXT: tl.constexpr,
    ACT: tl.constexpr,
    BEST: tl.constexpr,
    EARLY: tl.constexpr,
    BF16: tl.constexpr,
    ASM: tl.constexpr,
):
    """x [rows, SIZE]; words int16 [outs, blocks * 32], or of 2 outs = gate | up if ACT >= 0; scale [outs, groups];
    residual, out [rows, outs].

    ZERO 1: zero uint8 [outs, groups] is taken from the codes instead of OFFSET; 2: it is the shift, added after
    scaling. SLICES > 1: so many blocks of columns a turn. PARTS, NEXT and BEST as in linear_epilogue.py.
    """
    GATED: tl.constexpr = ACT >= 0
    BLOCKS: tl.constexpr = (SIZE + 127) // 128
    LESS: tl.constexpr = 16 + OFFSET if ZERO == 0 else 0
    PER_BLOCK: tl.constexpr = 128 // GROUP if GROUP < 128 else 1  # scales of a block of columns
    first = tl.program_id(0) * BLOCK_N
    first_t = tl.program_id(1) * BLOCK_T
    t = first_t + tl.arange(0, BLOCK_T)
    n = first + tl.arange(0, BLOCK_N)
    row = tl.minimum(n, outs - 1).to(tl.int64)
    if BIAS:
        bias = tl.load(bias_ptr + n, mask=n < outs, other=0.0)
        if GATED:
            up_bias = tl.load(bias_ptr + outs + n, mask=n < outs, other=0.0)
    if EARLY:
        gdc_wait()
        gdc_launch_dependents()
    if RESIDUAL:
        residual = tl.load(
            residual_ptr + t[:, None] * outs + n[None, :], mask=(t < rows)[:, None] & (n < outs)[None, :], other=0.0
        )
    if SLICES > 1:
        piece = tl.arange(0, SLICES)[:, None, None]
        group_row = row[None, :]
        group_piece = tl.arange(0, SLICES)[:, None]
        out = row[None, :, None]
        place = t[None, :, None]
        column = tl.arange(0, 32)[None, None, :]
        sums = tl.zeros((SLICES, BLOCK_N, BLOCK_T), tl.float32)
    else:
        piece = tl.zeros((1, 1), tl.int32)
        group_row = row
        group_piece = tl.zeros((1,), tl.int32)
        out = row[:, None]
        place = t[:, None]
        column = tl.arange(0, 32)[None, :]
        sums = tl.zeros((BLOCK_N, BLOCK_T), tl.float32)
    up_sums = sums
    up = out + outs
    scale = _of_groups(scale_ptr, group_row, group_piece, SIZE, GROUP)
    zero = scale
    if ZERO > 0:
        zero = _of_groups(zero_ptr, group_row, group_piece, SIZE, GROUP)
    up_scale = scale
    up_zero = zero
    if GATED:
        up_scale = _of_groups(scale_ptr, group_row + outs, group_piece, SIZE, GROUP)
        if ZERO > 0:
            up_zero = _of_groups(zero_ptr, group_row + outs, group_piece, SIZE, GROUP)
    for begin in tl.range(0, BLOCKS, SLICES, num_stages=STAGES):
        block = begin + piece
        in_words = block * 32 + column
        there = in_words < BLOCKS * 32
        w = tl.load(words_ptr + out * (BLOCKS * 32) + in_words, mask=there, other=0, eviction_policy="evict_first")
        if GATED:
            v = tl.load(words_ptr + up * (BLOCKS * 32) + in_words, mask=there, other=0, eviction_policy="evict_first")
        this_scale = scale
        this_zero = zero
        this_up_scale = up_scale
        this_up_zero = up_zero
        # loads of so few bytes are not put into shared memory ahead of time: the next turn's are under way in registers
        ahead = begin + SLICES + group_piece
        scale = _of_groups(scale_ptr, group_row, ahead, SIZE, GROUP)
        if ZERO > 0:
            zero = _of_groups(zero_ptr, group_row, ahead, SIZE, GROUP)
        if GATED:
            up_scale = _of_groups(scale_ptr, group_row + outs, ahead, SIZE, GROUP)
            if ZERO > 0:
                up_zero = _of_groups(zero_ptr, group_row + outs, ahead, SIZE, GROUP)
        for g in tl.static_range(PER_BLOCK):
            part = tl.zeros(sums.shape, tl.float32)
            up_part = part
            total = part
            for q in tl.static_range(g * 4 // PER_BLOCK, (g + 1) * 4 // PER_BLOCK):
                at = block * 128 + q * 32 + column
                x = tl.load(x_ptr + place * SIZE + at, mask=(place < rows) & (at < SIZE), other=0.0)
                x = x.permute(0, 2, 1) if SLICES > 1 else x.T
                part = tl.dot(four_bit_operand(w, q, LESS, x.dtype, BF16, ASM), x, part, input_precision="ieee")
                if GATED:
                    number = four_bit_operand(v, q, LESS, x.dtype, BF16, ASM)
                    up_part = tl.dot(number, x, up_part, input_precision="ieee")
                if ZERO > 0:
                    # sums of the activations, where the products' sums are: in every row of a tile
                    total = tl.dot(tl.full(w.shape, 1.0, x.dtype), x, total, input_precision="ieee")
            sums += _scaled(part, total, this_scale[g], this_zero[g], ZERO)
            if GATED:
                up_sums += _scaled(up_part, total, this_up_scale[g], this_up_zero[g], ZERO)
    if SLICES > 1:
        y = tl.sum(sums, 0).T
        u = tl.sum(up_sums, 0).T
    else:
        y = sums.T
        u = up_sums.T
    store_tile(
        y, u, squares_ptr, bias if BIAS else y, up_bias if BIAS and GATED else y, residual if RESIDUAL else y,
        out_ptr, ids_ptr, next_norm_ptr, next_x_ptr, next_squares_ptr, rows, outs, parts, eps,
        SIZE, BLOCK_T, BLOCK_N, PARTS, BIAS, RESIDUAL, NEXT, ACT, BEST,
    )  # fmt: skip


@triton.jit
def _of_groups(plane_ptr, row, block, SIZE: tl.constexpr, GROUP: tl.constexpr):
    """What belongs to the first, second ... group of a block of 128 columns, for every row."""
    GROUPS: tl.constexpr = (SIZE + GROUP - 1) // GROUP
    PER_BLOCK: tl.constexpr = 128 // GROUP if GROUP < 128 else 1
    PER_SCALE: tl.constexpr = GROUP // 128 if GROUP > 128 else 1
    found = ()
    for g in tl.static_range(PER_BLOCK):
        group = block // PER_SCALE * PER_BLOCK + g
        found += (tl.load(plane_ptr + row * GROUPS + group, mask=group < GROUPS, other=0),)
    return found


@triton.jit
def _scaled(part, total, scale, zero, ZERO: tl.constexpr):
    """A group's part of the results from the sums of codes times activations and those of the activations."""
    axis: tl.constexpr = len(scale.shape)
    zero = tl.expand_dims(zero.to(tl.float32), axis)
    if ZERO == 1:
        part -= (zero + 16.0) * total
    if ZERO == 2:
        part -= 16.0 * total
    part *= tl.expand_dims(scale.to(tl.float32), axis)
    if ZERO == 2:
        part += zero * total
    return part
