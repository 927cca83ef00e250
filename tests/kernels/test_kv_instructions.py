"""The instructions that open words of two 8-bit codes on a GPU, carried out one by one over every pair of words."""

import pytest
import torch
from instructions import bfloat16s, carry_out

from octavo.kernels import kv_codes
from octavo.kernels.kv_codes import FP8, INT8


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
