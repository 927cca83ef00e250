"""Skinny linear by int4 or int8 weights on whole-number tensor cores: up to 16 rows, as digits of two bytes a number.

Grid: a block of BLOCK_N rows of the weight (if it is gated, half of them gates and half what they gate), a block of
BLOCK_T rows of activations, a part of the input (linear_split.py). Tiles of codes stream through shared memory into the
tensor cores, 8-bit ones as they are, 4-bit ones after a mask (the lower halves of bytes meet the digits of one half of
a block's columns, the upper ones those of the other): no weight becomes a float. The narrow operand are the rows'
digits (row_digits.py), two columns a row, which the norm before the product has gone into. Sums are exact in int32,
over the whole input or over a group, whose scale is applied in float32; what zero points and shifts add is one small
product of those planes with the sums of digits. SLICES neighbouring pieces of the input a turn are each multiplied by
warps of their own. What stands around the product is as in linear_tile.py. Bound by reading the codes once, and where
programs take few rows of the weight by reading the digits again for each.
"""

# A kernel's tuples grow while it is compiled, which types do not follow.
# mypy: ignore-errors

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from octavo.kernels.dependent_launch import prefetch_lines
from octavo.kernels.digit_number import nibbles
from octavo.kernels.linear_epilogue import store_tile
from octavo.kernels.linear_split import summed_by_last


