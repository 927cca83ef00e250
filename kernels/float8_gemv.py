"""One or two rows by E4M3 weights on plain multiply-adds: two weights converted, and two products, an instruction.

Grid: one program a block of BLOCK_N output features, over all of the input. A thread keeps 16 codes of every row of the
block in registers (one 16-byte load each), and the 16 activations they meet as float16, scaled by a power of two so
that the largest lies between 4 and 8: eight products of the largest code with it are still within float16's range.
Codes become float16 two at a time, exactly, and one instruction multiplies two of them and adds up. Sums of 16 products
go on in float32. Instructions a weight: 0.5 to convert, 0.5 to multiply, 0.3 to bring sums to float32, 0.8 for
activations (of 8 rows of the weight); scales of groups of columns, applied to the thread's sums, are one more
instruction for eight. Float16 has 11 bits, and a half's sum 8 terms to lose some in: the error is about
that of a result in bfloat16. Norm before, bias, gated activation and residual after as in linear_gemv.py. Bound by
reading the codes once.
"""

# A kernel's tuples grow while it is compiled, which types do not follow.
# mypy: ignore-errors

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from octavo.kernels.half_number import add_products, halves, power_of, weighed_pair
from octavo.kernels.linear_epilogue import of_outputs
from octavo.kernels.linear_lines import four_of, lines_of, store_lines, words_of, zeros_of
from octavo.kernels.quant_number import half_of_e4m3, pair


