"""AWQ and GPTQ files, packed here number by number as the formats say, decode to exactly what was packed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from octavo.engine.errors import CheckpointError, UnsupportedModelError
from octavo.engine.load.packed import awq, gptq
from octavo.engine.load.packed.bits import unpack_words
from octavo.engine.quant.joined import JoinedFormat

AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)  # the column that each nibble of a word holds


def numbers(weight: Tensor, bits: int, group: int, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """Random codes [out, in], zero points and scales [out, groups] of a weight's shape."""
    generator = torch.Generator().manual_seed(seed + weight.shape[0])
    rows, columns = weight.shape
    codes = torch.randint(0, 1 << bits, (rows, columns), generator=generator)
    zeros = torch.randint(1, 1 << bits, (rows, columns // group), generator=generator)
    scales = (torch.rand((rows, columns // group), generator=generator) * 0.02 + 0.01).half()
    return codes, zeros, scales


def weight_of(codes: Tensor, zeros: Tensor, scales: Tensor, groups: Tensor) -> Tensor:
    return (codes - zeros[:, groups]).float() * scales[:, groups].float()


def words(numbers: Tensor, bits: int) -> Tensor:
    """[..., n] numbers as one stream of bits in 32-bit words, the first number in the lowest bits."""
    rows = []
    for row in numbers.reshape(-1, numbers.shape[-1]).tolist():
        stream = sum(number << (bits * place) for place, number in enumerate(row))
        length = len(row) * bits // 32
        rows.append([(stream >> (32 * word)) & 0xFFFFFFFF for word in range(length)])
    found = torch.tensor(rows, dtype=torch.int64)
    return torch.where(found >= 1 << 31, found - (1 << 32), found).int().view(*numbers.shape[:-1], -1)


def gemm_words(numbers: Tensor) -> Tensor:
    return words(numbers.unflatten(-1, (-1, 8))[..., AWQ_ORDER].flatten(-2), 4)


def awq_gemm(group: int) -> Callable[[str, Tensor], tuple[dict[str, Tensor], Tensor]]:
    def quantize(module: str, weight: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        codes, zeros, scales = numbers(weight, 4, group)
        meant = weight_of(codes, zeros, scales, torch.arange(weight.shape[1]) // group)
        parts = {"qweight": gemm_words(codes.t()), "qzeros": gemm_words(zeros.t()), "scales": scales.t()}
        return parts, meant

    return quantize


def awq_gemv(module: str, weight: Tensor) -> tuple[dict[str, Tensor], Tensor]:
    codes, zeros, scales = numbers(weight, 4, 64)
    meant = weight_of(codes, zeros, scales, torch.arange(weight.shape[1]) // 64)
    short = -zeros.shape[1] % 16  # at groups of 64, words of zero points come in twos
    padded = torch.nn.functional.pad(zeros, (0, short))
    parts = {"qweight": words(codes, 4), "qzeros": words(padded, 4)}
    return parts | {"scales": torch.nn.functional.pad(scales, (0, short))}, meant


def gptq_packer(
    bits: int, group: int, *, version: int = 1, order: bool = False
) -> Callable[[str, Tensor], tuple[dict[str, Tensor], Tensor]]:
    def quantize(module: str, weight: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        codes, zeros, scales = numbers(weight, bits, group)
        groups = torch.arange(weight.shape[1]) // group
        if order:
            shuffled = torch.Generator().manual_seed(len(module))
            groups = groups[torch.randperm(weight.shape[1], generator=shuffled)]
        parts = {
            "qweight": words(codes, bits).t(),
            "qzeros": words((zeros - int(version == 1)).t(), bits),
            "scales": scales.t(),
            "g_idx": groups.int(),
        }
        return parts, weight_of(codes, zeros, scales, groups)

    return quantize


def test_the_formats_own_examples() -> None:
    """Columns valued 0 to 7, as the libraries pack them."""
    eight = torch.arange(8)
    assert gemm_words(eight.unsqueeze(0)).item() == 0x75316420
    assert words(eight.unsqueeze(0), 4).item() == 0x76543210
    assert unpack_words(torch.tensor([0x76543210]), 4).tolist()[:8] == eight.tolist()
    planes = awq._from_gemm(
        {
            "qweight": torch.tensor([[0x75316420]], dtype=torch.int32),
            "qzeros": torch.tensor([[0x75316420]], dtype=torch.int32),
            "scales": torch.ones(1, 8),
        }
    )
    assert planes["codes"].flatten().tolist() == eight.tolist()
    assert planes["zero"].flatten().tolist() == eight.tolist()


@pytest.mark.parametrize("bits", [1, 2, 3, 4, 5, 6, 7, 8])
def test_a_stream_of_bits_is_read_over_the_ends_of_words(bits: int) -> None:
    values = torch.randint(0, 1 << bits, (3, 64), generator=torch.Generator().manual_seed(bits))
    assert torch.equal(unpack_words(words(values, bits), bits)[:, :64], values.to(torch.uint8))


@pytest.mark.parametrize("group", [32, 64])
def test_awq_gemm(write: Any, check: Any, group: int) -> None:
    settings = {"quant_method": "awq", "bits": 4, "group_size": group, "version": "gemm", "zero_point": True}
    model = check(write(awq_gemm(group), settings))
    assert model.weights.layers[0].qkv[0].format.group == group


def test_awq_gemv(write: Any, check: Any) -> None:
    check(write(awq_gemv, {"quant_method": "awq", "w_bit": 4, "q_group_size": 64, "version": "GEMV"}))


@pytest.mark.parametrize("bits", [2, 3, 4, 8])
@pytest.mark.parametrize("version", [1, 2])
def test_gptq(write: Any, check: Any, bits: int, version: int) -> None:
    settings = {"quant_method": "gptq", "bits": bits, "group_size": 64, "desc_act": False, "sym": False}
    if version == 2:
        settings["checkpoint_format"] = "gptq_v2"
    check(write(gptq_packer(bits, 64, version=version), settings))


@pytest.mark.parametrize("bits", [3, 4])
def test_gptq_in_the_order_of_activations(write: Any, check: Any, bits: int) -> None:
    """Every module has an order of its own, so that query, key and value cannot be one linear; they still stand side
    by side."""
    settings = {"quant_method": "gptq", "bits": bits, "group_size": 32, "desc_act": True, "sym": False}
    model = check(write(gptq_packer(bits, 32, order=True), settings))
    (qkv,) = model.weights.layers[0].qkv
    assert isinstance(qkv.format, JoinedFormat)
    assert qkv.format.counts == (1, 1, 1)


def test_one_group_for_a_whole_row(write: Any, check: Any) -> None:
    def quantize(module: str, weight: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        return gptq_packer(4, weight.shape[1])(module, weight)

    check(write(quantize, {"quant_method": "gptq", "bits": 4, "group_size": -1, "sym": False}))


@pytest.mark.parametrize("stored", [7, 8])
def test_symmetric_zero_points_tell_their_version(write: Any, check: Any, stored: int) -> None:
    """Some files claim version 1 and hold the zero points of version 2."""

    def quantize(module: str, weight: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        codes, zeros, scales = numbers(weight, 4, 64)
        groups = torch.arange(weight.shape[1]) // 64
        parts = {
            "qweight": words(codes, 4).t(),
            "qzeros": words(torch.full_like(zeros, stored).t(), 4),
            "scales": scales.t(),
        }
        return parts, weight_of(codes, torch.full_like(zeros, 8), scales, groups)

    check(write(quantize, {"quant_method": "gptq", "bits": 4, "group_size": 64, "sym": True}))


@pytest.mark.parametrize("wrong", ["nibbles", "version", "order"])
def test_the_comparison_sees_what_would_be_wrong(
    write: Any, check: Any, wrong: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {"quant_method": "gptq", "bits": 4, "group_size": 32, "sym": False}
    written = write(gptq_packer(4, 32, order=wrong == "order"), settings)
    if wrong == "nibbles":
        right = gptq.unpack_words
        swapped = lambda found, bits: right(found, bits).unflatten(-1, (-1, 2)).flip(-1).flatten(-2)  # noqa: E731
        monkeypatch.setattr(gptq, "unpack_words", swapped)
    elif wrong == "version":
        monkeypatch.setattr(gptq.GPTQ, "_lacks_one", lambda *_: False)
    else:
        monkeypatch.setattr(gptq.GPTQ, "_order", lambda *_: None)
    with pytest.raises(AssertionError):
        check(written)


def test_awq_in_the_order_of_gptq_is_noticed(write: Any, check: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    written = write(awq_gemm(64), {"quant_method": "awq", "bits": 4, "group_size": 64})
    monkeypatch.setattr(awq, "_PLACES", tuple(range(8)))
    with pytest.raises(AssertionError):
        check(written)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"quant_method": "awq", "version": "gemv_fast"}, ["gemv_fast", "gemm", "GGUF"]),
        ({"quant_method": "awq", "bits": 3}, ["3 bits"]),
        ({"quant_method": "gptq", "bits": 5}, ["5 bits", "2, 3, 4 and 8"]),
    ],
)
def test_a_variant_that_is_not_read_is_refused_with_what_to_use(
    write: Any, settings: dict[str, Any], words: list[str]
) -> None:
    with pytest.raises(UnsupportedModelError) as caught:
        write(awq_gemm(64), settings).open()
    assert all(word in str(caught.value) for word in words), caught.value


@pytest.mark.parametrize("role", ["qzeros", "scales"])
def test_a_part_that_is_missing_or_of_another_size_is_named(write: Any, role: str) -> None:
    def without(module: str, weight: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        parts, meant = awq_gemm(64)(module, weight)
        if "layers.1.mlp.down" in module:
            del parts[role]
        return parts, meant

    def cut(module: str, weight: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        parts, meant = awq_gemm(64)(module, weight)
        if "layers.1.mlp.down" in module:
            parts[role] = parts[role][:, :-1]
        return parts, meant

    for change, said in ((without, f"no {role} beside it"), (cut, "has the shape")):
        with pytest.raises(CheckpointError, match=said) as caught:
            write(change, {"quant_method": "awq", "group_size": 64}).open()
        assert "layers.1.mlp.down" in str(caught.value)
