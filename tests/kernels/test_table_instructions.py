"""The instructions that look up numbers of a table by 4-bit codes on a GPU, carried out over every word."""

import pytest
import torch
from instructions import MASK, bfloat16s, carry_out_all, float16s

from octavo.kernels.code_tables import TABLES
from octavo.kernels.table_number import EIGHT_NUMBERS, OPERANDS, TABLE_NUMBERS, table_bytes

WORDS = torch.arange(1 << 16)
OTHERS = WORDS.flip(0)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", TABLES)
def test_every_code_becomes_its_number_beside_any_other_codes(name, dtype):
    table, numbers = torch.tensor(TABLES[name]).to(dtype).double(), bfloat16s if dtype == torch.bfloat16 else float16s
    texts = OPERANDS.value[4 * TABLE_NUMBERS[name] - 4 + 2 * (dtype == torch.bfloat16) :]
    for q in range(4):
        found = numbers(carry_out_all(texts[q // 2], 2, WORDS | OTHERS << 16)[q % 2])
        assert torch.equal(found, table[torch.stack((WORDS, OTHERS), 1) >> 4 * q & 15])


@pytest.mark.parametrize("name", TABLES)
def test_eight_codes_at_once_become_their_numbers(name):
    table = torch.tensor(TABLES[name]).half().double()
    loaded = [torch.full_like(WORDS, word & MASK) for word in table_bytes(name, torch.device("cpu")).tolist()]
    found = carry_out_all(EIGHT_NUMBERS.value[TABLE_NUMBERS[name] - 1], 8, WORDS | OTHERS << 16, *loaded)
    for at, numbers in enumerate(found):
        assert torch.equal(numbers, table[(OTHERS if at // 4 else WORDS) >> at % 4 * 4 & 15])
