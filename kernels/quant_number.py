"""How codes become numbers inside a kernel: 8-bit codes one by one, 4-bit codes by bits of a float's mantissa.

A 4-bit code that is put into the upper bits of the mantissa of 2^4 or 2^8 reads as 16 + code or 256 + code: one shift
serves several codes, one masked or makes each a number, and what was added is taken away where it is cheapest.
E4M3 has the bits of a float16 but for its exponent, whose bias is 8 smaller: moved up, they read as number / 256.
"""

# mypy: disallow-untyped-defs=False, check-untyped-defs=False, allow-untyped-calls=True

from __future__ import annotations

import triton
import triton.language as tl

# CODE of the kernels. E4M3 needs compute capability 8.9; those in pairs, two numbers at a time by whole-number
# instructions, a GPU of 8.0 and bfloat16; from INT8_WORDS on, a weight's entries are words of two int8 codes.
PLAIN, INT8, E4M3, E4M3_BY_BITS, E4M3_PAIRS, INT8_WORDS, INT8_WORD_PAIRS = range(7)


@triton.jit
def wide_number(w, CODE: tl.constexpr):
    """float32 of a weight's entries; of E4M3_BY_BITS, 1/256 of it."""
    if CODE == 2:
        return w.to(tl.float8e4nv, bitcast=True).to(tl.float32)
    if CODE == 3:
        return half_of_e4m3(w).to(tl.float32)
    return w.to(tl.float32)


@triton.jit
def operand(w, dtype: tl.constexpr, CODE: tl.constexpr, half: tl.constexpr):
    """The same as an operand of a matrix product in a 16-bit type (or float32); all are exact in it. Of words, the
    lower (half 0) or upper codes; of E4M3_PAIRS, the numbers themselves."""
    if CODE == 0:
        return w
    if CODE == 2:
        return w.to(tl.float8e4nv, bitcast=True).to(dtype)
    if CODE == 3:
        return half_of_e4m3(w).to(dtype)
    if CODE == 4:
        return tl.inline_asm_elementwise(
            _E4M3_INTO_BFLOAT16, "=r,=r,r", [w], dtype=tl.bfloat16, is_pure=True, pack=4
        )  # fmt: skip
    if CODE >= 5:
        return eight_bit_operand(w, half, dtype, CODE == 6)
    return w.to(dtype)


# E4M3's exponent, moved to the end of bfloat16's, reads as 120 less.
_E4M3_INTO_BFLOAT16: tl.constexpr = tl.constexpr("""
{ .reg .b32 p, s, more, none, zero; mov.b32 more, 0x7b807b80; mov.b32 none, 0x80008000; mov.b32 zero, 0;
prmt.b32 p, $2, zero, 0x1404; shr.b32 s, p, 4; and.b32 s, s, 0x07f007f0; lop3.b32 p, p, 0x80008000, s, 0xea;
fma.rn.bf16x2 $0, p, more, none;
prmt.b32 p, $2, zero, 0x3424; shr.b32 s, p, 4; and.b32 s, s, 0x07f007f0; lop3.b32 p, p, 0x80008000, s, 0xea;
fma.rn.bf16x2 $1, p, more, none; }
""")


@triton.jit
def scaled_by_bits(scale, CODE: tl.constexpr):
    """float32 of the scales that the sums of codes are multiplied by."""
    if CODE == 3:
        return scale.to(tl.float32) * 256.0
    return scale.to(tl.float32)


@triton.jit
def half_of_e4m3(w):
    """float16 of 1/256 of E4M3 numbers given as uint8; a NaN becomes 1.875."""
    bits = w.to(tl.int16)
    return (((bits & 0x80) << 8) | ((bits & 0x7F) << 7)).to(tl.float16, bitcast=True)


