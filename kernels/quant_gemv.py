"""Skinny linear by 4-bit weights on plain multiply-adds: one or two rows, read at the rate of the memory.

Grid: one program a block of BLOCK_N output features, over all of the input. A thread keeps 16 bytes of codes of every
row of the block in registers (32 weights whose columns lie in four runs of 8, see quant_weight.py) and, loaded once for
the block, the 32 activations they meet. Codes become float32 by a mask and an exponent (quant_number.py), with an
offset that is taken from the thread's sum together with the zero point, or by a table (table_number.py); the group's
scale and shift are applied to that sum. So a weight costs about 2.7 instructions, of which a card has 5 to 7 in the
time that its bytes take. Norm before, bias, gated activation and residual after as in linear_gemv.py. Bound by reading
the codes once.
"""

# A kernel's tuples grow while it is compiled, which types do not follow.
# mypy: ignore-errors

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from octavo.kernels.linear_epilogue import of_outputs
from octavo.kernels.linear_lines import lines_of, pairs_of, store_lines, words_of, zeros_of
from octavo.kernels.quant_number import nibble, pair
from octavo.kernels.table_number import load_table, scale_number, table_numbers


@triton.jit(do_not_specialize=["outs"])
def quant_gemv_kernel(
    x_ptr,
    norm_ptr,
    words_ptr,
    scale_ptr,
    zero_ptr,
    table_ptr,
    outer_ptr,
    bias_ptr,
    residual_ptr,
    out_ptr,
    ids_ptr,
    outs,
    eps,
    SIZE: tl.constexpr,
    GROUP: tl.constexpr,
    OFFSET: tl.constexpr,
    ZERO: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    NORM: tl.constexpr,
    BF16: tl.constexpr,
    BIAS: tl.constexpr,
    RESIDUAL: tl.constexpr,
    ACT: tl.constexpr,
    BEST: tl.constexpr,
    EARLY: tl.constexpr,
    ASM: tl.constexpr,
    TABLE: tl.constexpr,
    OUTER: tl.constexpr,
):
    """x [ROWS, SIZE] as int32 pairs of float16, or of bfloat16 if BF16; words int32 [outs, blocks * 16], or of 2 outs =
    gate | up if ACT >= 0; scale [outs, groups]; residual, out [ROWS, outs].

    ZERO 1: zero uint8 [outs, groups] is taken from the codes instead of OFFSET; 2: it is the shift, added after
    scaling. TABLE > 0: codes name numbers of a table, which is that of table_number.table_bytes. OUTER: outer, float32
    [outs], multiplies the scales. NORM 1: norm is int32 pairs as x is; 2: int64 pairs of float32. BEST as in
    linear_epilogue.py.
    """
    GATED: tl.constexpr = ACT >= 0
    LINES: tl.constexpr = 2 * BLOCK_N if GATED else BLOCK_N
    BLOCKS: tl.constexpr = (SIZE + 127) // 128
    PER_BLOCK: tl.constexpr = 4 if GROUP == 16 else 128 // GROUP if GROUP < 128 else 1  # scales of a block of columns
    RUNS: tl.constexpr = 4 // PER_BLOCK
    WORDS: tl.constexpr = BLOCK_K // 8
    PARTS: tl.constexpr = BLOCK_K // 32  # of four words each, one a thread
    first = tl.program_id(0) * BLOCK_N
    word = tl.arange(0, WORDS)
    part = tl.arange(0, PARTS)
    line = lines_of(first, outs, BLOCK_N, LINES)
    if TABLE > 0:
        table = load_table(table_ptr)
    # what no kernel of the step writes is asked for before the kernel that computes x has ended
    w, scale, zero = _weights(words_ptr, scale_ptr, zero_ptr, line, word, part, SIZE, GROUP, ZERO)
    if NORM > 0:
        norm = pairs_of(norm_ptr, word, SIZE, 4)
    out_col = first + tl.arange(0, BLOCK_N)
    valid = out_col < outs
    bias = of_outputs(bias_ptr, out_col, valid, outs, GATED, BIAS)
    if EARLY:
        gdc_wait()
        gdc_launch_dependents()
    sums = zeros_of(ROWS * LINES, PARTS)
    squares = zeros_of(ROWS, WORDS)
    x = ()
    residual = ()
    for t in tl.static_range(ROWS):
        x += pairs_of(x_ptr + t * (SIZE // 2), word, SIZE, 4)
        residual += of_outputs(residual_ptr + t * outs, out_col, valid, outs, False, RESIDUAL)
    for begin in range(0, BLOCKS * 16, WORDS):
        this = w
        this_scale = scale
        this_zero = zero
        these = x
        if NORM > 0:
            this_norm = norm
        if BLOCKS * 16 > WORDS:
            # the next turn's loads are under way while this turn's are used
            ahead = begin + WORDS
            w, scale, zero = _weights(
                words_ptr, scale_ptr, zero_ptr, line, ahead + word, ahead // 4 + part, SIZE, GROUP, ZERO
            )
            if NORM > 0:
                norm = pairs_of(norm_ptr, ahead + word, SIZE, 4)
            x = ()
            for t in tl.static_range(ROWS):
                x += pairs_of(x_ptr + t * (SIZE // 2), ahead + word, SIZE, 4)
        new_sums = ()
        new_squares = ()
        for t in tl.static_range(ROWS):
            square = squares[t]
            wide = ()
            for q in tl.static_range(4):
                low, high = pair(these[t * 4 + q], BF16)
                if NORM > 0:
                    square += low * low + high * high
                    low_norm, high_norm = pair(this_norm[q], BF16)
                    low *= low_norm
                    high *= high_norm
                wide += (low, high)
            plain = ()
            added = ()  # by the way codes become numbers
            for g in tl.static_range(PER_BLOCK):
                even = tl.zeros((WORDS,), tl.float32)
                odd = tl.zeros((WORDS,), tl.float32)
                for q in tl.static_range(g * RUNS, g * RUNS + RUNS):
                    if q % 2 == 1:
                        odd += wide[2 * q] + wide[2 * q + 1]
                    else:
                        even += wide[2 * q] + wide[2 * q + 1]
                even = tl.sum(even.reshape(PARTS, 4), 1)
                odd = tl.sum(odd.reshape(PARTS, 4), 1)
                plain += (even + odd,)
                added += (even * (256.0 + OFFSET) + odd * (16.0 + OFFSET),)
            for n in tl.static_range(LINES):
                total = sums[t * LINES + n]
                if TABLE > 0:
                    numbers = table_numbers(this[n], table, TABLE, ASM)
                for g in tl.static_range(PER_BLOCK):
                    acc = tl.zeros((WORDS,), tl.float32)
                    for q in tl.static_range(g * RUNS, g * RUNS + RUNS):
                        if TABLE > 0:
                            acc += numbers[q] * wide[2 * q]
                            acc += numbers[4 + q] * wide[2 * q + 1]
                        else:
                            acc += nibble(this[n], q, 0, ASM) * wide[2 * q]
                            acc += nibble(this[n], q, 1, ASM) * wide[2 * q + 1]
                    whole = tl.sum(acc.reshape(PARTS, 4), 1)
                    if TABLE == 0:
                        whole -= added[g]
                    if ZERO == 1:
                        whole -= this_zero[n * PER_BLOCK + g].to(tl.float32) * plain[g]
                    total += whole * scale_number(this_scale[n * PER_BLOCK + g], GROUP)
                    if ZERO == 2:
                        total += this_zero[n * PER_BLOCK + g].to(tl.float32) * plain[g]
                new_sums += (total,)
            new_squares += (square,)
        sums = new_sums
        squares = new_squares
    if OUTER:
        outer = ()
        for n in tl.static_range(LINES):
            outer += (tl.load(outer_ptr + line[n]),)
        new_sums = ()
        for i in tl.static_range(ROWS * LINES):
            new_sums += (sums[i] * outer[i % LINES],)
        sums = new_sums
    store_lines(
        sums, squares, (), bias, residual, out_ptr, ids_ptr, outs, eps, SIZE, ROWS, BLOCK_N, NORM > 0, ACT, BEST
    )


@triton.jit
def _weights(
    words_ptr, scale_ptr, zero_ptr, line, word, part, SIZE: tl.constexpr, GROUP: tl.constexpr, ZERO: tl.constexpr
):
    """Of every line [words] codes, and of every group of a block [parts] scales and zero points or shifts."""
    BLOCKS: tl.constexpr = (SIZE + 127) // 128
    GROUPS: tl.constexpr = (SIZE + GROUP - 1) // GROUP
    PER_BLOCK: tl.constexpr = 4 if GROUP == 16 else 128 // GROUP if GROUP < 128 else 1
    PER_SCALE: tl.constexpr = GROUP // 128 if GROUP > 128 else 1  # blocks that share a scale
    w = words_of(words_ptr, line, word, BLOCKS * 16)
    scale = ()
    zero = ()
    for n in tl.static_range(len(line)):
        for g in tl.static_range(PER_BLOCK):
            if GROUP == 16:  # half a run of columns each
                group = part // 4 * 8 + g * 2 + part % 4 // 2
            else:
                group = part // (4 * PER_SCALE) * PER_BLOCK + g
            scale += (tl.load(scale_ptr + line[n] * GROUPS + group, mask=group < GROUPS, other=0),)
            if ZERO > 0:
                zero += (tl.load(zero_ptr + line[n] * GROUPS + group, mask=group < GROUPS, other=0),)
    return w, scale, zero
