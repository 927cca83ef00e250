"""Skinny linear by GGUF blocks on plain multiply-adds: one or two rows, two products an instruction.

Grid: one program a block of BLOCK_N output features, over all of the input. A thread keeps 32 codes of every row of the
block in registers, in four runs of 8 columns that share a scale, and the 32 activations they meet as float16, scaled by
a power of two so that the largest lies just below 2^15. Codes are masked, not converted: as float16 they read as
code * 2^-24 (gguf_number.py), and one instruction multiplies two of them and adds up, 4 products to each half of a sum.
Sums of runs go on in float32: times the scale, less what a minimum takes away, which needs only the sum of the
activations. Offsets are taken from the codes, which are more exact about zero. Scaling back is left to the turn's end.

Instructions a weight of Q4_K: 0.63 to mask and shift, 0.5 to multiply, 0.4 to bring a run's sums to float32, 0.3 for
scales and minimums as numbers, 0.3 to apply them, 0.6 for activations (of 8 rows; twice as many of 4). A card has 6 to
7 in the time that 4.6 bits take. Float16 has 11 bits and a run of 4 terms little to lose: the error is a quarter of
that of weights in bfloat16. Norm before, bias, gated activation and residual after as in linear_gemv.py. Bound by
reading the blocks once.
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
    half_numbers,
    less,
    signed_numbers,
    swapped,
)
from octavo.kernels.half_number import add_products, halves, power_of, sum_of_halves, weighed_pair
from octavo.kernels.linear_epilogue import of_outputs
from octavo.kernels.linear_lines import four_of, lines_of, store_lines, zeros_of
from octavo.kernels.quant_number import pair


@triton.jit(do_not_specialize=["outs"])
def gguf_gemv_kernel(
    x_ptr,
    norm_ptr,
    words_ptr,
    high_ptr,
    scale_ptr,
    unit_ptr,
    bias_ptr,
    residual_ptr,
    out_ptr,
    ids_ptr,
    outs,
    eps,
    SIZE: tl.constexpr,
    KIND: tl.constexpr,
    FIVE: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK_N: tl.constexpr,
    THREADS: tl.constexpr,
    NORM: tl.constexpr,
    BF16: tl.constexpr,
    BIAS: tl.constexpr,
    RESIDUAL: tl.constexpr,
    ACT: tl.constexpr,
    BEST: tl.constexpr,
    EARLY: tl.constexpr,
    ASM: tl.constexpr,
):
    """x [ROWS, SIZE] as int32 pairs of float16, or of bfloat16 if BF16; the planes of a BlockWeight: words and high as
    int32, scale as int64 (Q4_0, Q4_1, Q4_K), int32 (Q6_K) or int16 (Q8_0), unit as int32 (Q4_K) or int16 (Q6_K), of
    2 outs = gate | up if ACT >= 0; residual, out [ROWS, outs]. FIVE: codes of Q4_0, Q4_1 or Q4_K have a fifth bit.

    NORM 1: norm is pairs as x is; 2: float32. BEST as in linear_epilogue.py.
    """
    GATED: tl.constexpr = ACT >= 0
    LINES: tl.constexpr = 2 * BLOCK_N if GATED else BLOCK_N
    ALL: tl.constexpr = (SIZE + 127) // 128 * 4  # threads' worth of a row
    first = tl.program_id(0) * BLOCK_N
    thread = tl.arange(0, THREADS)
    word = tl.arange(0, THREADS * 4)
    line = lines_of(first, outs, BLOCK_N, LINES)
    # what no kernel of the step writes is asked for before the kernel that computes x has ended
    w, high, scale, unit = _weights(words_ptr, high_ptr, scale_ptr, unit_ptr, line, word, thread, SIZE, KIND, FIVE)
    if NORM > 0:
        norm = _runs(norm_ptr, word, SIZE, KIND, NORM == 2)
    out_col = first + tl.arange(0, BLOCK_N)
    valid = out_col < outs
    bias = of_outputs(bias_ptr, out_col, valid, outs, GATED, BIAS)
    if EARLY:
        gdc_wait()
        gdc_launch_dependents()
    sums = zeros_of(ROWS * LINES, THREADS)
    squares = zeros_of(ROWS, THREADS)
    x = ()
    residual = ()
    for t in tl.static_range(ROWS):
        x += _runs(x_ptr + t * (SIZE // 2), word, SIZE, KIND, False)
        residual += of_outputs(residual_ptr + t * outs, out_col, valid, outs, False, RESIDUAL)
    for begin in range(0, ALL, THREADS):
        this_w = w
        this_high = high
        this_scale = scale
        this_unit = unit
        these = x
        if NORM > 0:
            this_norm = norm
        if ALL > THREADS:
            # the next turn's loads are under way while this turn's are used
            ahead = begin + THREADS
            w, high, scale, unit = _weights(
                words_ptr, high_ptr, scale_ptr, unit_ptr, line, ahead * 4 + word, ahead + thread, SIZE, KIND, FIVE
            )
            if NORM > 0:
                norm = _runs(norm_ptr, ahead * 4 + word, SIZE, KIND, NORM == 2)
            x = ()
            for t in tl.static_range(ROWS):
                x += _runs(x_ptr + t * (SIZE // 2), ahead * 4 + word, SIZE, KIND, False)
        new_sums = ()
        new_squares = ()
        for t in tl.static_range(ROWS):
            run = ()
            for q in tl.static_range(4):
                run += (these[t * 4 + q],)
            pairs, totals, back, square = _prepared(
                run, this_norm if NORM > 0 else run, squares[t], KIND, NORM, BF16, ASM
            )
            for n in tl.static_range(LINES):
                codes = four_of(this_w[2 * n]) + four_of(this_w[2 * n + 1]) if KIND == Q8_0 else four_of(this_w[n])
                above = four_of(this_high[n]) if KIND == Q6_K else this_high[n] if FIVE else codes
                result = _product(
                    codes, above, this_scale, this_unit, n, pairs, totals, begin + thread, KIND, FIVE, ASM
                )
                new_sums += (sums[t * LINES + n] + back * result,)
            new_squares += (square,)
        sums = new_sums
        squares = new_squares
    store_lines(
        sums, squares, (), bias, residual, out_ptr, ids_ptr, outs, eps, SIZE, ROWS, BLOCK_N, NORM > 0, ACT, BEST
    )


@triton.jit
def _weights(
    words_ptr, high_ptr, scale_ptr, unit_ptr, line, word, thread,
    SIZE: tl.constexpr, KIND: tl.constexpr, FIVE: tl.constexpr,
):  # fmt: skip
    """Of every row, what each thread has of it: [4 threads] words (twice for Q8_0) and high bits ([threads] if FIVE),
    read once and not kept in the caches, and [threads] scales (twice for Q4_1) and units."""
    BLOCKS: tl.constexpr = (SIZE + 127) // 128
    w = ()
    high = ()
    scale = ()
    unit = ()
    for n in tl.static_range(len(line)):
        if KIND == Q8_0:
            for part in tl.static_range(2):
                at = word // 4 * 8 + part * 4 + word % 4
                mask = word // 4 < SIZE // 32
                address = words_ptr + line[n] * (SIZE // 4) + at
                w += (tl.load(address, mask=mask, other=0, eviction_policy="evict_first"),)
        else:
            address = words_ptr + line[n] * (BLOCKS * 16) + word
            w += (tl.load(address, mask=word < BLOCKS * 16, other=0, eviction_policy="evict_first"),)
        if KIND == Q6_K:
            # of 128 columns the first two threads have the lower bytes, the other two the upper ones
            at = word // 16 * 8 + word % 8
            high += (tl.load(high_ptr + line[n] * (BLOCKS * 8) + at, mask=word < BLOCKS * 16, other=0),)
        elif FIVE:
            high += (tl.load(high_ptr + line[n] * (BLOCKS * 4) + thread, mask=thread < BLOCKS * 4, other=0),)
    for n in tl.static_range(len(line)):
        inside = thread < BLOCKS * 4
        if KIND == Q4_1:
            for part in tl.static_range(2):
                scale += (tl.load(scale_ptr + line[n] * (BLOCKS * 2) + thread // 4 * 2 + part, mask=inside, other=0),)
        elif KIND == Q6_K:
            scale += (tl.load(scale_ptr + line[n] * (BLOCKS * 2) + thread // 2, mask=inside, other=0),)
        elif KIND == Q8_0:
            scale += (tl.load(scale_ptr + line[n] * (BLOCKS * 4) + thread, mask=inside, other=0),)
        else:
            scale += (tl.load(scale_ptr + line[n] * BLOCKS + thread // 4, mask=inside, other=0),)
        if KIND == Q4_K or KIND == Q6_K:
            unit += (tl.load(unit_ptr + line[n] * (SIZE // 256) + thread // 8, mask=inside, other=0),)
    return w, high, scale, unit


@triton.jit
def _runs(pairs_ptr, word, SIZE: tl.constexpr, KIND: tl.constexpr, WIDE: tl.constexpr):
    """Four tensors [4 threads] of pairs: a thread's four runs of 8 columns. WIDE: eight of float32, two a run."""
    SPAN: tl.constexpr = 32 if KIND == Q8_0 else 64 if KIND == Q6_K else 128
    found = ()
    for q in tl.static_range(4):
        at = word // (SPAN // 8) * (SPAN // 2) + q * (SPAN // 8) + word % (SPAN // 8)
        if WIDE:
            column = word // (SPAN // 8) * SPAN + q * (SPAN // 4) + word // 4 % (SPAN // 32) * 8 + word % 4
            for half in tl.static_range(2):
                found += (tl.load(pairs_ptr + column + half * 4, mask=column < SIZE, other=0.0),)
        else:
            found += (tl.load(pairs_ptr + at, mask=at < SIZE // 2, other=0),)
    return found


@triton.jit
def _prepared(run, norm, square, KIND: tl.constexpr, NORM: tl.constexpr, BF16: tl.constexpr, ASM: tl.constexpr):
    """A thread's 32 activations (times the norm's weights): 16 pairs of float16, the sums of four runs in the unit of
    the products' sums, what that unit is, and the squares (before the norm) added up."""
    numbers = ()
    totals = ()
    largest = tl.full(square.shape, 2.0**-90, tl.float32)
    for q in tl.static_range(4):
        total = tl.zeros(square.shape, tl.float32)
        bits = four_of(run[q])
        factors = ()
        if NORM == 1:
            factors = four_of(norm[q])
        elif NORM == 2:
            factors = four_of(norm[2 * q]) + four_of(norm[2 * q + 1])
        for k in tl.static_range(4):
            low, high, square = weighed_pair(bits[k], factors, k, square, NORM, BF16)
            total += low + high
            largest = tl.maximum(largest, tl.maximum(tl.abs(low), tl.abs(high)))
            numbers += (low, high)
        totals += (total,)
    by, back = power_of(largest, 14)
    # 2^24 for codes that were read as so much less, and again for scales
    UNIT: tl.constexpr = 281474976710656.0 if KIND == Q4_K or KIND == Q6_K else 16777216.0
    back *= UNIT
    pairs = ()
    scaled = ()
    for q in tl.static_range(4):
        # codes of odd runs are read 16 times as large
        its = by * 0.0625 if q % 2 == 1 and KIND != Q8_0 else by
        for k in tl.static_range(4):
            if KIND == Q8_0:
                # bytes of a word are taken two by two, not neighbours: columns 0 and 2, 1 and 3 of four
                low = numbers[q * 8 + k // 2 * 4 + k % 2]
                high = numbers[q * 8 + k // 2 * 4 + k % 2 + 2]
            else:
                low = numbers[q * 8 + 2 * k]
                high = numbers[q * 8 + 2 * k + 1]
            pairs += (halves(low * its, high * its, ASM),)
        scaled += (totals[q] * (by * (1.0 / 16777216.0)),)
    return pairs, scaled, back, square


@triton.jit
def _product(
    codes, above, scale, unit, n: tl.constexpr, pairs, totals, thread,
    KIND: tl.constexpr, FIVE: tl.constexpr, ASM: tl.constexpr,
):  # fmt: skip
    """Row n's part of the result [threads] in the unit of `_prepared`."""
    OFFSET: tl.constexpr = (16 if FIVE else 8) if KIND == Q4_0 else 32 if KIND == Q6_K else 128
    MINIMUM: tl.constexpr = KIND == Q4_1 or KIND == Q4_K
    if KIND == Q4_1:
        factors = half_numbers(scale[2 * n])
        minimums = half_numbers(scale[2 * n + 1])
    elif KIND == Q4_K:
        factors = byte_numbers(scale[n].to(tl.int32))
        minimums = byte_numbers((scale[n] >> 32).to(tl.int32))
    elif KIND == Q6_K:
        factors = signed_numbers(scale[n])
        swap = thread // 2 % 2
    elif KIND == Q4_0:
        factors = half_numbers(scale[n])
    result = tl.zeros(pairs[0].shape, tl.float32)
    taken = result
    for q in tl.static_range(4):
        both = tl.zeros(pairs[0].shape, tl.int32)
        for k in tl.static_range(4):
            if KIND == Q8_0:
                w = codes[2 * q + k // 2] ^ -2139062144  # 0x80808080: 128 more, without a sign
                code = (w >> 8 * (k % 2)) & 0x00FF00FF
            else:
                w = codes[k] >> 8 if q >= 2 else codes[k]
                code = w & (0x00F000F0 if q % 2 == 1 else 0x000F000F)
                if KIND == Q6_K:
                    high = swapped(above[k], swap, ASM)
                    if q >= 2:
                        high = high >> 2
                    code |= high & (0x03000300 if q % 2 == 1 else 0x00300030)
                elif FIVE:
                    high = above >> (4 + k) if q >= 2 else above << (4 - k)
                    code |= high & (0x01000100 if q % 2 == 1 else 0x00100010)
            if not MINIMUM:
                code = less(code, OFFSET * 16 if q % 2 == 1 and KIND != Q8_0 else OFFSET, ASM)
            both = add_products(code, pairs[q * 4 + k], both, ASM)
        part = sum_of_halves(both, ASM)
        if KIND == Q8_0:
            result += part
        else:
            result += part * factors[q]
        if MINIMUM:
            taken += minimums[q] * totals[q]
    if KIND == Q4_1:
        result += taken
    elif KIND == Q4_K:
        d, d_minimum = pair(unit[n], False)
        result = result * d - taken * d_minimum
    elif KIND == Q6_K:
        result *= unit[n].to(tl.float16, bitcast=True).to(tl.float32)
    elif KIND == Q8_0:
        result *= scale[n].to(tl.float16, bitcast=True).to(tl.float32)
    return result