@triton.jit
def nibble(w, q: tl.constexpr, upper: tl.constexpr, ASM: tl.constexpr):
    """float32 of the q-th 4-bit code of the lower or upper half of 32-bit words, plus 16 if q is odd, else 256."""
    # an odd code goes to bits 19 to 22, the even one before it then lies in bits 15 to 18: one shift for both
    at: tl.constexpr = 16 * upper + 4 * (q | 1)
    if at > 19:
        w = w >> (at - 19)
    else:
        w = w << (19 - at)
    if ASM:  # as one instruction, which the compiler makes two of
        if q % 2 == 1:
            bits = _mask_or("lop3.b32 $0, $1, 0x00780000, 0x41800000, 0xea;", w)
        else:
            bits = _mask_or("lop3.b32 $0, $1, 0x00078000, 0x43800000, 0xea;", w)
    elif q % 2 == 1:
        bits = (w & 0x00780000) | 0x41800000
    else:
        bits = (w & 0x00078000) | 0x43800000
    return bits.to(tl.float32, bitcast=True)


@triton.jit
def _mask_or(instruction: tl.constexpr, w):
    return tl.inline_asm_elementwise(instruction, "=r,r", [w], dtype=tl.int32, is_pure=True, pack=1)


@triton.jit
def pair(bits, BF16: tl.constexpr):
    """float32 of the two numbers in each word, the lower one first: 16-bit floats in 32 bits, float32 in 64."""
    if bits.dtype == tl.int64:
        low = bits.to(tl.int32).to(tl.float32, bitcast=True)
        return low, (bits >> 32).to(tl.int32).to(tl.float32, bitcast=True)
    elif BF16:
        return (bits << 16).to(tl.float32, bitcast=True), (bits & -65536).to(tl.float32, bitcast=True)
    else:
        low = bits.to(tl.int16).to(tl.float16, bitcast=True)
        high = (bits >> 16).to(tl.int16).to(tl.float16, bitcast=True)
        return low.to(tl.float32), high.to(tl.float32)


@triton.jit
def four_bit_operand(
    w, q: tl.constexpr, less: tl.constexpr, dtype: tl.constexpr, BF16: tl.constexpr, ASM: tl.constexpr
):
    """16 + code - less of the q-th 4-bit codes of 16-bit words, exact in a 16-bit type; less is 0, 16 or 24."""
    if not ASM:
        made = (((w >> (4 * q)) & 15).to(tl.float32) + (16.0 - less)).to(dtype)
    elif BF16:
        if q == 0:
            made = two_bfloat16("shl.b32 $0, $1, 3;" + _INTO_BFLOAT16, w)
        elif q == 1:
            made = two_bfloat16("shr.b32 $0, $1, 1;" + _INTO_BFLOAT16, w)
        elif q == 2:
            made = two_bfloat16("shr.b32 $0, $1, 5;" + _INTO_BFLOAT16, w)
        else:
            made = two_bfloat16("shr.b32 $0, $1, 9;" + _INTO_BFLOAT16, w)
        if less == 16:
            made = two_bfloat16("{ .reg .b32 b; mov.b32 b, 0xc180c180;" + _ADD_BFLOAT16, made)
        elif less == 24:
            made = two_bfloat16("{ .reg .b32 b; mov.b32 b, 0xc1c0c1c0;" + _ADD_BFLOAT16, made)
    else:
        if q == 0:
            made = two_float16("shl.b32 $0, $1, 6;" + _INTO_FLOAT16, w)
        elif q == 1:
            made = two_float16("shl.b32 $0, $1, 2;" + _INTO_FLOAT16, w)
        elif q == 2:
            made = two_float16("shr.b32 $0, $1, 2;" + _INTO_FLOAT16, w)
        else:
            made = two_float16("shr.b32 $0, $1, 6;" + _INTO_FLOAT16, w)
        if less == 16:
            made = two_float16("{ .reg .b32 b; mov.b32 b, 0xcc00cc00; add.rn.f16x2 $0, $1, b; }", made)
        elif less == 24:
            made = two_float16("{ .reg .b32 b; mov.b32 b, 0xce00ce00; add.rn.f16x2 $0, $1, b; }", made)
    return made


