"""How 4-bit codes that name numbers of a table become these numbers inside a kernel: looked up by permuting bytes.

One byte permutation picks four bytes out of eight by the lower three bits of four codes at once. So the upper bytes of
four 16-bit numbers are two such picks, from either half of the table, and a third one that takes each byte from one or
the other by its code's highest bit; the lower bytes cost the same again, unless all are zero, and another permutation
puts the bytes of two numbers side by side. That is 3 instructions a code for an operand, 2.6 where eight are looked up
at a time; without lower bytes 2.3 and 1.9. E2M1 has the bits of a bfloat16 but for its exponent, whose bias is 126
smaller, and is shifted into place there, 2 instructions and half a product a code. One row loads the table's bytes:
constants are moved into registers before each use. Tiles have constants all the same: what is looked up in something
loaded reaches the tensor cores by way of shared memory.

A table's numbers are rounded to the 16-bit type (those of E2M1 and IQ4 are exact in both), scales stay as they are: a
weight is rounded once, as a decoded one is.
"""

# mypy: disallow-untyped-defs=False, check-untyped-defs=False, allow-untyped-calls=True

from __future__ import annotations

from functools import lru_cache

import torch
import triton
import triton.language as tl
from torch import Tensor

from octavo.kernels.code_tables import TABLES
from octavo.kernels.quant_number import half_of_e4m3

TABLE_NUMBERS = {name: number for number, name in enumerate(TABLES, 1)}  # TABLE of the kernels; 0: whole numbers


@lru_cache(maxsize=64)
def table_of(name: str, device: torch.device) -> Tensor:
    """A table's numbers, float32 [16]. They must be there before a graph is captured."""
    return torch.tensor(TABLES[name], device=device)


@lru_cache(maxsize=64)
def table_bytes(name: str, device: torch.device) -> Tensor:
    """The same as float16, int32 [8]: the numbers' upper bytes, four a word, and their lower ones."""
    return torch.tensor(_FLOAT16_BYTES[name], dtype=torch.int32, device=device)


def _bytes_of(name: str, dtype: torch.dtype) -> list[int]:
    numbers = torch.tensor(TABLES[name]).to(dtype).view(torch.uint8).view(16, 2)
    return numbers.t().flip(0).contiguous().view(torch.int32).flatten().tolist()


_FLOAT16_BYTES = {name: _bytes_of(name, torch.float16) for name in TABLES}  # where tensors may have no numbers


@triton.jit
def load_table(table_ptr):
    """The words of `table_bytes` as a tuple."""
    words = ()
    for at in tl.static_range(8):
        words += (tl.load(table_ptr + at),)
    return words


