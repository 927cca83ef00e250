"""Skinny linear by GGUF blocks on tensor cores: some rows, the blocks decoded between memory and product.

Grid: blocks of BLOCK_N output features times blocks of BLOCK_T rows, over all of the input. A turn takes 128 columns
(or SLICES times as many, each multiplied by warps of its own). Codes become whole numbers in a 16-bit type, exactly;
the sums of the columns that share a scale, 32 or of Q6_K 16, are multiplied by it in float32, and minimums by the sums
of the activations, which are one more small product with ones. Of Q6_K low and high bits are two operands of one sum.
What stands around the product is as in linear_tile.py. Bound by reading the blocks once for few rows, by decoding for
more.
"""

# A kernel's tuples grow while it is compiled, which types do not follow.
# mypy: ignore-errors
# ruff: noqa: SIM109 - the kernels' language has no `in`

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from octavo.kernels.gguf_number import (
    Q4_0,
    Q4_1,
    Q4_K,
    Q6_K,
    Q8_0,
    byte_numbers,
    five_bit_operand,
    half_numbers,
    high_operand,
    low_operand,
    signed_numbers,
)
from octavo.kernels.linear_epilogue import of_tile, store_tile
from octavo.kernels.linear_slices import activations, along_columns, along_rows, outputs, slices
from octavo.kernels.quant_number import four_bit_operand, pair


