"""Linear by codes for some tens of rows: the weight is decoded on its way into the registers of wide matrix products.

Grid: a block of BLOCK_N outputs, a block of BLOCK_T rows, a part of the input (see linear_split.py). A turn takes 128
columns: their codes stream through shared memory as 16-bit words, each of which holds codes of columns that lie a
quarter or a half of the turn apart (see quant_weight.py), so that two words become two operands of a matrix product by
a shift and a masked or. All 128 columns are one product, whose instructions run while the next operands are made.
4-bit codes are scaled and shifted as operands, and so rounded like a decoded weight; 8-bit codes, exact as operands,
have a scale for each output at the end. What stands around the product is as in linear_tile.py.
"""

# A kernel's tuples grow while it is compiled, which types do not follow.
# mypy: ignore-errors

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from octavo.kernels.linear_epilogue import of_outputs, store_tile
from octavo.kernels.linear_split import summed_by_last
from octavo.kernels.quant_number import eight_bit_operand, four_bit_operand, scaled_by_pair, scaled_operand
from octavo.kernels.table_number import scale_number, table_operand


@triton.jit(do_not_specialize=["rows", "outs", "parts"])
def quant_wide_tile_kernel(
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
    partial_ptr,
    tickets_ptr,
    rows,
    outs,
    parts,
    eps,
    SIZE: tl.constexpr,
    BITS: tl.constexpr,
    GROUP: tl.constexpr,
    OFFSET: tl.constexpr,
    ZERO: tl.constexpr,
    BLOCK_T: tl.constexpr,
    BLOCK_N: tl.constexpr,
    STAGES: tl.constexpr,
    SPLIT: tl.constexpr,
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
    """x [rows, SIZE]; words int16 [outs, blocks * 32] of 4-bit codes with what quant_tile.py says of them, or
    [outs, blocks * 64] of int8 codes with scale [outs, 1], twice as many outputs = gate | up if ACT >= 0; residual, out
    [rows, outs]. TABLE > 0: codes name numbers of a table (table_number.py). PARTS, NEXT and BEST as in linear_tile.py;
    SPLIT, partial and tickets as in linear_split.py.
    """
    GATED: tl.constexpr = ACT >= 0
    LINES: tl.constexpr = 2 if GATED else 1
    BLOCKS: tl.constexpr = (SIZE + 127) // 128
    PER_BLOCK: tl.constexpr = 8 * BITS
    WORDS: tl.constexpr = BLOCKS * PER_BLOCK
    EVEN: tl.constexpr = SIZE % 128 == 0
    # scales by loads of 4 bytes, of two groups, since loads of fewer bytes are not put into shared memory ahead
    PAIRS: tl.constexpr = ASM and BF16
    SAME: tl.constexpr = ASM and scale_ptr.dtype.element_ty == x_ptr.dtype.element_ty
    PAIRED: tl.constexpr = BITS == 4 and GROUP == 128 and BLOCKS % 2 == 0 and SAME and TABLE == 0
    TURNS: tl.constexpr = BLOCKS // 2 if PAIRED else BLOCKS
    EACH: tl.constexpr = (TURNS + SPLIT - 1) // SPLIT
    first = tl.program_id(0) * BLOCK_N
    t = tl.program_id(1) * BLOCK_T + tl.arange(0, BLOCK_T)
    x_row = tl.minimum(t, rows - 1)[:, None] * SIZE
    n = first + tl.arange(0, BLOCK_N)
    word = tl.arange(0, PER_BLOCK)[None, :]
    column = tl.arange(0, 128)[None, :]
    row = tl.minimum(n, outs - 1).to(tl.int64)
    begin = tl.program_id(2) * EACH
    end = tl.minimum(begin + EACH, TURNS)
    line = (row,)
    sums = (tl.zeros((BLOCK_N, BLOCK_T), tl.float32),)
    if GATED:
        line += (row + outs,)
        sums += sums
    if EARLY:
        gdc_wait()
        gdc_launch_dependents()
    for turn in tl.range(begin, end, num_stages=STAGES):
        scale = ()
        shift = ()
        if PAIRED:
            for i in tl.static_range(LINES):
                scale += (_pair_of_groups(scale_ptr, line[i], turn, BLOCKS),)
                shift += (_pair_of_groups(zero_ptr, line[i], turn, BLOCKS) if ZERO == 2 else scale[i],)
        for h in tl.static_range(2 if PAIRED else 1):
            block = turn * 2 + h if PAIRED else turn
            at = block * 128 + column
            x = tl.load(x_ptr + x_row + at) if EVEN else tl.load(x_ptr + x_row + at, mask=at < SIZE, other=0.0)
            more = ()
            for i in tl.static_range(LINES):
                w_at = words_ptr + line[i][:, None] * WORDS + block * PER_BLOCK + word
                w = tl.load(w_at, eviction_policy="evict_first")
                if BITS == 8:
                    low = eight_bit_operand(w, 0, x.dtype, PAIRS)
                    high = eight_bit_operand(w, 1, x.dtype, PAIRS)
                    number = tl.join(low, high).permute(0, 2, 1)
                else:
                    four = ()
                    for q in tl.static_range(4):
                        if TABLE > 0:  # in float16 where bfloat16 would round once more
                            code = table_operand(w, q, tl.float16, TABLE, ASM)
                        else:
                            code = four_bit_operand(w, q, 16 + OFFSET if ZERO == 0 else 16, x.dtype, BF16, ASM)
                        if ZERO == 1:
                            code -= _of_group(zero_ptr, line[i], block, q, SIZE, GROUP).to(x.dtype)
                        if TABLE > 0:
                            its = scale_number(_of_group(scale_ptr, line[i], block, q, SIZE, GROUP), GROUP)
                            code = (code.to(tl.float32) * its).to(x.dtype)
                        elif PAIRED:
                            code = scaled_by_pair(code, scale[i], shift[i], h, ZERO == 2, BF16)
                        else:
                            its = _of_group(scale_ptr, line[i], block, q, SIZE, GROUP)
                            its_shift = _of_group(zero_ptr, line[i], block, q, SIZE, GROUP) if ZERO == 2 else its
                            code = scaled_operand(code, its, its_shift, ZERO == 2, BF16, SAME)
                        four += (code,)
                    number = tl.join(tl.join(four[0], four[2]), tl.join(four[1], four[3])).permute(0, 2, 3, 1)
                number = number.reshape(BLOCK_N, 128)
                more += (tl.dot(number, x.T, sums[i], input_precision="ieee"),)
            sums = more
    y = sums[0].T
    u = sums[1].T if GATED else y
    if SPLIT > 1:
        y, u, last = summed_by_last(y, u, partial_ptr, tickets_ptr, LINES, SPLIT)
        if not last:
            return
    valid = n < outs
    if BITS == 8:
        y *= tl.load(scale_ptr + n, mask=valid, other=0.0).to(tl.float32)[None, :]
        if GATED:
            u *= tl.load(scale_ptr + outs + n, mask=valid, other=0.0).to(tl.float32)[None, :]
    bias = of_outputs(bias_ptr, n, valid, outs, GATED, BIAS)
    residual_at = residual_ptr + t[:, None] * outs + n[None, :]
    residual = (tl.load(residual_at, mask=(t < rows)[:, None] & valid[None, :], other=0.0),) if RESIDUAL else ()
    store_tile(
        y, u, squares_ptr, bias, residual, out_ptr, ids_ptr, next_norm_ptr, next_x_ptr, next_squares_ptr,
        rows, outs, parts, eps, first, tl.program_id(0), tl.num_programs(0),
        SIZE, BLOCK_T, BLOCK_N, PARTS, NEXT, ACT, BEST,
    )  # fmt: skip


@triton.jit
def _of_group(plane_ptr, row, block, q: tl.constexpr, SIZE: tl.constexpr, GROUP: tl.constexpr):
    """What belongs to the group of the q-th 32 columns of a block of 128, for every row; [rows, 1]."""
    GROUPS: tl.constexpr = (SIZE + GROUP - 1) // GROUP
    if GROUP < 128:
        group = tl.minimum(block * (128 // GROUP) + q * 32 // GROUP, GROUPS - 1)
    else:
        group = block // (GROUP // 128)
    return tl.load(plane_ptr + row * GROUPS + group)[:, None]


@triton.jit
def _pair_of_groups(plane_ptr, row, pair, GROUPS: tl.constexpr):
    """The 16-bit entries of two groups, for every row, as one word; [rows, 1]."""
    return tl.load(plane_ptr.to(tl.pointer_type(tl.int32), bitcast=True) + row * (GROUPS // 2) + pair)[:, None]
