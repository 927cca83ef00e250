"""How GGUF codes and scales become numbers inside a kernel, several at a time and without converting instructions.

A code in the lowest bits of a float16 reads as the subnormal number code * 2^-24, exactly, and up to ten bits do: one
mask makes two codes two factors, whichever bits below the tenth they stand in, and one instruction multiplies and adds
both. Scales of 6 and 8 bits become float32 the same way. Factors of 2^24 and 16 that arise are taken back where it
is cheapest.
"""

# mypy: disallow-untyped-defs=False, check-untyped-defs=False, allow-untyped-calls=True

from __future__ import annotations

import triton
import triton.language as tl

from octavo.kernels.half_number import halves
from octavo.kernels.quant_number import four_bit_operand, pair, two_bfloat16, two_float16

# KIND of the kernels: gguf_weight.KINDS
Q4_0, Q4_1, Q4_K, Q6_K, Q8_0 = (tl.constexpr(number) for number in range(5))


@triton.jit
def less(a, by: tl.constexpr, ASM: tl.constexpr):
    """The two codes in each 32-bit word as float16 less `by`, both times 2^-24; nothing is rounded."""
    if ASM > 0:
        what = tl.full(a.shape, by * 65537 - 2147450880, tl.int32)  # -by in both halves, as subnormal numbers
        return tl.inline_asm_elementwise(
            "add.rn.f16x2 $0, $1, $2;", "=r,r,r", [a, what], dtype=tl.int32, is_pure=True, pack=1
        )
    low, high = pair(a, False)
    return halves(low - by / 16777216.0, high - by / 16777216.0, 0)


@triton.jit
def swapped(w, swap, ASM: tl.constexpr):
    """32-bit words whose halves' bytes change places where `swap` is 1 (else 0)."""
    if ASM > 0:
        return tl.inline_asm_elementwise(
            "prmt.b32 $0, $1, 0, $2;", "=r,r,r", [w, 0x3210 - swap * 0x0F0F], dtype=tl.int32, is_pure=True, pack=1
        )
    other = ((w >> 8) & 0x00FF00FF) | ((w & 0x00FF00FF) << 8)
    return tl.where(swap == 1, other, w)


@triton.jit
def byte_numbers(w):
    """float32 of the four bytes of 32-bit words, each times 2^-24."""
    first, third = pair(w & 0x00FF00FF, False)
    second, fourth = pair((w >> 8) & 0x00FF00FF, False)
    return first, second, third, fourth


@triton.jit
def half_numbers(w):
    """float32 of the four float16 of 64-bit words."""
    first, second = pair(w.to(tl.int32), False)
    third, fourth = pair((w >> 32).to(tl.int32), False)
    return first, second, third, fourth


@triton.jit
def signed_numbers(w):
    """float32 of the four signed bytes of 32-bit words, each times 2^-24."""
    first, second, third, fourth = byte_numbers(w ^ -2139062144)  # 0x80808080: 128 more, without a sign
    by: tl.constexpr = 128.0 / 16777216.0
    return first - by, second - by, third - by, fourth - by


# Two words each at a time: shifted to their places, the q-th four bits and the fifth go into the mantissas of two 32s.
FIVE_INTO_BFLOAT16: tl.constexpr = tl.constexpr(
    tuple(
        f"{{ .reg .b32 a, b; {low} a, $1, {by}; {high} b, $2, {above};"
        " lop3.b32 a, a, 0x003c003c, 0x42004200, 0xea; lop3.b32 $0, b, 0x00400040, a, 0xea; }"
        for low, by, high, above in (
            ("shl.b32", 2, "shl.b32", 6),
            ("shr.b32", 2, "shl.b32", 2),
            ("shr.b32", 6, "shr.b32", 2),
            ("shr.b32", 10, "shr.b32", 6),
        )
    )
)
FIVE_INTO_FLOAT16: tl.constexpr = tl.constexpr(
    tuple(
        f"{{ .reg .b32 a, b; {low} a, $1, {by}; {high} b, $2, {above};"
        " lop3.b32 a, a, 0x01e001e0, 0x50005000, 0xea; lop3.b32 $0, b, 0x02000200, a, 0xea; }"
        for low, by, high, above in (
            ("shl.b32", 5, "shl.b32", 9),
            ("shl.b32", 1, "shl.b32", 5),
            ("shr.b32", 3, "shl.b32", 1),
            ("shr.b32", 7, "shr.b32", 3),
        )
    )
)


