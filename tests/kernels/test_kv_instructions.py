"""The instructions that open words of two 8-bit codes on a GPU, carried out one by one over every pair of words."""

import re

import pytest
import torch

from octavo.kernels import kv_codes
from octavo.kernels.kv_codes import FP8, INT8

MASK = 0xFFFFFFFF
OR_OF_AND = "0xea"  # (a & b) | c


def bfloat16s(register: torch.Tensor) -> torch.Tensor:
    """The two numbers of 32-bit registers (int64 [N]) as float64 [N, 2], the lower half first."""
    halves = torch.stack((register & 0xFFFF, register >> 16), 1)
    return (halves << 16).to(torch.int32).view(torch.float32).double()


def registers(numbers: torch.Tensor) -> torch.Tensor:
    """The other way round, of numbers that bfloat16 holds exactly."""
    halves = numbers.float().view(torch.int32).long() >> 16 & 0xFFFF
    assert torch.equal(bfloat16s(halves[:, 0] | halves[:, 1] << 16), numbers)
    return halves[:, 0] | halves[:, 1] << 16


def carry_out(code: str, word: torch.Tensor) -> torch.Tensor:
    """Runs a block of PTX on registers `word` and gives what it leaves in $0."""
    held = {"$1": word}

    def value(name: str) -> torch.Tensor:
        return torch.full_like(word, int(name, 0)) if name[0].isdigit() else held[name]

    for statement in re.sub(r"\.reg \.b32 [^;]*;", "", code.strip("{} ")).split(";"):
        if not statement.strip():
            continue
        operation, rest = statement.split(maxsplit=1)
        target, *given = (part.strip() for part in rest.split(","))
        if operation == "lop3.b32":
            assert given.pop() == OR_OF_AND
            a, b, c = map(value, given)
            held[target] = a & b | c
        elif operation == "fma.rn.bf16x2":
            a, b, c = (bfloat16s(value(name)) for name in given)
            held[target] = registers(a * b + c)
        elif operation == "mov.b32":
            held[target] = value(given[0])
        else:
            compute = {"shl.b32": torch.bitwise_left_shift, "shr.b32": torch.bitwise_right_shift}
            compute |= {"and.b32": torch.bitwise_and}
            held[target] = compute[operation](*map(value, given)) & MASK
    return held["$0"]


@pytest.mark.parametrize(
    ("code", "kind", "byte"),
    [
        (kv_codes._EVEN_FP8, FP8, 0),
        (kv_codes._ODD_FP8, FP8, 1),
        (kv_codes._EVEN_INT8, INT8, 0),
        (kv_codes._ODD_INT8, INT8, 1),
    ],
)
def test_every_word_opens_into_its_codes_beside_any_other_word(code, kind, byte):
    codes = torch.arange(256, dtype=torch.uint8)
    if kind.value == FP8.value:
        codes = codes[(codes & 0x7F) != 0x7F]  # not a number; never written
    first, second = (part.flatten() for part in torch.meshgrid(codes, codes, indexing="ij"))
    for low, high in (((first, second), (second, first)), ((first, first), (second.flip(0), second))):
        words = [pair[0].long() | pair[1].long() << 8 for pair in (low, high)]
        numbers = bfloat16s(carry_out(code.value, words[0] | words[1] << 16))
        for half, pair in enumerate((low, high)):
            dtype, factor = (torch.float8_e4m3fn, 2.0**120) if kind.value == FP8.value else (torch.int8, 1.0)
            assert torch.equal(numbers[:, half] * factor, pair[byte].view(dtype).double())
