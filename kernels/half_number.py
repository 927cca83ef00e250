"""Two float16 in a 32-bit word, which one instruction multiplies and adds, and activations on their way to that.

Activations are multiplied by a power of two that brings their largest to where products are exact and sums do not
overflow (`power_of`), which results are multiplied back by.
"""

# mypy: disallow-untyped-defs=False, check-untyped-defs=False, allow-untyped-calls=True

from __future__ import annotations

import triton
import triton.language as tl

from octavo.kernels.quant_number import pair

# ASM of the kernels: PTX before and from compute capability 8.0 on, nothing of it in the interpreter
NO_ASM, OLD_ASM, ASM = range(3)


@triton.jit
def halves(low, high, ASM: tl.constexpr):
    """Two float32 rounded to the float16 of a 32-bit word."""
    if ASM == 2:
        return tl.inline_asm_elementwise(
            "cvt.rn.f16x2.f32 $0, $2, $1;", "=r,r,r", [low, high], dtype=tl.int32, is_pure=True, pack=1
        )
    if ASM == 1:
        return tl.inline_asm_elementwise(
            "{ .reg .b16 l, h; cvt.rn.f16.f32 l, $1; cvt.rn.f16.f32 h, $2; mov.b32 $0, {l, h}; }",
            "=r,r,r", [low, high], dtype=tl.int32, is_pure=True, pack=1,
        )  # fmt: skip
    low_bits = low.to(tl.float16).to(tl.int16, bitcast=True).to(tl.int32) & 0xFFFF
    return low_bits | (high.to(tl.float16).to(tl.int16, bitcast=True).to(tl.int32) << 16)


@triton.jit
def add_products(a, b, c, ASM: tl.constexpr):
    """a * b + c of the two float16 in each 32-bit word."""
    if ASM > 0:
        return tl.inline_asm_elementwise(
            "fma.rn.f16x2 $0, $1, $2, $3;", "=r,r,r,r", [a, b, c], dtype=tl.int32, is_pure=True, pack=1
        )
    a_low, a_high = pair(a, False)
    b_low, b_high = pair(b, False)
    c_low, c_high = pair(c, False)
    return halves(a_low * b_low + c_low, a_high * b_high + c_high, 0)


@triton.jit
def sum_of_halves(w, ASM: tl.constexpr):
    """float32 of the sum of the two float16 in each 32-bit word, rounded to float16 before."""
    if ASM > 0:
        return tl.inline_asm_elementwise(
            "{ .reg .b16 l, h; mov.b32 {l, h}, $1; add.rn.f16 l, l, h; cvt.f32.f16 $0, l; }",
            "=f,r", [w], dtype=tl.float32, is_pure=True, pack=1,
        )  # fmt: skip
    low, high = pair(w, False)
    return (low + high).to(tl.float16).to(tl.float32)


@triton.jit
def weighed_pair(bits, factors, k: tl.constexpr, square, NORM: tl.constexpr, BF16: tl.constexpr):
    """float32 of the two activations in each word, and `square`. If NORM, their squares are added to it, and they are
    then multiplied by the k-th words of factors (NORM 1), or by the k-th two of them, float32 (NORM 2)."""
    low, high = pair(bits, BF16)
    if NORM > 0:
        square += low * low + high * high
        if NORM == 1:
            low_factor, high_factor = pair(factors[k], BF16)
        else:
            low_factor = factors[2 * k]
            high_factor = factors[2 * k + 1]
        low *= low_factor
        high *= high_factor
    return low, high, square


@triton.jit
def power_of(largest, TO: tl.constexpr):
    """The float32 power of two that brings numbers of at least 2^-90 to between 2^TO and 2^(TO + 1), and its
    inverse."""
    exponent = largest.to(tl.int32, bitcast=True) & 0x7F800000
    by = (((127 + TO) << 23) - exponent + (127 << 23)).to(tl.float32, bitcast=True)
    return by, (exponent - (TO << 23)).to(tl.float32, bitcast=True)
