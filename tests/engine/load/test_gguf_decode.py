"""Every block format decodes to exactly the floats of the gguf package."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
import torch
from torch import Tensor

from octavo.engine.load import gguf_decode
from octavo.engine.load.gguf_decode import DECODERS, decode_blocks
from octavo.engine.load.gguf_types import GGML_TYPES

_BY_NAME = {kind.name: kind for kind in GGML_TYPES.values()}
# Where the float16 scales of a block lie.
_HALVES = {
    "Q4_0": (0,),
    "Q4_1": (0, 2),
    "Q5_0": (0,),
    "Q5_1": (0, 2),
    "Q8_0": (0,),
    "Q2_K": (80, 82),
    "Q3_K": (108,),
    "Q4_K": (0, 2),
    "Q5_K": (0, 2),
    "Q6_K": (208,),
    "IQ4_NL": (0,),
    "IQ4_XS": (0,),
}


def _random_blocks(name: str, count: int = 300) -> np.ndarray:
    """Random bits with finite scales of the size real files have."""
    rng = np.random.default_rng(len(name) * 1000 + sum(map(ord, name)))
    kind = _BY_NAME[name]
    if name == "F32":
        return rng.standard_normal((count, 1)).astype(np.float32).view(np.uint8)
    if name == "F16":
        return rng.standard_normal((count, 1)).astype(np.float16).view(np.uint8)
    blocks = rng.integers(0, 256, (count, kind.block_bytes), dtype=np.uint8)
    for start in _HALVES.get(name, ()):
        scales = (rng.standard_normal((count, 1)) * 0.05).astype(np.float16)
        blocks[:, start : start + 2] = scales.view(np.uint8)
    if name == "NVFP4":
        blocks[:, :4] &= 0x7F  # its scales have no sign
    return blocks


def _reference(name: str, blocks: np.ndarray) -> np.ndarray:
    kind = _BY_NAME[name]
    with np.errstate(all="ignore"):
        values = gguf.quants.dequantize(blocks.copy(), gguf.GGMLQuantizationType(kind.number))
    return np.asarray(values, dtype=np.float32).reshape(len(blocks), kind.block_size)


def _same_bits(a: np.ndarray, b: np.ndarray) -> bool:
    return bool(np.all((a.view(np.uint32) == b.view(np.uint32)) | (np.isnan(a) & np.isnan(b))))


@pytest.mark.parametrize("name", sorted(DECODERS))
def test_blocks_decode_to_the_same_bits_as_the_reference(name: str) -> None:
    blocks = _random_blocks(name)
    decoded = decode_blocks(torch.from_numpy(blocks), name)
    assert decoded.dtype == torch.float32
    assert _same_bits(decoded.numpy(), _reference(name, blocks))


@pytest.mark.parametrize("name", sorted(_HALVES))
def test_blocks_with_odd_scales_decode_like_the_reference(name: str) -> None:
    """Infinite, subnormal, negative and NaN scales too."""
    blocks = np.random.default_rng(3).integers(0, 256, (200, _BY_NAME[name].block_bytes), dtype=np.uint8)
    assert _same_bits(decode_blocks(torch.from_numpy(blocks), name).numpy(), _reference(name, blocks))


def _high_nibbles_first(packed: Tensor) -> Tensor:
    return torch.stack((packed >> 4, packed & 0x0F), dim=-2)


def _interleaved_nibbles(packed: Tensor) -> Tensor:
    pairs = torch.stack((packed & 0x0F, packed >> 4), dim=-1).flatten(-2)
    return pairs.view(*packed.shape[:-1], 2, packed.shape[-1])


@pytest.mark.parametrize("wrong", [_high_nibbles_first, _interleaved_nibbles])
@pytest.mark.parametrize(
    "name", ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL", "IQ4_XS", "MXFP4", "NVFP4"]
)
def test_the_comparison_sees_nibbles_in_the_wrong_order(
    name: str, wrong: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocks = _random_blocks(name)
    monkeypatch.setattr(gguf_decode, "_nibbles", wrong)
    assert not _same_bits(decode_blocks(torch.from_numpy(blocks), name).numpy(), _reference(name, blocks))


@pytest.mark.parametrize("name", ["Q2_K", "Q3_K", "Q6_K", "Q5_K"])
def test_the_comparison_sees_bit_fields_in_the_wrong_order(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    blocks = _random_blocks(name)
    right = gguf_decode._shifted
    monkeypatch.setattr(gguf_decode, "_shifted", lambda packed, by, mask: right(packed, by[::-1], mask))
    assert not _same_bits(decode_blocks(torch.from_numpy(blocks), name).numpy(), _reference(name, blocks))


def test_the_comparison_sees_swapped_scale_and_minimum(monkeypatch: pytest.MonkeyPatch) -> None:
    right = gguf_decode._six_bit_pairs
    monkeypatch.setattr(gguf_decode, "_six_bit_pairs", lambda packed: right(packed)[::-1])
    for name in ("Q4_K", "Q5_K"):
        blocks = _random_blocks(name)
        assert not _same_bits(decode_blocks(torch.from_numpy(blocks), name).numpy(), _reference(name, blocks))


def test_the_table_of_types_agrees_with_the_gguf_package() -> None:
    for kind in GGML_TYPES.values():
        number = gguf.GGMLQuantizationType(kind.number)
        assert number.name == kind.name
        if kind.name != "Q8_1":  # never stored; the package counts its scales as float32
            assert gguf.GGML_QUANT_SIZES[number] == (kind.block_size, kind.block_bytes)
