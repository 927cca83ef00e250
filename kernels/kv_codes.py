"""8-bit keys and values on the device: rounding to codes, and back. The formats are described in kv_format.py.

Where dots reach tensor cores, codes are multiplied as bfloat16 (float32 where the interpreter runs), which holds every
code of both formats exactly. Tiles are loaded as 16-bit words of two neighbouring channels, since 8-bit operands cannot
be transposed on their way to tensor cores; a word's bytes then become one element each of an even and an odd operand:
q k = q_even k_even + q_odd k_odd, and values come out as even and odd channels. Decoding is a few integer instructions
for four codes, on every generation from 8.0 on. An E4M3 code moved to the place of bfloat16's exponent is its value
times 2^-120 (float32: the same), subnormal numbers included; the factor is put into queries and weights, split so that
nothing leaves the range of float32.
"""

# mypy: disallow-untyped-defs=False, check-untyped-defs=False, allow-untyped-calls=True

import triton
import triton.language as tl

from octavo.kernels import kv_format

INT8 = tl.constexpr(kv_format.INT8)
FP8 = tl.constexpr(kv_format.FP8)

_LEAST_PEAK = tl.constexpr(kv_format.LEAST_PEAK)
_INT8_LARGEST = tl.constexpr(kv_format.INT8_LARGEST)
_INT8_INVERSE = tl.constexpr(1 / kv_format.INT8_LARGEST)
_FP8_INVERSE = tl.constexpr(1 / kv_format.FP8_LARGEST)

# Two words in, one register of two bfloat16 out.
_EVEN_FP8 = tl.constexpr(
    "{ .reg .b32 a, b; shl.b32 a, $1, 4; shl.b32 b, $1, 8; and.b32 a, a, 0x07f007f0;"
    " lop3.b32 $0, b, 0x80008000, a, 0xea; }"  # (b & signs) | a
)
_ODD_FP8 = tl.constexpr(
    "{ .reg .b32 a; shr.b32 a, $1, 4; and.b32 a, a, 0x07f007f0; lop3.b32 $0, $1, 0x80008000, a, 0xea; }"
)
# 128 + the low seven bits, less 128 or (with the sign bit) 256.
_EVEN_INT8 = tl.constexpr(
    "{ .reg .b32 a, b, c; lop3.b32 a, $1, 0x007f007f, 0x43004300, 0xea; lop3.b32 b, $1, 0x00800080, 0x43004300, 0xea;"
    " mov.b32 c, 0xbf80bf80; fma.rn.bf16x2 $0, b, c, a; }"
)
_ODD_INT8 = tl.constexpr(
    "{ .reg .b32 a, b, c; shr.b32 c, $1, 8; lop3.b32 a, c, 0x007f007f, 0x43004300, 0xea;"
    " lop3.b32 b, c, 0x00800080, 0x43004300, 0xea; mov.b32 c, 0xbf80bf80; fma.rn.bf16x2 $0, b, c, a; }"
)


@triton.jit
def scale_of(peak, check, KV: tl.constexpr):
    """(scale, factor to codes) of heads whose largest magnitudes are `peak`; `check` is NaN where a number is not
    finite, else 0."""
    peak = tl.maximum(peak, _LEAST_PEAK)
    if KV == FP8:
        bits = (peak * _FP8_INVERSE).to(tl.int32, bitcast=True)
        exponent = (bits + 0x7FFFFF) & 0x7F800000
        scale = exponent.to(tl.float32, bitcast=True)
        inverse = (0x7F000000 - exponent).to(tl.float32, bitcast=True)
    else:
        scale = peak * _INT8_INVERSE
        inverse = tl.div_rn(_INT8_LARGEST, peak)
    return scale + check, inverse