@triton.jit
def eight_bit_operand(w, q: tl.constexpr, dtype: tl.constexpr, PAIRS: tl.constexpr):
    """The q-th int8 codes of 16-bit words; PAIRS: two at a time, on a GPU and in bfloat16."""
    if not PAIRS:
        made = ((w << (8 - 8 * q)).to(tl.int16) >> 8).to(dtype)
    elif q == 0:
        made = two_bfloat16("{ .reg .b32 p, s, one; mov.b32 one, 0x3f803f80; mov.b32 p, $1;" + _BYTES_INTO_BFLOAT16, w)
    else:
        made = two_bfloat16(
            "{ .reg .b32 p, s, one; mov.b32 one, 0x3f803f80; shr.b32 p, $1, 8;" + _BYTES_INTO_BFLOAT16, w
        )
    return made


@triton.jit
def scaled_operand(number, scale, shift, SHIFTED: tl.constexpr, BF16: tl.constexpr, ASM: tl.constexpr):
    """number * scale + shift, rounded once."""
    if ASM:
        if SHIFTED:
            if BF16:
                return _scaled("fma.rn.bf16x2 $0, $1, $2, $3;", number, scale, shift)
            return _scaled("fma.rn.f16x2 $0, $1, $2, $3;", number, scale, shift)
        return number * scale
    wide = number.to(tl.float32) * scale.to(tl.float32)
    if SHIFTED:
        wide += shift.to(tl.float32)
    return wide.to(number.dtype)


@triton.jit
def _scaled(instructions: tl.constexpr, number, scale, shift):
    return tl.inline_asm_elementwise(
        instructions, "=r,r,r,r", [number, scale, shift], dtype=number.dtype, is_pure=True, pack=2
    )


@triton.jit
def scaled_by_pair(number, scale, shift, half: tl.constexpr, SHIFTED: tl.constexpr, BF16: tl.constexpr):
    """The same with 16-bit scales and shifts from the lower (half 0) or upper halves of 32-bit words, on a GPU."""
    low: tl.constexpr = "{ .reg .b32 a, b; prmt.b32 a, $2, $2, 0x1010; prmt.b32 b, $4, $4, 0x1010; "
    high: tl.constexpr = "{ .reg .b32 a, b; prmt.b32 a, $2, $2, 0x3232; prmt.b32 b, $4, $4, 0x3232; "
    take: tl.constexpr = low if half == 0 else high
    none: tl.constexpr = "" if SHIFTED else "mov.b32 b, 0x80008000; "
    apply: tl.constexpr = "fma.rn.bf16x2 $0, $1, a, b; }" if BF16 else "fma.rn.f16x2 $0, $1, a, b; }"
    return tl.inline_asm_elementwise(
        take + none + apply, "=r,r,r,r,r,r", [number, scale, shift], dtype=number.dtype, is_pure=True, pack=2
    )


# The lower bytes of two words: their seven lower bits in the mantissa of 128 are 128 + what they stand for; 128 is
# taken away, or 256 where the sign bit is set.
_BYTES_INTO_BFLOAT16: tl.constexpr = tl.constexpr(
    " lop3.b32 s, p, 0x00800080, 0xc300c300, 0xea; lop3.b32 p, p, 0x007f007f, 0x43004300, 0xea;"
    " fma.rn.bf16x2 $0, p, one, s; }"
)

# Two words at a time: after a shift, one instruction masks both codes and puts them into the mantissas of two 16s.
_INTO_BFLOAT16: tl.constexpr = tl.constexpr(" lop3.b32 $0, $0, 0x00780078, 0x41804180, 0xea;")
_INTO_FLOAT16: tl.constexpr = tl.constexpr(" lop3.b32 $0, $0, 0x03c003c0, 0x4c004c00, 0xea;")
# bfloat16 can be added as a multiply-add before compute capability 9.0
_ADD_BFLOAT16: tl.constexpr = tl.constexpr(" .reg .b32 a; mov.b32 a, 0x3f803f80; fma.rn.bf16x2 $0, $1, a, b; }")


@triton.jit
def two_bfloat16(instructions: tl.constexpr, w):
    """bfloat16 of 16-bit entries by instructions that make two in $0 of the two in $1."""
    return tl.inline_asm_elementwise(instructions, "=r,r", [w], dtype=tl.bfloat16, is_pure=True, pack=2)


@triton.jit
def two_float16(instructions: tl.constexpr, w):
    """The same of float16."""
    return tl.inline_asm_elementwise(instructions, "=r,r", [w], dtype=tl.float16, is_pure=True, pack=2)
