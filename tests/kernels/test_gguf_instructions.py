"""The instructions that put five bits of GGUF codes together on a GPU, carried out over every word of both kinds."""

import pytest
import torch
from instructions import bfloat16s, carry_out, float16s

from octavo.kernels.gguf_number import FIVE_INTO_BFLOAT16, FIVE_INTO_FLOAT16


@pytest.mark.parametrize(
    ("instructions", "numbers"), [(FIVE_INTO_BFLOAT16, bfloat16s), (FIVE_INTO_FLOAT16, float16s)], ids=["bf16", "fp16"]
)
@pytest.mark.parametrize("quarter", range(4))
def test_four_bits_and_the_fifth_make_a_number_beside_any_other_bits(instructions, numbers, quarter):
    low = torch.arange(1 << 16)
    for fifths in (0, 0xFFFF, 0x1111 << quarter % 2, 0xA5C3, 0x5A3C):  # high bits of all codes in these words
        high = torch.full_like(low, fifths)
        others = low.flip(0)
        found = numbers(carry_out(instructions.value[quarter], low | others << 16, high | (fifths ^ 0xFFFF) << 16))
        for half, (word, above) in enumerate(((low, high), (others, high ^ 0xFFFF))):
            code = (word >> 4 * quarter & 15) | (above >> 4 * quarter & 1) << 4
            assert torch.equal(found[:, half], 32.0 + code)
