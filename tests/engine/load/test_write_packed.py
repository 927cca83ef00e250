"""Written tensors against the formats' own definitions: compressed-tensors' library, AutoAWQ's order of nibbles."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from octavo.engine.load.write_packed import pack_words, packed_tensors, quantization_config
from octavo.engine.quant.calibrate.grid import Grid


@pytest.mark.parametrize(
    ("layout", "bits", "group", "symmetric"),
    [
        ("pack-quantized", 4, 32, True),
        ("pack-quantized", 4, 32, False),
        ("pack-quantized", 4, 96, False),
        ("pack-quantized", 8, 0, True),
        ("pack-quantized", 8, 32, True),
        ("int-quantized", 8, 0, True),
    ],
)
def test_tensors_are_those_of_the_formats_own_library(layout: Any, bits: int, group: int, symmetric: bool) -> None:
    library = pytest.importorskip("compressed_tensors")
    weight = torch.randn(20, 96, generator=torch.Generator().manual_seed(1)) * 0.1
    rounded = Grid(bits, group, symmetric, torch.bfloat16).nearest(weight)
    stored = packed_tensors(layout, bits, symmetric, rounded.codes, rounded.scale, rounded.zero, torch.bfloat16)
    config = quantization_config(layout, bits, group, symmetric, False, ["lm_head"])
    scheme = library.quantization.QuantizationScheme(**config["config_groups"]["group_0"])
    assert library.quantization.QuantizationConfig(**config).format == layout
    compressor = library.compressors.BaseCompressor.get_value_from_registry(layout)
    decoded = compressor.decompress(dict(stored), scheme)["weight"]
    assert torch.equal(decoded, rounded.decode().bfloat16())
    state: dict[str, Tensor] = {"weight": rounded.decode(), "weight_scale": rounded.scale.bfloat16()}
    if not symmetric:
        state["weight_zero_point"] = (rounded.zero - (1 << (bits - 1))).to(torch.int8)
    theirs = compressor.compress(state, scheme)
    assert {name: tensor.dtype for name, tensor in stored.items()} == {n: t.dtype for n, t in theirs.items()}
    for name, tensor in theirs.items():
        assert torch.equal(stored[name], tensor), name


def test_awq_words_hold_columns_in_autoawqs_order() -> None:
    codes = torch.arange(8, dtype=torch.uint8).repeat(3, 2).T  # [16 rows, 3 columns], row r valued r % 8
    scale, zero = torch.rand(16, 1) + 0.5, torch.full((16, 1), 5.0)
    stored = packed_tensors("awq", 4, False, codes, scale, zero, torch.float16)
    assert stored["qweight"].shape == (3, 2)
    assert {word & 0xFFFFFFFF for word in stored["qweight"].flatten().tolist()} == {0x75316420}
    assert {word & 0xFFFFFFFF for word in stored["qzeros"].flatten().tolist()} == {0x55555555}
    assert torch.equal(stored["scales"], scale.half().T)


def test_words_are_filled_from_their_lowest_bits_and_end_in_zeros() -> None:
    codes = torch.tensor([[1, 2, 3, 4, 5, 6, 7, 8, 9]], dtype=torch.uint8)
    assert [word & 0xFFFFFFFF for word in pack_words(codes, 4)[0].tolist()] == [0x87654321, 9]
    assert pack_words(codes, 8)[0].tolist() == [0x04030201, 0x08070605, 9]
    assert torch.equal(pack_words(codes.T, 8).flatten(), torch.arange(1, 10, dtype=torch.int32))