@triton.jit
def codes_of(x, KV: tl.constexpr):
    """Numbers within the code's range as codes, rounded to the nearest, ties to even; uint8."""
    if KV == FP8:
        bits = x.to(tl.int32, bitcast=True)
        magnitude = bits & 0x7FFFFFFF
        normal = ((magnitude + 0x7FFFF + ((magnitude >> 20) & 1)) >> 20) - (120 << 3)
        # below 2^-6 codes are multiples of 2^-9: so are the last bits of numbers from 2^14 on
        subnormal = (tl.abs(x) + 16384.0).to(tl.int32, bitcast=True) - 0x46800000
        code = tl.minimum(tl.where(magnitude < 0x3C800000, subnormal, normal), 0x7E)
        code = code | ((bits >> 24) & 0x80)
    else:
        code = (x + 12582912.0).to(tl.int32, bitcast=True) - 0x4B400000  # whole numbers are the last bits there
    return (code & 0xFF).to(tl.uint8)


@triton.jit
def encode(x, KV: tl.constexpr):
    """Heads x [M, D] as (codes uint8 [M, D], scales [M]); channels that do not count are 0."""
    x = x.to(tl.float32)
    scale, inverse = scale_of(tl.max(tl.abs(x), 1), tl.sum(x * 0.0, 1), KV)
    return codes_of(x * inverse[:, None], KV), scale


@triton.jit
def decode(codes, KV: tl.constexpr):
    """uint8 codes as float32 values, not yet scaled."""
    wide = codes.to(tl.int32)
    if KV == FP8:
        bits = ((wide & 0x80) << 24) | ((wide & 0x7F) << 20)
        values = bits.to(tl.float32, bitcast=True) * 1.329227995784916e36  # 2^120
    else:
        values = ((wide << 24) >> 24).to(tl.float32)
    return values


@triton.jit
def rounded(x, KV: tl.constexpr):
    """(x [M, D] as it will be read, float32; codes; scales)."""
    codes, scale = encode(x, KV)
    return decode(codes, KV) * scale[:, None], codes, scale


@triton.jit
def pairs(codes):
    """uint8 [M, D] as words [M, D // 2], the first of two neighbours in the low byte."""
    even, odd = tl.split(tl.reshape(codes, [codes.shape[0], codes.shape[1] // 2, 2]))
    return even.to(tl.uint16) | (odd.to(tl.uint16) << 8)


@triton.jit
def even_codes(words, KV: tl.constexpr, WIDE: tl.constexpr):
    """The low bytes' values, of FP8 times 2^-120: bfloat16, float32 if WIDE."""
    if WIDE:
        wide = words.to(tl.int32)
        if KV == FP8:
            values = (((wide & 0x80) << 24) | ((wide & 0x7F) << 20)).to(tl.float32, bitcast=True)
        else:
            values = ((wide << 24) >> 24).to(tl.float32)
    elif KV == FP8:
        values = tl.inline_asm_elementwise(_EVEN_FP8, "=r,r", [words], dtype=tl.bfloat16, is_pure=True, pack=2)
    else:
        values = tl.inline_asm_elementwise(_EVEN_INT8, "=r,r", [words], dtype=tl.bfloat16, is_pure=True, pack=2)
    return values


@triton.jit
def odd_codes(words, KV: tl.constexpr, WIDE: tl.constexpr):
    """The high bytes' values, as `even_codes`."""
    if WIDE:
        wide = words.to(tl.int32)
        if KV == FP8:
            values = (((wide & 0x8000) << 16) | ((wide & 0x7F00) << 12)).to(tl.float32, bitcast=True)
        else:
            values = ((wide << 16) >> 24).to(tl.float32)
    elif KV == FP8:
        values = tl.inline_asm_elementwise(_ODD_FP8, "=r,r", [words], dtype=tl.bfloat16, is_pure=True, pack=2)
    else:
        values = tl.inline_asm_elementwise(_ODD_INT8, "=r,r", [words], dtype=tl.bfloat16, is_pure=True, pack=2)
    return values