@triton.jit
def five_bit_operand(
    w, fifth, q: tl.constexpr, less: tl.constexpr, dtype: tl.constexpr, BF16: tl.constexpr, ASM: tl.constexpr
):
    """32 + code - less of five-bit codes, exact in a 16-bit type: the q-th four bits of 16-bit words w, and above them
    the lowest of the q-th four bits of `fifth`; less is 0 or 48."""
    if not ASM:
        code = ((w >> (4 * q)) & 15) | ((fifth >> (4 * q)) & 1) << 4
        made = (code.to(tl.float32) + (32.0 - less)).to(dtype)
    elif BF16:
        made = tl.inline_asm_elementwise(
            FIVE_INTO_BFLOAT16[q], "=r,r,r", [w, fifth], dtype=tl.bfloat16, is_pure=True, pack=2
        )
        if less == 48:
            made = two_bfloat16("{ .reg .b32 a, b; mov.b32 a, 0x3f803f80; mov.b32 b, 0xc240c240; " + _ADD, made)
    else:
        made = tl.inline_asm_elementwise(
            FIVE_INTO_FLOAT16[q], "=r,r,r", [w, fifth], dtype=tl.float16, is_pure=True, pack=2
        )
        if less == 48:
            made = two_float16("{ .reg .b32 b; mov.b32 b, 0xd200d200; add.rn.f16x2 $0, $1, b; }", made)
    return made


@triton.jit
def low_operand(w, q: tl.constexpr, dtype: tl.constexpr, BF16: tl.constexpr, ASM: tl.constexpr):
    """The q-th 4-bit codes of 16-bit words less what `high_operand` adds and 32: exact in a 16-bit type."""
    if ASM == 0:
        made = (((w >> (4 * q)) & 15).to(tl.float32) - (160.0 if BF16 else 1056.0)).to(dtype)
    else:
        made = four_bit_operand(w, q, 0, dtype, BF16, True)
        if BF16:  # less 176
            made = two_bfloat16("{ .reg .b32 a, b; mov.b32 a, 0x3f803f80; mov.b32 b, 0xc330c330; " + _ADD, made)
        else:  # less 1072
            made = two_float16("{ .reg .b32 b; mov.b32 b, 0xe430e430; add.rn.f16x2 $0, $1, b; }", made)
    return made


@triton.jit
def high_operand(w, g: tl.constexpr, dtype: tl.constexpr, BF16: tl.constexpr, ASM: tl.constexpr):
    """16 times the g-th 2-bit codes of 16-bit words (gguf_weight.HIGH_BITS) and 128, or 1,024 in float16."""
    bit: tl.constexpr = (4 + g % 2 * 4 + g // 2 % 2 * 2 + g // 4 * 8) % 16
    if ASM == 0:
        made = (((w >> bit) & 3).to(tl.float32) * 16.0 + (128.0 if BF16 else 1024.0)).to(dtype)
    # the two bits go to bits 4 and 5, where they are 16 and 32 times the last one of the mantissa of 128 or 1,024
    elif bit == 0:
        made = _placed("shl.b32 $0, $1, 4;", w, BF16)
    elif bit == 2:
        made = _placed("shl.b32 $0, $1, 2;", w, BF16)
    elif bit == 4:
        made = _placed("mov.b32 $0, $1;", w, BF16)
    elif bit == 6:
        made = _placed("shr.b32 $0, $1, 2;", w, BF16)
    elif bit == 8:
        made = _placed("shr.b32 $0, $1, 4;", w, BF16)
    elif bit == 10:
        made = _placed("shr.b32 $0, $1, 6;", w, BF16)
    elif bit == 12:
        made = _placed("shr.b32 $0, $1, 8;", w, BF16)
    else:
        made = _placed("shr.b32 $0, $1, 10;", w, BF16)
    return made


@triton.jit
def _placed(shift: tl.constexpr, w, BF16: tl.constexpr):
    if BF16:
        made = two_bfloat16(shift + _INTO_128, w)
    else:
        made = two_float16(shift + _INTO_1024, w)
    return made


_ADD: tl.constexpr = tl.constexpr("fma.rn.bf16x2 $0, $1, a, b; }")
_INTO_128: tl.constexpr = tl.constexpr(" lop3.b32 $0, $0, 0x00300030, 0x43004300, 0xea;")
_INTO_1024: tl.constexpr = tl.constexpr(" lop3.b32 $0, $0, 0x00300030, 0x64006400, 0xea;")