@triton.jit
def table_operand(w, q: tl.constexpr, dtype: tl.constexpr, TABLE: tl.constexpr, ASM: tl.constexpr):
    """The numbers of the q-th 4-bit codes of 16-bit words, in bfloat16 or float16."""
    BF16: tl.constexpr = dtype == tl.bfloat16
    if not ASM:
        made = _picked((w >> (4 * q)) & 15, TABLE, BF16).to(dtype)
    # both codes of a byte: made for the second one again, they are the compiler's to leave out
    elif BF16:
        both = tl.inline_asm_elementwise(
            OPERANDS[4 * TABLE - 2 + q // 2], "=r,=r,r", [w], dtype=(tl.bfloat16, tl.bfloat16), is_pure=True, pack=2
        )
        made = both[q % 2]
    else:
        both = tl.inline_asm_elementwise(
            OPERANDS[4 * TABLE - 4 + q // 2], "=r,=r,r", [w], dtype=(tl.float16, tl.float16), is_pure=True, pack=2
        )
        made = both[q % 2]
    return made


@triton.jit
def table_numbers(w, table, TABLE: tl.constexpr, ASM: tl.constexpr):
    """Float32 of the eight codes of 32-bit words, by way of float16: a tuple, the lower half's four first."""
    if not ASM:
        made = ()
        for at in tl.static_range(8):
            made += (_picked((w >> (4 * at)) & 15, TABLE, False),)  # type: ignore[assignment]
        return made
    else:
        upper_1, upper_2, upper_3, upper_4, lower_1, lower_2, lower_3, lower_4 = table
        return tl.inline_asm_elementwise(
            EIGHT_NUMBERS[TABLE - 1], "=f,=f,=f,=f,=f,=f,=f,=f,r,r,r,r,r,r,r,r,r",
            [w, upper_1, upper_2, upper_3, upper_4, lower_1, lower_2, lower_3, lower_4],
            dtype=(tl.float32, tl.float32, tl.float32, tl.float32, tl.float32, tl.float32, tl.float32, tl.float32),
            is_pure=True, pack=1,
        )  # fmt: skip


@triton.jit
def scale_number(scale, GROUP: tl.constexpr):
    """Float32 of scales as they are stored. Those in uint8 are E4M3 where they stand for 16 columns, else E8M0: two to
    that power less 127."""
    if scale.dtype == tl.uint8 and GROUP == 16:
        return half_of_e4m3(scale).to(tl.float32) * 256.0
    elif scale.dtype == tl.uint8:
        bits = scale.to(tl.int32)
        return tl.where(bits == 0, 0x00400000, bits << 23).to(tl.float32, bitcast=True)
    else:
        return scale.to(tl.float32)


@triton.jit
def _picked(code, TABLE: tl.constexpr, BF16: tl.constexpr):
    """The same without instructions of a GPU."""
    made = tl.zeros(code.shape, tl.float32)
    for at in tl.static_range(16):
        made = tl.where(code == at, ROUNDED[32 * TABLE - 32 + 16 * BF16 + at], made)
    return made


def _picks(table: list[str], into: str, code: str, half: str) -> str:
    """Instructions that leave in `into` the bytes of the four codes in `code`, by the order of bytes in `half`."""
    first, second, third, fourth = table
    return (
        f" prmt.b32 {into}, {first}, {second}, {code}; prmt.b32 o, {third}, {fourth}, {code};"
        f" prmt.b32 {into}, {into}, o, {half};"
    )


def _picks_of_both(table: list[str], code: str, half: str, lower: bool) -> str:
    """The same of upper bytes in h and of lower ones in l, which may be known to be zero."""
    return _picks(table[:4], "h", code, half) + (_picks(table[4:], "l", code, half) if lower else " mov.b32 l, 0;")


def _operands(name: str, dtype: torch.dtype, upper_byte: int) -> str:
    """Of two words in $2, their codes 0 and 1 (or 2 and 3) as two numbers each in $0 and $1."""
    words = _bytes_of(name, dtype)
    table = [f"0x{word & 0xFFFFFFFF:08x}" for word in words]
    text = f"{{ .reg .b32 s, t, l, h, o; prmt.b32 s, $2, 0, {'0x4431' if upper_byte else '0x4420'};"
    text += " and.b32 t, s, 0x7777; shr.b32 s, s, 1; lop3.b32 s, s, 0x4444, 0x3210, 0xea;"
    text += _picks_of_both(table, "t", "s", any(words[4:]))
    return text + " prmt.b32 $0, l, h, 0x6240; prmt.b32 $1, l, h, 0x7351; }"


def _moved(upper_byte: int) -> str:
    """The same of E2M1 in bfloat16: a sign, and three bits at the end of the exponent and the begin of the mantissa,
    where they read as 2^-126 times the number, subnormal ones included."""

    def shifted(into: str, by: int) -> str:
        return f" shl.b32 {into}, w, {by};" if by >= 0 else f" shr.b32 {into}, w, {-by};"

    text = "{ .reg .b32 w, s, t, more, none; mov.b32 w, $2; mov.b32 more, 0x7e807e80; mov.b32 none, 0x80008000;"
    for target, q in enumerate((2, 3) if upper_byte else (0, 1)):
        text += f"{shifted('t', 6 - 4 * q)} and.b32 t, t, 0x01c001c0;{shifted('s', 12 - 4 * q)}"
        text += f" lop3.b32 s, s, 0x80008000, t, 0xea; fma.rn.bf16x2 ${target}, s, more, none;"
    return text + " }"


def _eight_numbers(name: str) -> str:
    """Of the 32-bit word in $8, its eight codes in their order: float32 in $0 to $7, of two float16 a register; the
    words of `table_bytes` from $9 on."""
    table = [f"${place}" for place in range(9, 17)]
    lower = any(_FLOAT16_BYTES[name][4:])
    text = "{ .reg .b32 s, t, u, v, l, h, o; .reg .b16 x, y; and.b32 t, $8, 0x77777777; shr.b32 s, $8, 1;"
    text += " lop3.b32 s, s, 0x44444444, 0x32103210, 0xea; shr.b32 u, t, 16; shr.b32 v, s, 16;"
    for first, code, half in ((0, "t", "s"), (4, "u", "v")):
        text += _picks_of_both(table, code, half, lower)
        for at, bytes_of_two in ((first, "0x5140"), (first + 2, "0x7362")):
            text += f" prmt.b32 o, l, h, {bytes_of_two}; mov.b32 {{x, y}}, o;"
            text += f" cvt.f32.f16 ${at}, x; cvt.f32.f16 ${at + 1}, y;"
    return text + " }"


def _operands_of(name: str) -> tuple[str, ...]:
    """In float16 by the lower and the upper byte of a word, then in bfloat16."""
    half, wide = ([_operands(name, dtype, byte) for byte in (0, 1)] for dtype in (torch.float16, torch.bfloat16))
    return (*half, *([_moved(byte) for byte in (0, 1)] if name == "e2m1" else wide))


# by TABLE
OPERANDS: tl.constexpr = tl.constexpr(tuple(text for name in TABLES for text in _operands_of(name)))
EIGHT_NUMBERS: tl.constexpr = tl.constexpr(tuple(_eight_numbers(name) for name in TABLES))
# of each table in float16, then in bfloat16
ROUNDED: tl.constexpr = tl.constexpr(
    tuple(
        number
        for table in TABLES.values()
        for dtype in (torch.float16, torch.bfloat16)
        for number in torch.tensor(table).to(dtype).tolist()
    )
)
