"""Skinny linear by 4-bit weights on plain multiply-adds: one or two rows, read at the rate of the memory.

Grid: one program a block of BLOCK_N output features, over all of the input. A thread keeps 16 bytes of codes of every
row of the block in registers (32 weights whose columns lie in four runs of 8, see quant_weight.py) and, loaded once for
the block, the 32 activations they meet. Codes become float32 by a mask and an exponent (quant_number.py), with an
offset that is taken from the thread's sum together with the zero point; the group's scale and shift are applied to that
sum. So a weight costs about 2.7 instructions, of which a card has 5 to 7 in the time that its bytes take. Norm before,
bias, gated activation and residual after as in linear_gemv.py. Bound by reading the codes once.
"""

# A kernel's tuples grow while it is compiled, which types do not follow.
# mypy: ignore-errors

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from octavo.kernels.linear_epilogue import store_row
from octavo.kernels.quant_number import nibble, pair, wide_pair


@triton.jit(do_not_specialize=["outs"])
def quant_gemv_kernel(
    x_ptr,
    norm_ptr,
    words_ptr,
    scale_ptr,
    zero_ptr,
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
):
    """x [ROWS, SIZE] as int32 pairs of float16, or of bfloat16 if BF16; words int32 [outs, blocks * 16], or of 2 outs =
    gate | up if ACT >= 0; scale [outs, groups]; residual, out [ROWS, outs].

    ZERO 1: zero uint8 [outs, groups] is taken from the codes instead of OFFSET; 2: it is the shift, added after
    scaling. NORM 1: norm is int32 pairs as x is; 2: int64 pairs of float32. BEST as in linear_epilogue.py.
    """
    GATED: tl.constexpr = ACT >= 0
    LINES: tl.constexpr = 2 * BLOCK_N if GATED else BLOCK_N
    BLOCKS: tl.constexpr = (SIZE + 127) // 128
    PER_BLOCK: tl.constexpr = 128 // GROUP if GROUP < 128 else 1  # scales of a block of columns
    RUNS: tl.constexpr = 4 // PER_BLOCK
    WORDS: tl.constexpr = BLOCK_K // 8
    PARTS: tl.constexpr = BLOCK_K // 32  # of four words each, one a thread
    first = tl.program_id(0) * BLOCK_N
    word = tl.arange(0, WORDS)
    part = tl.arange(0, PARTS)
    # Every row of the weight is a tensor of its own: so all of them have the layout of the activations they meet.
    line = ()
    for n in tl.static_range(LINES):
        row = tl.minimum(first + n % BLOCK_N, outs - 1).to(tl.int64)
        line += (row + outs if n >= BLOCK_N else row,)
    # what no kernel of the step writes is asked for before the kernel that computes x has ended
    w, scale, zero = _weights(words_ptr, scale_ptr, zero_ptr, line, word, part, SIZE, GROUP, ZERO)
    if NORM > 0:
        norm = _runs(norm_ptr, word, SIZE)
    out_col = first + tl.arange(0, BLOCK_N)
    valid = out_col < outs
    if BIAS:
        bias = tl.load(bias_ptr + out_col, mask=valid, other=0.0)
        if GATED:
            up_bias = tl.load(bias_ptr + outs + out_col, mask=valid, other=0.0)
    if EARLY:
        gdc_wait()
        gdc_launch_dependents()
    sums = ()
    squares = ()
    x = ()
    residual = ()
    for t in tl.static_range(ROWS):
        for _ in tl.static_range(LINES):
            sums += (tl.zeros((PARTS,), tl.float32),)
        squares += (tl.zeros((WORDS,), tl.float32),)
        x += _runs(x_ptr + t * (SIZE // 2), word, SIZE)
        if RESIDUAL:
            residual += (tl.load(residual_ptr + t * outs + out_col, mask=valid, other=0.0),)
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
                norm = _runs(norm_ptr, ahead + word, SIZE)
            x = ()
            for t in tl.static_range(ROWS):
                x += _runs(x_ptr + t * (SIZE // 2), ahead + word, SIZE)
        new_sums = ()
        new_squares = ()
        for t in tl.static_range(ROWS):
            square = squares[t]
            wide = ()
            for q in tl.static_range(4):
                low, high = pair(these[t * 4 + q], BF16)
                if NORM > 0:
                    square += low * low + high * high
                    if NORM == 1:
                        low_norm, high_norm = pair(this_norm[q], BF16)
                    else:
                        low_norm, high_norm = wide_pair(this_norm[q])
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
                for g in tl.static_range(PER_BLOCK):
                    acc = tl.zeros((WORDS,), tl.float32)
                    for q in tl.static_range(g * RUNS, g * RUNS + RUNS):
                        acc += nibble(this[n], q, 0, ASM) * wide[2 * q]
                        acc += nibble(this[n], q, 1, ASM) * wide[2 * q + 1]
                    whole = tl.sum(acc.reshape(PARTS, 4), 1) - added[g]
                    if ZERO == 1:
                        whole -= this_zero[n * PER_BLOCK + g].to(tl.float32) * plain[g]
                    total += whole * this_scale[n * PER_BLOCK + g].to(tl.float32)
                    if ZERO == 2:
                        total += this_zero[n * PER_BLOCK + g].to(tl.float32) * plain[g]
                new_sums += (total,)
            new_squares += (square,)
        sums = new_sums
        squares = new_squares
    for t in tl.static_range(ROWS):
        y = summed(sums, t * LINES, BLOCK_N)
        u = y
        if GATED:
            u = summed(sums, t * LINES + BLOCK_N, BLOCK_N)
        store_row(
            y, u, squares[t], bias if BIAS else y, up_bias if BIAS and GATED else y, residual[t] if RESIDUAL else y,
            out_ptr, ids_ptr, outs, eps, t, SIZE, BLOCK_N, NORM > 0, BIAS, RESIDUAL, ACT, BEST,
        )  # fmt: skip


@triton.jit
def _weights(
    words_ptr, scale_ptr, zero_ptr, line, word, part, SIZE: tl.constexpr, GROUP: tl.constexpr, ZERO: tl.constexpr
):
    """Of every row [words] codes, read once and not kept in the caches, and of every group of a block [parts] scales
    and zero points or shifts."""
    BLOCKS: tl.constexpr = (SIZE + 127) // 128
    GROUPS: tl.constexpr = (SIZE + GROUP - 1) // GROUP
    PER_BLOCK: tl.constexpr = 128 // GROUP if GROUP < 128 else 1
    PER_SCALE: tl.constexpr = GROUP // 128 if GROUP > 128 else 1  # blocks that share a scale
    w = ()
    scale = ()
    zero = ()
    for n in tl.static_range(len(line)):
        at = words_ptr + line[n] * (BLOCKS * 16) + word
        w += (tl.load(at, mask=word < BLOCKS * 16, other=0, eviction_policy="evict_first"),)
    for n in tl.static_range(len(line)):
        for g in tl.static_range(PER_BLOCK):
            group = part // (4 * PER_SCALE) * PER_BLOCK + g
            scale += (tl.load(scale_ptr + line[n] * GROUPS + group, mask=group < GROUPS, other=0.0),)
            if ZERO > 0:
                zero += (tl.load(zero_ptr + line[n] * GROUPS + group, mask=group < GROUPS, other=0),)
    return w, scale, zero


@triton.jit
def _runs(pairs_ptr, word, SIZE: tl.constexpr):
    """Four tensors [words] of pairs: the columns that the four codes of either half of a word belong to."""
    found = ()
    for q in tl.static_range(4):
        at = word // 16 * 64 + q * 16 + word % 16
        found += (tl.load(pairs_ptr + at, mask=at < SIZE // 2, other=0),)
    return found


@triton.jit
def summed(sums, at: tl.constexpr, COUNT: tl.constexpr):
    """[COUNT] sums of that many tensors from sums[at] on, COUNT being 2, 4 or 8."""
    if COUNT == 2:
        together = tl.join(sums[at], sums[at + 1])
    elif COUNT == 4:
        together = tl.join(tl.join(sums[at], sums[at + 2]), tl.join(sums[at + 1], sums[at + 3]))
    else:
        even = tl.join(tl.join(sums[at], sums[at + 4]), tl.join(sums[at + 2], sums[at + 6]))
        odd = tl.join(tl.join(sums[at + 1], sums[at + 5]), tl.join(sums[at + 3], sums[at + 7]))
        together = tl.join(even, odd)
    return tl.sum(together.reshape(together.shape[0], COUNT), 0)
