"""Skinny linear by 4-bit weights on tensor cores: up to some hundred rows, the weight decoded between memory and dot.

Grid: TILES blocks of BLOCK_N output features times blocks of BLOCK_T rows, over all of the input. Tiles of codes stream
through shared memory as 16-bit words; a turn takes 128 columns (or SLICES times as many, each multiplied by warps of
its own), which are four products: the q-th codes of the 32 words of a block belong to 32 neighbouring columns (see
quant_weight.py). Codes become 16-bit operands in registers, two by four instructions, scale and shift included. What
stands around the product is as in linear_tile.py. Bound by reading the codes once for few rows, by the tensor cores and
the decoding for many.
"""

# A kernel's tuples grow while it is compiled, which types do not follow.
# mypy: ignore-errors

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from octavo.kernels.linear_epilogue import of_tile, store_tile
from octavo.kernels.linear_slices import activations, along_columns, along_rows, outputs, slices
from octavo.kernels.quant_number import four_bit_operand
from octavo.kernels.table_number import scale_number, table_operand


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
    TILES: tl.constexpr,
    PARTS: tl.constexpr,
    BIAS: tl.constexpr,
    RESIDUAL: tl.constexpr,
    NEXT: tl.constexpr,
    ACT: tl.constexpr,
    BEST: tl.constexpr,
    EARLY: tl.constexpr,
    BF16: tl.constexpr,
    ASM: tl.constexpr,
    TABLE: tl.constexpr,
):
    """x [rows, SIZE]; words int16 [outs, blocks * 32], or of 2 outs = gate | up if ACT >= 0; scale [outs, groups];
    residual, out [rows, outs].

    ZERO 1: zero uint8 [outs, groups] is taken from the codes instead of OFFSET; 2: it is the shift, added after
    scaling. TABLE > 0: codes name numbers of a table (table_number.py). SLICES > 1: so many blocks of columns a turn. A
    program computes TILES blocks of outputs, which share activations. PARTS, NEXT and BEST as in linear_epilogue.py.
    """
    GATED: tl.constexpr = ACT >= 0
    BLOCKS: tl.constexpr = (SIZE + 127) // 128
    LESS: tl.constexpr = 16 + OFFSET if ZERO == 0 else 0
    PER_BLOCK: tl.constexpr = 128 // GROUP if GROUP < 128 else 1  # scales of a block of columns
    WORDS: tl.constexpr = BLOCKS * 32  # of a row
    LINES: tl.constexpr = 2 * TILES if GATED else TILES
    first = tl.program_id(0) * (BLOCK_N * TILES)
    t = tl.program_id(1) * BLOCK_T + tl.arange(0, BLOCK_T)
    n = tl.arange(0, BLOCK_N)
    piece, group_piece, none = slices(BLOCK_N, BLOCK_T, SLICES)
    place = along_rows(t, SLICES)
    column = along_columns(tl.arange(0, 32), SLICES)
    line = ()
    bias = ()
    sums = ()
    scale = ()
    zero = ()
    for i in tl.static_range(LINES):
        row = tl.minimum(first + (i % TILES) * BLOCK_N + n, outs - 1).to(tl.int64)
        if i >= TILES:
            row += outs
        if BIAS:
            bias += (tl.load(bias_ptr + row),)
        line += (row,)
        sums += (none,)
        scale += _of_groups(scale_ptr, row, group_piece, SIZE, GROUP, SLICES)
        if ZERO > 0:
            zero += _of_groups(zero_ptr, row, group_piece, SIZE, GROUP, SLICES)
    if EARLY:
        gdc_wait()
        gdc_launch_dependents()
    residual = ()
    for i in tl.static_range(TILES):
        residual += of_tile(residual_ptr, t, first + i * BLOCK_N + n, rows, outs, RESIDUAL)
    for begin in tl.range(0, BLOCKS, SLICES, num_stages=STAGES):
        block = begin + piece
        in_words = block * 32 + column
        there = in_words < WORDS
        this_scale = scale
        this_zero = zero
        w = ()
        scale = ()
        zero = ()
        ahead = begin + SLICES + group_piece
        for i in tl.static_range(LINES):
            out = along_rows(line[i], SLICES)
            w += (tl.load(words_ptr + out * WORDS + in_words, mask=there, other=0, eviction_policy="evict_first"),)
            # loads of so few bytes are not put into shared memory ahead: the next turn's are under way in registers
            scale += _of_groups(scale_ptr, line[i], ahead, SIZE, GROUP, SLICES)
            if ZERO > 0:
                zero += _of_groups(zero_ptr, line[i], ahead, SIZE, GROUP, SLICES)
        for g in tl.static_range(PER_BLOCK):
            parts_of = ()
            total = none
            for _ in tl.static_range(LINES):
                parts_of += (none,)
            for q in tl.static_range(g * 4 // PER_BLOCK, (g + 1) * 4 // PER_BLOCK):
                at = block * 128 + q * 32 + column
                x = activations(x_ptr, at, place, rows, SIZE, SLICES)
                if ZERO > 0:
                    # sums of the activations, where the products' sums are: in every row of a tile
                    total = tl.dot(tl.full(w[0].shape, 1.0, x.dtype), x, total, input_precision="ieee")
                more = ()
                for i in tl.static_range(LINES):
                    if TABLE > 0:
                        number = table_operand(w[i], q, x.dtype, TABLE, ASM)
                    else:
                        number = four_bit_operand(w[i], q, LESS, x.dtype, BF16, ASM)
                    more += (tl.dot(number, x, parts_of[i], input_precision="ieee"),)
                parts_of = more
            new_sums = ()
            for i in tl.static_range(LINES):
                its_scale = this_scale[i * PER_BLOCK + g]
                its_zero = this_zero[i * PER_BLOCK + g] if ZERO > 0 else its_scale
                new_sums += (sums[i] + _scaled(parts_of[i], total, its_scale, its_zero, ZERO),)
            sums = new_sums
    for i in tl.static_range(TILES):
        y = outputs(sums[i], SLICES)
        u = outputs(sums[i + TILES], SLICES) if GATED else y
        its_bias = (bias[i], bias[i + LINES - TILES]) if BIAS else ()
        its_residual = (residual[i],) if RESIDUAL else ()
        store_tile(
            y, u, squares_ptr, its_bias, its_residual, out_ptr, ids_ptr, next_norm_ptr, next_x_ptr, next_squares_ptr,
            rows, outs, parts, eps, first + i * BLOCK_N, tl.program_id(0) * TILES + i, tl.num_programs(0) * TILES,
            SIZE, BLOCK_T, BLOCK_N, PARTS, NEXT, ACT, BEST,
        )  # fmt: skip


@triton.jit
def _of_groups(plane_ptr, row, block, SIZE: tl.constexpr, GROUP: tl.constexpr, SLICES: tl.constexpr):
    """What belongs to the first, second ... group of a block of 128 columns, for every row."""
    GROUPS: tl.constexpr = (SIZE + GROUP - 1) // GROUP
    PER_BLOCK: tl.constexpr = 128 // GROUP if GROUP < 128 else 1
    PER_SCALE: tl.constexpr = GROUP // 128 if GROUP > 128 else 1
    found = ()
    if SLICES > 1:
        row = row[None, :]
    for g in tl.static_range(PER_BLOCK):
        group = block // PER_SCALE * PER_BLOCK + g
        found += (tl.load(plane_ptr + row * GROUPS + group, mask=group < GROUPS, other=0),)
    return found


@triton.jit
def _scaled(part, total, scale, zero, ZERO: tl.constexpr):
    """A group's part of the results from the sums of codes times activations and those of the activations."""
    axis: tl.constexpr = len(scale.shape)
    if ZERO > 0:
        zero = tl.expand_dims(zero.to(tl.float32), axis)
    if ZERO == 1:
        part -= (zero + 16.0) * total
    if ZERO == 2:
        part -= 16.0 * total
    part *= tl.expand_dims(scale_number(scale, 0), axis)
    if ZERO == 2:
        part += zero * total
    return part