@triton.jit(do_not_specialize=["outs"])
def float8_gemv_kernel(
    x_ptr,
    norm_ptr,
    words_ptr,
    scale_ptr,
    bias_ptr,
    residual_ptr,
    out_ptr,
    ids_ptr,
    outs,
    eps,
    SIZE: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    NORM: tl.constexpr,
    BF16: tl.constexpr,
    GROUP: tl.constexpr,
    BIAS: tl.constexpr,
    RESIDUAL: tl.constexpr,
    ACT: tl.constexpr,
    BEST: tl.constexpr,
    EARLY: tl.constexpr,
    ASM: tl.constexpr,
):
    """x [ROWS, SIZE] as int32 pairs of float16, or of bfloat16 if BF16; words int32 [outs, SIZE / 4] of four codes, or
    of 2 outs = gate | up if ACT >= 0, with scale [outs]; residual, out [ROWS, outs]. SIZE is a multiple of 16.

    GROUP > 0, a multiple of 16: scale is float32 [outs or 2 outs, groups], one for so many columns. NORM 1: norm is
    pairs as x is; 2: float32. BEST as in linear_epilogue.py.
    """
    GATED: tl.constexpr = ACT >= 0
    LINES: tl.constexpr = 2 * BLOCK_N if GATED else BLOCK_N
    THREADS: tl.constexpr = BLOCK_K // 16
    WORDS: tl.constexpr = SIZE // 4
    first = tl.program_id(0) * BLOCK_N
    word = tl.arange(0, THREADS * 4)
    thread = tl.arange(0, THREADS)
    line = lines_of(first, outs, BLOCK_N, LINES)
    # what no kernel of the step writes is asked for before the kernel that computes x has ended
    w = words_of(words_ptr, line, word, WORDS)
    if GROUP > 0:
        group_scale = _group_scales(scale_ptr, line, thread * 16, SIZE, GROUP)
    if NORM > 0:
        norm = _runs(norm_ptr, word, SIZE, NORM == 2)
    out_col = first + tl.arange(0, BLOCK_N)
    valid = out_col < outs
    scale = of_outputs(scale_ptr, out_col, valid, outs, GATED, GROUP == 0)
    bias = of_outputs(bias_ptr, out_col, valid, outs, GATED, BIAS)
    if EARLY:
        gdc_wait()
        gdc_launch_dependents()
    sums = zeros_of(ROWS * LINES, THREADS)
    squares = zeros_of(ROWS, THREADS)
    x = ()
    residual = ()
    for t in tl.static_range(ROWS):
        x += _runs(x_ptr + t * (SIZE // 2), word, SIZE, False)
        residual += of_outputs(residual_ptr + t * outs, out_col, valid, outs, False, RESIDUAL)
    for begin in range(0, WORDS, THREADS * 4):
        this_w = w
        these = x
        if GROUP > 0:
            this_scale = group_scale
        if NORM > 0:
            this_norm = norm
        if WORDS > THREADS * 4:
            # the next turn's loads are under way while this turn's are used
            ahead = begin + THREADS * 4 + word
            w = words_of(words_ptr, line, ahead, WORDS)
            if GROUP > 0:
                group_scale = _group_scales(scale_ptr, line, (begin + THREADS * 4) * 4 + thread * 16, SIZE, GROUP)
            if NORM > 0:
                norm = _runs(norm_ptr, ahead, SIZE, NORM == 2)
            x = ()
            for t in tl.static_range(ROWS):
                x += _runs(x_ptr + t * (SIZE // 2), ahead, SIZE, False)
        codes = ()
        for n in tl.static_range(LINES):
            codes += four_of(this_w[n])
        new_sums = ()
        new_squares = ()
        for t in tl.static_range(ROWS):
            bits = four_of(these[2 * t]) + four_of(these[2 * t + 1])
            pairs, back, square = _prepared(bits, this_norm if NORM > 0 else bits, squares[t], NORM, BF16, ASM)
            for n in tl.static_range(LINES):
                both = tl.zeros((THREADS,), tl.int32)
                for k in tl.static_range(4):
                    both = _add_four(codes[4 * n + k], pairs[2 * k], pairs[2 * k + 1], both, ASM)
                low, high = pair(both, False)
                by = back * this_scale[n] if GROUP > 0 else back
                new_sums += (sums[t * LINES + n] + by * (low + high),)
            new_squares += (square,)
        sums = new_sums
        squares = new_squares
    store_lines(
        sums, squares, scale, bias, residual, out_ptr, ids_ptr, outs, eps, SIZE, ROWS, BLOCK_N, NORM > 0, ACT, BEST
    )


@triton.jit
def _group_scales(scale_ptr, line, column, SIZE: tl.constexpr, GROUP: tl.constexpr):
    """Of every line the scales of the groups that the columns are in; 0 beyond the row."""
    GROUPS: tl.constexpr = (SIZE + GROUP - 1) // GROUP
    found = ()
    for n in tl.static_range(len(line)):
        found += (tl.load(scale_ptr + line[n] * GROUPS + column // GROUP, mask=column < SIZE, other=0.0),)
    return found


@triton.jit
def _runs(pairs_ptr, word, SIZE: tl.constexpr, WIDE: tl.constexpr):
    """Two tensors [4 threads] of pairs: a thread's two runs of 8 columns. WIDE: four of float32."""
    COUNT: tl.constexpr = 4 if WIDE else 2
    found = ()
    for run in tl.static_range(COUNT):
        at = word // 4 * (4 * COUNT) + run * 4 + word % 4
        found += (tl.load(pairs_ptr + at, mask=at < (SIZE if WIDE else SIZE // 2), other=0),)
    return found


@triton.jit
def _prepared(bits, norm, square, NORM: tl.constexpr, BF16: tl.constexpr, ASM: tl.constexpr):
    """A thread's 16 activations (times the norm's weights) as 8 pairs of float16, what their sums must be multiplied
    by, and the squares (before the norm) added up."""
    factors = ()
    if NORM > 0:
        for part in tl.static_range(len(norm)):
            factors += four_of(norm[part])
    numbers = ()
    largest = tl.full(square.shape, 2.0**-90, tl.float32)
    for k in tl.static_range(8):
        low, high, square = weighed_pair(bits[k], factors, k, square, NORM, BF16)
        largest = tl.maximum(largest, tl.maximum(tl.abs(low), tl.abs(high)))
        numbers += (low, high)
    by, back = power_of(largest, 2)
    pairs = ()
    for k in tl.static_range(8):
        pairs += (halves(numbers[2 * k] * by, numbers[2 * k + 1] * by, 2 if ASM else 0),)
    return pairs, back, square


@triton.jit
def _add_four(w, x_low, x_high, sums, ASM: tl.constexpr):
    """The two float16 in each word of sums, plus products of a word's four codes and two words of activations."""
    if ASM:
        return tl.inline_asm_elementwise(
            "{ .reg .b16 a, b; .reg .b32 l, h; mov.b32 {a, b}, $1;"
            " cvt.rn.f16x2.e4m3x2 l, a; cvt.rn.f16x2.e4m3x2 h, b;"
            " fma.rn.f16x2 l, l, $2, $4; fma.rn.f16x2 $0, h, $3, l; }",
            "=r,r,r,r,r", [w, x_low, x_high, sums], dtype=tl.int32, is_pure=True, pack=1,
        )  # fmt: skip
    for half in tl.static_range(2):
        low = half_of_e4m3((w >> (16 * half)) & 0xFF).to(tl.float32) * 256.0
        high = half_of_e4m3((w >> (16 * half + 8)) & 0xFF).to(tl.float32) * 256.0
        sums = add_products(halves(low, high, 0), x_high if half == 1 else x_low, sums, 0)
    return sums