@triton.jit(do_not_specialize=["rows", "outs"])
def digit_tile_kernel(
    digits_ptr,
    step_ptr,
    sums_ptr,
    codes_ptr,
    scale_ptr,
    zero_ptr,
    bias_ptr,
    residual_ptr,
    out_ptr,
    ids_ptr,
    partial_ptr,
    tickets_ptr,
    rows,
    outs,
    SIZE: tl.constexpr,
    BITS: tl.constexpr,
    GROUP: tl.constexpr,
    OFFSET: tl.constexpr,
    ZERO: tl.constexpr,
    SPAN: tl.constexpr,
    BLOCK_T: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCKS_A_TURN: tl.constexpr,
    STAGES: tl.constexpr,
    SLICES: tl.constexpr,
    SPLIT: tl.constexpr,
    FIRST: tl.constexpr,
    PAIRED: tl.constexpr,
    BIAS: tl.constexpr,
    RESIDUAL: tl.constexpr,
    ACT: tl.constexpr,
    BEST: tl.constexpr,
    EARLY: tl.constexpr,
    ASM: tl.constexpr,
):
    """digits int8 [2 rows, blocks * 128], step and sums as in RowDigits; codes int8 [outs, blocks * 16 * BITS], or of
    2 outs = gate | up if ACT >= 0; scale [outs, groups] (of int8 [outs, 1]), GROUP a multiple of 128; residual, out
    [rows, outs]. OFFSET, ZERO as in quant_tile.py, BEST as in linear_epilogue.py, SPLIT, partial and tickets as in
    linear_split.py.

    A slice takes BLOCKS_A_TURN blocks of 128 columns of int8 codes a turn, one of int4, or two if PAIRED: then scales
    are loaded in words of two. SPAN is the number of blocks rounded up to a power of 2. FIRST: so many bytes of each
    row of codes are asked for before the kernel that makes the digits has ended.
    """
    GATED: tl.constexpr = ACT >= 0
    OUTS: tl.constexpr = BLOCK_N // 2 if GATED else BLOCK_N
    BLOCKS: tl.constexpr = (SIZE + 127) // 128
    ROW: tl.constexpr = BLOCKS * 16 * BITS  # bytes of codes
    PIECE: tl.constexpr = 128 * BLOCKS_A_TURN if BITS == 8 else 64  # of which a product takes so many
    REPEATS: tl.constexpr = 2 if PAIRED else 1
    WIDTH: tl.constexpr = BLOCKS_A_TURN if BITS == 8 else REPEATS  # blocks of a slice's turn
    COLUMNS: tl.constexpr = 2 * BLOCK_T
    GROUPS: tl.constexpr = (SIZE + GROUP - 1) // GROUP
    EVEN: tl.constexpr = BLOCKS % (WIDTH * SLICES) == 0
    TURNS: tl.constexpr = (BLOCKS + WIDTH * SLICES - 1) // (WIDTH * SLICES)
    EACH: tl.constexpr = (TURNS + SPLIT - 1) // SPLIT
    begin = tl.program_id(2) * EACH
    end = tl.minimum(begin + EACH, TURNS)
    first = tl.program_id(0) * OUTS
    n = first + tl.arange(0, OUTS)
    line = tl.arange(0, BLOCK_N)
    t = tl.program_id(1) * BLOCK_T + tl.arange(0, BLOCK_T)
    column = tl.minimum(tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS), 2 * rows - 1)
    row = tl.minimum(first + line % OUTS, outs - 1).to(tl.int64)
    if GATED:
        row += line // OUTS * outs
    byte = tl.arange(0, PIECE)
    block = tl.arange(0, SPAN)
    if SLICES > 1:
        slice_ = tl.arange(0, SLICES)
        piece = slice_[:, None, None]
        byte = byte[None, None, :]
        x_at = column[None, :, None] * (BLOCKS * 128)
        code_row = row[None, :, None]
        scale_row = row[None, :]
        group_piece = slice_[:, None]
        zeros = tl.zeros((SLICES, BLOCK_N, COLUMNS), tl.int32)
        sums = tl.zeros((SLICES, BLOCK_N, COLUMNS), tl.int32 if BITS == 8 else tl.float32)
    else:
        piece = 0
        byte = byte[None, :]
        x_at = column[:, None] * (BLOCKS * 128)
        code_row = row[:, None]
        scale_row = row
        group_piece = tl.zeros((1,), tl.int32)
        zeros = tl.zeros((BLOCK_N, COLUMNS), tl.int32)
        sums = tl.zeros((BLOCK_N, COLUMNS), tl.int32 if BITS == 8 else tl.float32)
    # what no kernel of the step writes is asked for before the kernel that makes the digits has ended
    if BITS == 8:
        scale = tl.load(scale_ptr + row)
    else:
        shift = _shifts(scale_ptr, zero_ptr, row, block, SIZE, GROUP, OFFSET, ZERO)
        if not PAIRED:
            scale = _scales(scale_ptr, scale_row, begin * SLICES + group_piece, GROUP, GROUPS)
    if BIAS:
        bias = tl.load(bias_ptr + row)
    if EARLY:
        if FIRST > 0:
            ahead = begin * (WIDTH * SLICES * 16 * BITS) + tl.arange(0, FIRST // 128) * 128
            prefetch_lines(codes_ptr + row[:, None] * ROW + tl.minimum(ahead, ROW - 1)[None, :])
        gdc_wait()
        gdc_launch_dependents()
    residual_at = residual_ptr + t[:, None] * outs + n[None, :]
    inside = (t < rows)[:, None] & (n < outs)[None, :]
    residual = (tl.load(residual_at, mask=inside, other=0.0),) if RESIDUAL else ()
    pair_ptr = scale_ptr.to(tl.pointer_type(tl.int32), bitcast=True) if PAIRED else scale_ptr
    for turn in tl.range(begin, end, num_stages=STAGES):
        if PAIRED:
            pairs = tl.load(pair_ptr + scale_row * (GROUPS // 2) + turn * SLICES + group_piece)
        for repeat in tl.static_range(REPEATS):
            at = (turn * SLICES + piece) * WIDTH + repeat  # the first block
            w = _codes(codes_ptr + code_row * ROW, at * (16 * BITS) + byte, ROW, EVEN)
            x = _digits(digits_ptr + x_at, at * 128 + byte, BLOCKS * 128, SLICES, EVEN)
            if BITS == 8:
                sums = tl.dot(w, x, sums, out_dtype=tl.int32)
            else:
                low, high = nibbles(w, ASM)
                part = tl.dot(low, x, zeros, out_dtype=tl.int32)
                x = _digits(digits_ptr + x_at, at * 128 + 64 + byte, BLOCKS * 128, SLICES, EVEN)
                part = tl.dot(high, x, part, out_dtype=tl.int32)
                if PAIRED:
                    its = _of_pair(pairs, repeat, scale_ptr.dtype.element_ty)
                else:
                    its = scale.to(tl.float32)
                    # loads of so few bytes are not put into shared memory ahead: they are under way in registers
                    scale = _scales(scale_ptr, scale_row, (turn + 1) * SLICES + group_piece, GROUP, GROUPS)
                sums += part.to(tl.float32) * tl.expand_dims(its, len(its.shape))
    y = (tl.sum(sums, 0) if SLICES > 1 else sums).to(tl.float32)
    if BITS == 8:
        y *= scale.to(tl.float32)[:, None]
    else:
        mine = (block >= begin * (WIDTH * SLICES)) & (block < tl.minimum(end * (WIDTH * SLICES), BLOCKS))
        sums_at = sums_ptr + column[None, :] * (2 * BLOCKS) + block[:, None]
        first_sums = tl.load(sums_at, mask=mine[:, None], other=0.0)
        second_sums = tl.load(sums_at + BLOCKS, mask=mine[:, None], other=0.0)
        y += _shifted(shift, first_sums, second_sums, ASM)
    # how much a digit of a column counts
    y *= (tl.where(tl.arange(0, COLUMNS) % 2 == 0, 256.0, 1.0) * tl.load(step_ptr + column // 2))[None, :]
    y = tl.sum(y.reshape(BLOCK_N, BLOCK_T, 2), 2).T
    if SPLIT > 1:
        y, _, last = summed_by_last(y, y, partial_ptr, tickets_ptr, 1, SPLIT)
        if not last:
            return
    if BIAS:
        y += bias.to(tl.float32)[None, :]
    u = y
    if GATED:
        y, u = tl.split(y.reshape(BLOCK_T, 2, OUTS).permute(0, 2, 1))
    store_tile(
        y, u, step_ptr, (), residual, out_ptr, ids_ptr, step_ptr, out_ptr, step_ptr,
        rows, outs, 0, 0.0, first, tl.program_id(0), tl.num_programs(0),
        SIZE, BLOCK_T, OUTS, 0, False, ACT, BEST,
    )  # fmt: skip


@triton.jit
def _digits(pointer, at, ROW: tl.constexpr, SLICES: tl.constexpr, EVEN: tl.constexpr):
    """The digits `at` of a row as the narrow operand; 0 beyond it, where an EVEN walk never comes."""
    found = tl.load(pointer + at) if EVEN else tl.load(pointer + at, mask=at < ROW, other=0)
    return found.permute(0, 2, 1) if SLICES > 1 else found.T


@triton.jit
def _codes(pointer, at, ROW: tl.constexpr, EVEN: tl.constexpr):
    """The bytes `at` of a row of codes, which nobody reads again."""
    if EVEN:
        return tl.load(pointer + at, eviction_policy="evict_first")
    return tl.load(pointer + at, mask=at < ROW, other=0, eviction_policy="evict_first")


@triton.jit
def _scales(scale_ptr, row, block, GROUP: tl.constexpr, GROUPS: tl.constexpr):
    """Of every row what belongs to the groups of some blocks."""
    group = block // (GROUP // 128)
    return tl.load(scale_ptr + row * GROUPS + group, mask=group < GROUPS, other=0.0)


@triton.jit
def _of_pair(pairs, upper: tl.constexpr, kind: tl.constexpr):
    """float32 of the lower or upper 16-bit floats of words."""
    if kind == tl.bfloat16:
        return (pairs & -65536 if upper else pairs << 16).to(tl.float32, bitcast=True)
    return (pairs >> (16 * upper)).to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32)


@triton.jit
def _shifts(
    scale_ptr,
    zero_ptr,
    row,
    block,
    SIZE: tl.constexpr,
    GROUP: tl.constexpr,
    OFFSET: tl.constexpr,
    ZERO: tl.constexpr,
):
    """[outputs, blocks] of what every activation of a block is multiplied by, its code being 0: in the type of the
    scale if that holds it exactly."""
    BLOCKS: tl.constexpr = (SIZE + 127) // 128
    GROUPS: tl.constexpr = (SIZE + GROUP - 1) // GROUP
    at = row[:, None] * GROUPS + (block // (GROUP // 128))[None, :]
    there = (block < BLOCKS)[None, :]
    if ZERO == 2:
        return tl.load(zero_ptr + at, mask=there, other=0.0)
    elif ZERO == 1:
        zero = tl.load(zero_ptr + at, mask=there, other=0).to(tl.float32)
        return tl.load(scale_ptr + at, mask=there, other=0.0).to(tl.float32) * -zero
    else:
        scale = tl.load(scale_ptr + at, mask=there, other=0.0)
        return (scale.to(tl.float32) * -OFFSET).to(scale.dtype)


@triton.jit
def _shifted(shift, first, second, ASM: tl.constexpr):
    """shift [outputs, blocks] times sums first + 256 * second [blocks, columns], which 16-bit floats hold exactly."""
    if not ASM:  # the interpreter has no product of bfloat16
        sums = first.to(tl.float32) + 256.0 * second.to(tl.float32)
        return tl.dot(shift.to(tl.float32), sums, input_precision="ieee")
    elif shift.dtype == tl.float32:
        # 16 bits of what a scale times a zero point takes
        upper = shift.to(tl.bfloat16)
        rest = (shift - upper.to(tl.float32)).to(tl.bfloat16)
        first_part = tl.dot(rest, first.to(tl.bfloat16), tl.dot(upper, first.to(tl.bfloat16)))
        second_part = tl.dot(rest, second.to(tl.bfloat16), tl.dot(upper, second.to(tl.bfloat16)))
        return first_part + 256.0 * second_part
    else:
        return tl.dot(shift, first.to(shift.dtype)) + 256.0 * tl.dot(shift, second.to(shift.dtype))