@triton.jit(do_not_specialize=["rows", "outs", "parts"])
def gguf_tile_kernel(
    x_ptr,
    squares_ptr,
    words_ptr,
    high_ptr,
    scale_ptr,
    unit_ptr,
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
    KIND: tl.constexpr,
    FIVE: tl.constexpr,
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
    """x [rows, SIZE]; the planes of a BlockWeight: words and high as they are, scale as int64, unit as int32 (Q4_K) or
    int16 (Q6_K), of 2 outs = gate | up if ACT >= 0; residual, out [rows, outs]. SLICES > 1: so many blocks of columns
    a turn. PARTS, NEXT and BEST as in linear_epilogue.py."""
    GATED: tl.constexpr = ACT >= 0
    BLOCKS: tl.constexpr = (SIZE + 127) // 128
    LINES: tl.constexpr = 2 if GATED else 1
    first = tl.program_id(0) * BLOCK_N
    t = tl.program_id(1) * BLOCK_T + tl.arange(0, BLOCK_T)
    n = tl.arange(0, BLOCK_N)
    piece, scale_piece, none = slices(BLOCK_N, BLOCK_T, SLICES)
    place = along_rows(t, SLICES)
    line = ()
    bias = ()
    sums = ()
    scale = ()
    for i in tl.static_range(LINES):
        row = tl.minimum(first + n, outs - 1).to(tl.int64)
        if i > 0:
            row += outs
        if BIAS:
            bias += (tl.load(bias_ptr + row),)
        line += (row,)
        sums += (none,)
        scale += _of_block(scale_ptr, unit_ptr, row, scale_piece, SIZE, KIND, SLICES)
    if EARLY:
        gdc_wait()
        gdc_launch_dependents()
    residual = of_tile(residual_ptr, t, first + n, rows, outs, RESIDUAL)
    for begin in tl.range(0, BLOCKS, SLICES, num_stages=STAGES):
        block = begin + piece
        this_scale = scale
        scale = ()
        for i in tl.static_range(LINES):
            # loads of so few bytes are not put into shared memory ahead: the next turn's are under way in registers
            scale += _of_block(scale_ptr, unit_ptr, line[i], begin + SLICES + scale_piece, SIZE, KIND, SLICES)
        if KIND == Q6_K:
            sums = _turn_of_six_bits(
                sums, none, x_ptr, words_ptr, high_ptr, line, this_scale, block, place, rows,
                SIZE, SLICES, LINES, BF16, ASM,
            )  # fmt: skip
        else:
            sums = _turn(
                sums, none, x_ptr, words_ptr, high_ptr, line, this_scale, block, place, rows,
                SIZE, KIND, FIVE, SLICES, LINES, BF16, ASM,
            )  # fmt: skip
    y = outputs(sums[0], SLICES)
    u = outputs(sums[LINES - 1], SLICES)
    store_tile(
        y, u, squares_ptr, bias, residual, out_ptr, ids_ptr, next_norm_ptr, next_x_ptr, next_squares_ptr,
        rows, outs, parts, eps, first, tl.program_id(0), tl.num_programs(0),
        SIZE, BLOCK_T, BLOCK_N, PARTS, NEXT, ACT, BEST,
    )  # fmt: skip


@triton.jit
def _turn(
    sums, none, x_ptr, words_ptr, high_ptr, line, scale, block, place, rows,
    SIZE: tl.constexpr, KIND: tl.constexpr, FIVE: tl.constexpr, SLICES: tl.constexpr, LINES: tl.constexpr,
    BF16: tl.constexpr, ASM: tl.constexpr,
):  # fmt: skip
    """The sums of a turn's four groups of 32 columns added: nibbles, five bits, or bytes of Q8_0."""
    WORDS: tl.constexpr = (SIZE + 127) // 128 * 32
    BASE: tl.constexpr = 32 if FIVE else 16  # part of the numbers
    LESS: tl.constexpr = BASE // 2 * 3 if KIND == Q4_0 else 0
    MINIMUM: tl.constexpr = KIND == Q4_1 or KIND == Q4_K
    column = along_columns(tl.arange(0, 32), SLICES)
    w = ()
    fifth = ()
    for i in tl.static_range(LINES):
        out = along_rows(line[i], SLICES)
        if FIVE:
            at = block * 8 + column // 8 * 2 + column % 2
            words = tl.load(high_ptr + out * (WORDS // 4) + at, mask=at < WORDS // 4, other=0)
            fifth += (words >> (column // 2 % 4).to(tl.int16),)
        if KIND == Q8_0:
            for q in tl.static_range(4):
                at = block * 128 + q * 32 + column
                w += (tl.load(words_ptr + out * SIZE + at, mask=at < SIZE, other=0, eviction_policy="evict_first"),)
        else:
            at = block * 32 + column
            w += (tl.load(words_ptr + out * WORDS + at, mask=at < WORDS, other=0, eviction_policy="evict_first"),)
    for q in tl.static_range(4):
        x = activations(x_ptr, block * 128 + q * 32 + column, place, rows, SIZE, SLICES)
        if MINIMUM:
            # sums of the activations, where the products' sums are: in every row of a tile
            total = tl.dot(tl.full(w[0].shape, 1.0, x.dtype), x, none, input_precision="ieee")
        more = ()
        for i in tl.static_range(LINES):
            if KIND == Q8_0:
                number = w[4 * i + q].to(x.dtype)
            elif FIVE:
                number = five_bit_operand(w[i], fifth[i], q, LESS, x.dtype, BF16, ASM > 0)
            else:
                number = four_bit_operand(w[i], q, LESS, x.dtype, BF16, ASM > 0)
            part = tl.dot(number, x, none, input_precision="ieee")
            factor, minimum = _of_group(scale, i, q, KIND)
            summed = sums[i] + part * tl.expand_dims(factor, len(factor.shape))
            if MINIMUM:
                added = minimum - BASE * factor
                summed += total * tl.expand_dims(added, len(added.shape))
            more += (summed,)
        sums = more
    return sums


@triton.jit
def _turn_of_six_bits(
    sums, none, x_ptr, words_ptr, high_ptr, line, scale, block, place, rows,
    SIZE: tl.constexpr, SLICES: tl.constexpr, LINES: tl.constexpr, BF16: tl.constexpr, ASM: tl.constexpr,
):  # fmt: skip
    """The same for eight groups of 16 columns of Q6_K."""
    BLOCKS: tl.constexpr = SIZE // 128
    column = along_columns(tl.arange(0, 16), SLICES)
    inside = block < BLOCKS
    w = ()
    high = ()
    for i in tl.static_range(LINES):
        out = along_rows(line[i], SLICES)
        for half in tl.static_range(2):
            at = words_ptr + out * (BLOCKS * 32) + block * 32 + half * 16 + column
            w += (tl.load(at, mask=inside, other=0, eviction_policy="evict_first"),)
        at = high_ptr + out * (BLOCKS * 16) + block * 16 + column
        high += (tl.load(at, mask=inside, other=0, eviction_policy="evict_first"),)
    for g in tl.static_range(8):
        x = activations(x_ptr, block * 128 + g * 16 + column, place, rows, SIZE, SLICES)
        more = ()
        for i in tl.static_range(LINES):
            part = tl.dot(low_operand(w[2 * i + g // 4], g % 4, x.dtype, BF16, ASM), x, none, input_precision="ieee")
            part = tl.dot(high_operand(high[i], g, x.dtype, BF16, ASM), x, part, input_precision="ieee")
            factor, _ = _of_group(scale, i, g, 3)
            more += (sums[i] + part * tl.expand_dims(factor, len(factor.shape)),)
        sums = more
    return sums


@triton.jit
def _of_block(scale_ptr, unit_ptr, row, block, SIZE: tl.constexpr, KIND: tl.constexpr, SLICES: tl.constexpr):
    """Three words with the scales and minimums of a block of 128 columns, for every row."""
    BLOCKS: tl.constexpr = (SIZE + 127) // 128
    if SLICES > 1:
        row = row[None, :]
    inside = block < BLOCKS
    if KIND == Q4_1:
        at = scale_ptr + row * (BLOCKS * 2) + block * 2
        first = tl.load(at, mask=inside, other=0)
        second = tl.load(at + 1, mask=inside, other=0)
    else:
        first = tl.load(scale_ptr + row * BLOCKS + block, mask=inside, other=0)
        second = first
    if KIND == Q4_K or KIND == Q6_K:
        unit = tl.load(unit_ptr + row * (SIZE // 256) + block // 2, mask=inside, other=0)
    else:
        unit = first
    return first, second, unit


@triton.jit
def _of_group(words, i: tl.constexpr, g: tl.constexpr, KIND: tl.constexpr):
    """Scale, and what is added, of the g-th group of a block."""
    first = words[3 * i]
    if KIND == Q4_K:
        d, d_minimum = pair(words[3 * i + 2], False)
        scale = byte_numbers(first.to(tl.int32))[g] * (d * 16777216.0)
        added = byte_numbers((first >> 32).to(tl.int32))[g] * (d_minimum * -16777216.0)
    elif KIND == Q6_K:
        unit = words[3 * i + 2].to(tl.float16, bitcast=True).to(tl.float32) * 16777216.0
        four = first.to(tl.int32) if g < 4 else (first >> 32).to(tl.int32)
        scale = signed_numbers(four)[g % 4] * unit
        added = scale
    elif KIND == Q4_1:
        scale = half_numbers(first)[g]
        added = half_numbers(words[3 * i + 1])[g]
    else:
        scale = half_numbers(first)[g]
        added = scale
    return scale, added
