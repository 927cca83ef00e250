"""Activations as pairs of signed 8-bit digits inside a kernel, and what whole-number units multiply with them.

A number is step * (256 * upper + lower), step being 1 / 32512 of the largest magnitude that shares it: 15 bits and a
sign below the largest, upper in [-127, 127] and lower in [-128, 127]. Codes of 8 bits are multiplied as they are, of 4
bits after a mask, by tensor cores or by dp4a, four products an instruction; sums are exact in int32. Against the exact
activations that leaves at most sqrt(columns) / 113,000 of a result that a single activation makes, half of bfloat16's
own rounding for 4,096 columns, and less the more evenly activations are spread; and always less than an eighth of what
rounding the weights to 8 bits by row has cost in the first place.
"""

# A kernel's tuples grow while it is compiled, which types do not follow.
# mypy: ignore-errors

from __future__ import annotations

import triton
import triton.language as tl

from octavo.kernels.quant_number import pair


@triton.jit
def larger(a, b):
    """The larger of two numbers, NaN if either is."""
    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def largest(numbers, axis: tl.constexpr):
    """The largest of numbers that are not negative, at least 1e-30 (whose inverse is finite); NaN if there is one."""
    # bits of such numbers compare as the numbers do, those of NaN as more than all
    bits = tl.max(numbers.to(tl.int32, bitcast=True), axis)
    return larger(bits.to(tl.float32, bitcast=True), 1e-30)


@triton.jit
def digit_bits(number, most):
    """int32 whose low 16 bits are number / most * 32512 + 128, rounded to the nearest whole number."""
    # a float of 1.5 * 2^23 and more holds whole numbers in its lowest bits, as two's complement
    return (number * (32512.0 / most) + 12583040.0).to(tl.int32, bitcast=True)


@triton.jit
def digit_step(most):
    """What a whole number of `digit_bits` counts."""
    return most * (1.0 / 32512.0)


@triton.jit
def packed_digits(a, b, c, d, ASM: tl.constexpr):
    """The upper and the lower digits of four `digit_bits`, each four bytes in a word with those of `a` lowest."""
    if ASM:
        upper, lower = tl.inline_asm_elementwise(
            """{ .reg .b32 p, q; prmt.b32 p, $2, $3, 0x5140; prmt.b32 q, $4, $5, 0x5140;
            prmt.b32 $0, p, q, 0x7632; prmt.b32 p, p, q, 0x5410; xor.b32 $1, p, 0x80808080; }""",
            "=r,=r,r,r,r,r",
            [a, b, c, d],
            dtype=(tl.int32, tl.int32),
            is_pure=True,
            pack=1,
        )
    else:
        upper = ((a >> 8) & 255) | (b & 65280) | ((c & 65280) << 8) | ((d & 65280) << 16)
        lower = (a & 255) | ((b & 255) << 8) | ((c & 255) << 16) | ((d & 255) << 24)
        lower ^= -2139062144  # 0x80808080: each is 128 too large
    return upper, lower


@triton.jit
def dot_of_bytes(a, b, sums, ASM: tl.constexpr):
    """sums + the four products of the signed bytes of two words."""
    if ASM:
        return tl.inline_asm_elementwise(
            "dp4a.s32.s32 $0, $1, $2, $3;", "=r,r,r,r", [a, b, sums], dtype=tl.int32, is_pure=True, pack=1
        )
    for i in tl.static_range(4):
        sums += ((a << (24 - 8 * i)) >> 24) * ((b << (24 - 8 * i)) >> 24)
    return sums


@triton.jit
def nibbles(w, ASM: tl.constexpr):
    """The 4-bit codes in the lower and in the upper halves of bytes: as bytes, of words (int32) or of int8."""
    if not ASM:
        if w.dtype == tl.int8:
            return w & 15, (w >> 4) & 15
        else:
            return w & 0x0F0F0F0F, (w >> 4) & 0x0F0F0F0F
    else:
        PACK: tl.constexpr = 4 if w.dtype == tl.int8 else 1
        low = tl.inline_asm_elementwise(
            "and.b32 $0, $1, 0x0f0f0f0f;", "=r,r", [w], dtype=w.dtype, is_pure=True, pack=PACK
        )
        high = tl.inline_asm_elementwise(
            "{ .reg .b32 p; shr.b32 p, $1, 4; and.b32 $0, p, 0x0f0f0f0f; }",
            "=r,r",
            [w],
            dtype=w.dtype,
            is_pure=True,
            pack=PACK,
        )
        return low, high


@triton.jit
def digits_of_pairs(pairs, norm, square, BITS: tl.constexpr, NORM: tl.constexpr, BF16: tl.constexpr, ASM: tl.constexpr):
    """Of activations [parts, 4] in pairs (linear_lines.pairs_of): their squares added to `square`, then, times those of
    a norm if NORM, their upper and lower digits as bytes in the order of the codes, and each part's step [parts]."""
    RUNS: tl.constexpr = 16 // BITS
    lows = ()
    highs = ()
    magnitude = tl.zeros(square.shape, tl.float32)
    for q in tl.static_range(RUNS):
        low, high = pair(pairs[q], BF16)
        if NORM > 0:
            square = high * high + (low * low + square)
            low_norm, high_norm = pair(norm[q], BF16)
            low *= low_norm
            high *= high_norm
        magnitude = larger(magnitude, larger(tl.abs(low), tl.abs(high)))
        lows += (low,)
        highs += (high,)
    most = largest(magnitude, 1)
    uppers = ()
    lowers = ()
    for q in tl.static_range(RUNS // 2):
        # the bytes of a word belong to columns of the q-th run and of one further on, in turn
        upper, lower = packed_digits(
            digit_bits(lows[q], most[:, None]),
            digit_bits(lows[q + RUNS // 2], most[:, None]),
            digit_bits(highs[q], most[:, None]),
            digit_bits(highs[q + RUNS // 2], most[:, None]),
            ASM,
        )
        uppers += (upper,)
        lowers += (lower,)
    return square, uppers, lowers, digit_step(most)


@triton.jit
def whole_sum(upper, lower):
    """float32 of the sums of a part's words [parts, 4], of products with upper and with lower digits."""
    return (tl.sum(upper, 1) * 256 + tl.sum(lower, 1)).to(tl.float32)
