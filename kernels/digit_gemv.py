"""One row by int4 or int8 weights with whole-number multiply-adds: four products an instruction, no weight converted.

Grid: one program a block of BLOCK_N output features, over all of the input. A thread keeps 16 bytes of codes of every
row of the block in registers (32 or 16 weights, in the order of quant_weight.py) and makes, once for the block, digits
of the activations they meet (digit_number.py), whose step is the thread's own: so a large activation takes precision
from the few beside it only. The thread's sums are exact; a group's scale and zero point or shift and the step are
applied to them in float32. Norm before, bias, gated activation and residual after as in linear_gemv.py. Bound by
reading the codes once.
"""

# A kernel's tuples grow while it is compiled, which types do not follow.
# mypy: ignore-errors

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from octavo.kernels.digit_number import (
    digit_bits,
    digit_step,
    dot_of_bytes,
    larger,
    largest,
    nibbles,
    packed_digits,
)
from octavo.kernels.linear_epilogue import store_row
from octavo.kernels.quant_gemv import summed
from octavo.kernels.quant_number import pair, wide_pair


@triton.jit(do_not_specialize=["outs"])
def digit_gemv_kernel(
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
    BITS: tl.constexpr,
    GROUP: tl.constexpr,
    OFFSET: tl.constexpr,
    ZERO: tl.constexpr,
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
    """x [SIZE] as int32 pairs of float16, or of bfloat16 if BF16; words int32 [outs, blocks * 4 * BITS], or of 2 outs =
    gate | up if ACT >= 0; scale [outs, groups] (of int8 [outs, 1]), GROUP a multiple of 128; residual, out [outs].

    A turn takes BLOCK_K columns, 16 bytes a thread. OFFSET, ZERO and NORM as in quant_gemv.py.
    """
    GATED: tl.constexpr = ACT >= 0
    LINES: tl.constexpr = 2 * BLOCK_N if GATED else BLOCK_N
    ROW: tl.constexpr = (SIZE + 127) // 128 * 4 * BITS  # words
    RUNS: tl.constexpr = 16 // BITS  # of pairs of columns that the codes of a word belong to
    PARTS: tl.constexpr = BLOCK_K * BITS // 128  # of four words each, one a thread
    first = tl.program_id(0) * BLOCK_N
    part = tl.arange(0, PARTS)
    word = part[:, None] * 4 + tl.arange(0, 4)[None, :]
    # Every row of the weight is a tensor of its own: so all of them have the layout of the activations they meet.
    line = ()
    for n in tl.static_range(LINES):
        row = tl.minimum(first + n % BLOCK_N, outs - 1).to(tl.int64)
        line += (row + outs if n >= BLOCK_N else row,)
    # what no kernel of the step writes is asked for before the kernel that computes x has ended
    w, scale, zero = _weights(words_ptr, scale_ptr, zero_ptr, line, word, part, SIZE, BITS, GROUP, ZERO)
    if NORM > 0:
        norm = _runs(norm_ptr, word, SIZE, BITS)
    out_col = first + tl.arange(0, BLOCK_N)
    valid = out_col < outs
    if BITS == 8:
        row_scale = tl.load(scale_ptr + out_col, mask=valid, other=0.0).to(tl.float32)
        if GATED:
            up_scale = tl.load(scale_ptr + outs + out_col, mask=valid, other=0.0).to(tl.float32)
    if BIAS:
        bias = tl.load(bias_ptr + out_col, mask=valid, other=0.0)
        if GATED:
            up_bias = tl.load(bias_ptr + outs + out_col, mask=valid, other=0.0)
    if EARLY:
        gdc_wait()
        gdc_launch_dependents()
    x = _runs(x_ptr, word, SIZE, BITS)
    if RESIDUAL:
        residual = tl.load(residual_ptr + out_col, mask=valid, other=0.0)
    none = tl.zeros((PARTS, 4), tl.int32)
    sums = ()
    for _ in tl.static_range(LINES):
        sums += (tl.zeros((PARTS,), tl.float32),)
    square = tl.zeros((PARTS, 4), tl.float32)
    for begin in range(0, ROW, PARTS * 4):
        this = w
        this_scale = scale
        this_zero = zero
        these = x
        if NORM > 0:
            this_norm = norm
        if ROW > PARTS * 4:
            # the next turn's loads are under way while this turn's are used
            ahead = begin + PARTS * 4
            w, scale, zero = _weights(
                words_ptr, scale_ptr, zero_ptr, line, ahead + word, ahead // 4 + part, SIZE, BITS, GROUP, ZERO
            )
            if NORM > 0:
                norm = _runs(norm_ptr, ahead + word, SIZE, BITS)
            x = _runs(x_ptr, ahead + word, SIZE, BITS)
        lows = ()
        highs = ()
        magnitude = tl.zeros((PARTS, 4), tl.float32)
        for q in tl.static_range(RUNS):
            low, high = pair(these[q], BF16)
            if NORM > 0:
                square = high * high + (low * low + square)
                if NORM == 1:
                    low_norm, high_norm = pair(this_norm[q], BF16)
                else:
                    low_norm, high_norm = wide_pair(this_norm[q])
                low *= low_norm
                high *= high_norm
            magnitude = larger(magnitude, larger(tl.abs(low), tl.abs(high)))
            lows += (low,)
            highs += (high,)
        most = largest(magnitude, 1)
        step = digit_step(most)
        most = most[:, None]
        uppers = ()
        lowers = ()
        for q in tl.static_range(RUNS // 2):
            # the bytes of a word belong to columns of the q-th run and of one further on, in turn
            upper, lower = packed_digits(
                digit_bits(lows[q], most), digit_bits(lows[q + RUNS // 2], most),
                digit_bits(highs[q], most), digit_bits(highs[q + RUNS // 2], most), ASM,
            )  # fmt: skip
            uppers += (upper,)
            lowers += (lower,)
        if BITS == 4:
            plain = _whole(none + 0x01010101, none + 0x01010101, uppers, lowers, none, ASM) * step
        more = ()
        for n in tl.static_range(LINES):
            if BITS == 4:
                first_codes, second_codes = nibbles(this[n], ASM)
                whole = _whole(first_codes, second_codes, uppers, lowers, none, ASM) * step
                its_scale = this_scale[n].to(tl.float32)
                total = sums[n] + whole * its_scale
                if ZERO == 2:
                    total += this_zero[n].to(tl.float32) * plain
                elif ZERO == 1:
                    total -= this_zero[n].to(tl.float32) * its_scale * plain
                else:
                    total -= OFFSET * its_scale * plain
            else:
                total = sums[n] + _whole(this[n], none, uppers, lowers, none, ASM) * step
            more += (total,)
        sums = more
    y = summed(sums, 0, BLOCK_N)
    u = y
    if GATED:
        u = summed(sums, BLOCK_N, BLOCK_N)
    if BITS == 8:
        y *= row_scale
        if GATED:
            u *= up_scale
    store_row(
        y, u, tl.sum(square, 1), bias if BIAS else y, up_bias if BIAS and GATED else y, residual if RESIDUAL else y,
        out_ptr, ids_ptr, outs, eps, 0, SIZE, BLOCK_N, NORM > 0, BIAS, RESIDUAL, ACT, BEST,
    )  # fmt: skip


@triton.jit
def _whole(first_codes, second_codes, uppers, lowers, none, ASM: tl.constexpr):
    """float32 of the exact sums of codes times activations in steps, over a thread's words."""
    upper = dot_of_bytes(first_codes, uppers[0], none, ASM)
    lower = dot_of_bytes(first_codes, lowers[0], none, ASM)
    if len(uppers) == 2:
        upper = dot_of_bytes(second_codes, uppers[1], upper, ASM)
        lower = dot_of_bytes(second_codes, lowers[1], lower, ASM)
    return (tl.sum(upper, 1) * 256 + tl.sum(lower, 1)).to(tl.float32)


@triton.jit
def _weights(
    words_ptr,
    scale_ptr,
    zero_ptr,
    line,
    word,
    part,
    SIZE: tl.constexpr,
    BITS: tl.constexpr,
    GROUP: tl.constexpr,
    ZERO: tl.constexpr,
):
    """Of every row [parts, 4] words, read once and not kept in the caches, and of 4-bit codes [parts] scales and zero
    points or shifts."""
    ROW: tl.constexpr = (SIZE + 127) // 128 * 4 * BITS
    GROUPS: tl.constexpr = (SIZE + GROUP - 1) // GROUP
    w = ()
    scale = ()
    zero = ()
    for n in tl.static_range(len(line)):
        w += (tl.load(words_ptr + line[n] * ROW + word, mask=word < ROW, other=0, eviction_policy="evict_first"),)
    if BITS == 4:
        group = part // (GROUP // 32)
        for n in tl.static_range(len(line)):
            scale += (tl.load(scale_ptr + line[n] * GROUPS + group, mask=group < GROUPS, other=0.0),)
            if ZERO > 0:
                zero += (tl.load(zero_ptr + line[n] * GROUPS + group, mask=group < GROUPS, other=0),)
    return w, scale, zero


@triton.jit
def _runs(pairs_ptr, word, SIZE: tl.constexpr, BITS: tl.constexpr):
    """Of the columns that the codes of a word belong to, the pairs of neighbours."""
    PER_BLOCK: tl.constexpr = 4 * BITS  # words
    found = ()
    for q in tl.static_range(16 // BITS):
        at = word // PER_BLOCK * 64 + q * PER_BLOCK + word % PER_BLOCK
        found += (tl.load(pairs_ptr + at, mask=at < SIZE // 2, other=0),)
    return found
