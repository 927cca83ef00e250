"""One or two rows by E4M3 weights on plain multiply-adds: two weights converted, and two products, an instruction.

Grid: one program a block of BLOCK_N output features, over all of the input. A thread keeps 16 codes of every row of the
block in registers (one 16-byte load each), and the 16 activations they meet as float16, scaled by a power of two so
that the largest lies between 4 and 8: eight products of the largest code with it are still within float16's range.
Codes become float16 two at a time, exactly, and one instruction multiplies two of them and adds up. Sums of 16 products
go on in float32. Instructions a weight: 0.5 to convert, 0.5 to multiply, 0.3 to bring sums to float32, 0.8 for
activations (of 8 rows of the weight). Float16 has 11 bits, and a half's sum 8 terms to lose some in: the error is about
that of a result in bfloat16. Norm before, bias, gated activation and residual after as in linear_gemv.py. Bound by
reading the codes once.
"""

# A kernel's tuples grow while it is compiled, which types do not follow.
# mypy: ignore-errors

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from octavo.kernels.gguf_number import add_products, halves
from octavo.kernels.linear_epilogue import store_row
from octavo.kernels.quant_gemv import summed
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
    BIAS: tl.constexpr,
    RESIDUAL: tl.constexpr,
    ACT: tl.constexpr,
    BEST: tl.constexpr,
    EARLY: tl.constexpr,
    ASM: tl.constexpr,
):
    """x [ROWS, SIZE] as int32 pairs of float16, or of bfloat16 if BF16; words int32 [outs, SIZE / 4] of four codes, or
    of 2 outs = gate | up if ACT >= 0, with scale [outs]; residual, out [ROWS, outs]. SIZE is a multiple of 16.

    NORM 1: norm is pairs as x is; 2: float32. BEST as in linear_epilogue.py.
    """
    GATED: tl.constexpr = ACT >= 0
    LINES: tl.constexpr = 2 * BLOCK_N if GATED else BLOCK_N
    THREADS: tl.constexpr = BLOCK_K // 16
    WORDS: tl.constexpr = SIZE // 4
    first = tl.program_id(0) * BLOCK_N
    word = tl.arange(0, THREADS * 4)
    # Every row of the weight is a tensor of its own, one entry a thread: so all of them meet in registers.
    line = ()
    for n in tl.static_range(LINES):
        row = tl.minimum(first + n % BLOCK_N, outs - 1).to(tl.int64)
        line += (row + outs if n >= BLOCK_N else row,)
    # what no kernel of the step writes is asked for before the kernel that computes x has ended
    w = _codes(words_ptr, line, word, WORDS)
    if NORM > 0:
        norm = _runs(norm_ptr, word, SIZE, NORM == 2)
    out_col = first + tl.arange(0, BLOCK_N)
    valid = out_col < outs
    scale = tl.load(scale_ptr + out_col, mask=valid, other=0.0).to(tl.float32)
    if GATED:
        up_scale = tl.load(scale_ptr + outs + out_col, mask=valid, other=0.0).to(tl.float32)
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
            sums += (tl.zeros((THREADS,), tl.float32),)
        squares += (tl.zeros((THREADS,), tl.float32),)
        x += _runs(x_ptr + t * (SIZE // 2), word, SIZE, False)
        if RESIDUAL:
            residual += (tl.load(residual_ptr + t * outs + out_col, mask=valid, other=0.0),)
    for begin in range(0, WORDS, THREADS * 4):
        this_w = w
        these = x
        if NORM > 0:
            this_norm = norm
        if WORDS > THREADS * 4:
            # the next turn's loads are under way while this turn's are used
            ahead = begin + THREADS * 4 + word
            w = _codes(words_ptr, line, ahead, WORDS)
            if NORM > 0:
                norm = _runs(norm_ptr, ahead, SIZE, NORM == 2)
            x = ()
            for t in tl.static_range(ROWS):
                x += _runs(x_ptr + t * (SIZE // 2), ahead, SIZE, False)
        codes = ()
        for n in tl.static_range(LINES):
            codes += _split(this_w[n])
        new_sums = ()
        new_squares = ()
        for t in tl.static_range(ROWS):
            bits = _split(these[2 * t]) + _split(these[2 * t + 1])
            pairs, back, square = _prepared(bits, this_norm if NORM > 0 else bits, squares[t], NORM, BF16, ASM)
            for n in tl.static_range(LINES):
                both = tl.zeros((THREADS,), tl.int32)
                for k in tl.static_range(4):
                    both = _add_four(codes[4 * n + k], pairs[2 * k], pairs[2 * k + 1], both, ASM)
                low, high = pair(both, False)
                new_sums += (sums[t * LINES + n] + back * (low + high),)
            new_squares += (square,)
        sums = new_sums
        squares = new_squares
    for t in tl.static_range(ROWS):
        y = summed(sums, t * LINES, BLOCK_N) * scale
        u = y
        if GATED:
            u = summed(sums, t * LINES + BLOCK_N, BLOCK_N) * up_scale
        store_row(
            y, u, squares[t], bias if BIAS else y, up_bias if BIAS and GATED else y, residual[t] if RESIDUAL else y,
            out_ptr, ids_ptr, outs, eps, t, SIZE, BLOCK_N, NORM > 0, BIAS, RESIDUAL, ACT, BEST,
        )  # fmt: skip


@triton.jit
def _codes(words_ptr, line, word, WORDS: tl.constexpr):
    """Of every row, what each thread has of it, read once and not kept in the caches: [4 threads] words."""
    found = ()
    for n in tl.static_range(len(line)):
        address = words_ptr + line[n] * WORDS + word
        found += (tl.load(address, mask=word < WORDS, other=0, eviction_policy="evict_first"),)
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
def _split(w):
    """[4 threads] words as four tensors [threads]."""
    even, odd = tl.split(w.reshape(w.shape[0] // 4, 2, 2))
    first, third = tl.split(even)
    second, fourth = tl.split(odd)
    return first, second, third, fourth


@triton.jit
def _prepared(bits, norm, square, NORM: tl.constexpr, BF16: tl.constexpr, ASM: tl.constexpr):
    """A thread's 16 activations (times the norm's weights) as 8 pairs of float16, what their sums must be multiplied
    by, and the squares (before the norm) added up."""
    if NORM == 1:
        factors = _split(norm[0]) + _split(norm[1])
    elif NORM == 2:
        factors = _split(norm[0]) + _split(norm[1]) + _split(norm[2]) + _split(norm[3])
    numbers = ()
    largest = tl.full(square.shape, 2.0**-90, tl.float32)
    for k in tl.static_range(8):
        low, high = pair(bits[k], BF16)
        if NORM > 0:
            square += low * low + high * high
            if NORM == 1:
                low_factor, high_factor = pair(factors[k], BF16)
            else:
                low_factor = factors[2 * k]
                high_factor = factors[2 * k + 1]
            low *= low_factor
            high *= high_factor
        largest = tl.maximum(largest, tl.maximum(tl.abs(low), tl.abs(high)))
        numbers += (low, high)
    exponent = largest.to(tl.int32, bitcast=True) & 0x7F800000
    # 2^(2 - e) for a largest number between 2^e and 2^(e + 1)
    by = ((129 << 23) - exponent + (127 << 23)).to(tl.float32, bitcast=True)
    back = (exponent - (2 << 23)).to(tl.float32, bitcast=True)
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
