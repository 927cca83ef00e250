"""bitsandbytes: what the library quantizes decodes here to exactly what it decodes it to, and our own rounding to nf4,
fp4 and int8 gives the library's bytes."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from torch import Tensor

from octavo.engine.errors import CheckpointError, UnsupportedModelError
from octavo.engine.load.packed import bnb
from octavo.engine.quant import FORMATS
from octavo.kernels.code_tables import TABLES

library = pytest.importorskip("bitsandbytes.functional")

FOUR = {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_compute_dtype": "bfloat16"}
EIGHT = {"quant_method": "bitsandbytes", "load_in_8bit": True}


def four_bit(kind: str, *, nested: bool = False, size: int = 64) -> Any:
    def quantize(module: str, weight: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        stored, state = library.quantize_4bit(
            weight, blocksize=size, quant_type=kind, compress_statistics=nested, quant_storage=torch.uint8
        )
        parts = {"weight": stored, **{f"weight.{name}": t for name, t in state.as_dict(packed=True).items()}}
        return parts, library.dequantize_4bit(stored, state)

    return quantize


def int8(module: str, weight: Tensor) -> tuple[dict[str, Tensor], Tensor]:
    codes, scales, _ = library.int8_vectorwise_quant(weight.half())
    parts = {"weight": codes, "SCB": scales, "weight_format": torch.tensor(0, dtype=torch.uint8)}
    return parts, library.int8_vectorwise_dequant(codes, scales)


@pytest.mark.parametrize("kind", ["nf4", "fp4"])
@pytest.mark.parametrize("nested", [False, True])
def test_four_bit(write: Any, check: Any, kind: str, nested: bool) -> None:
    check(write(four_bit(kind, nested=nested), FOUR | {"bnb_4bit_quant_type": kind}))


def test_blocks_that_run_over_the_ends_of_rows_are_expanded(write: Any, check: Any) -> None:
    """Hidden size 100: no row holds whole blocks of 64, so that these weights cannot stay packed."""
    sizes = {"hidden_size": 100, "intermediate_size": 60, "num_attention_heads": 2, "num_key_value_heads": 1}
    check(write(four_bit("nf4", nested=True), FOUR, **sizes, head_dim=26), held=False)


def test_int8_keeps_outliers_exact(write: Any, check: Any) -> None:
    model = check(write(int8, EIGHT), close=0.02)
    assert model.weights.layers[0].o.format.name == "llm-int8"


@pytest.mark.parametrize("kind", ["nf4", "fp4"])
def test_our_own_rounding_gives_the_librarys_bytes(kind: str) -> None:
    weight = torch.randn(96, 128, generator=torch.Generator().manual_seed(2))
    planes = FORMATS[kind].quantize(weight, torch.float32)  # type: ignore[attr-defined]
    stored, state = library.quantize_4bit(weight, quant_type=kind, quant_storage=torch.uint8)
    assert torch.equal(bnb.halves(planes["codes"]).flatten(), stored.flatten())
    assert torch.equal(planes["scale"].flatten(), state.absmax)


def test_our_own_int8_gives_the_librarys_bytes() -> None:
    weight = torch.randn(96, 128, generator=torch.Generator().manual_seed(2)).half()
    planes = FORMATS["llm-int8"].quantize(weight.float(), torch.float32)  # type: ignore[attr-defined]
    codes, scales, _ = library.int8_vectorwise_quant(weight)
    assert torch.equal(planes["codes"], codes)
    assert torch.equal(planes["scale"].flatten(), scales)


def test_one_token_multiplies_as_the_library_does_with_outliers() -> None:
    weight = torch.randn(96, 128, generator=torch.Generator().manual_seed(2)).half()
    x = torch.randn(1, 128, generator=torch.Generator().manual_seed(3)).half()
    x[0, [5, 77]] *= 30
    codes, scales, columns = library.int8_vectorwise_quant(x, threshold=6.0)
    stored, rows, _ = library.int8_vectorwise_quant(weight)
    wanted = (codes.float() @ stored.float().T) * scales[:, None] * rows / (127 * 127)
    wanted += x[:, columns].float() @ library.int8_vectorwise_dequant(stored[:, columns], rows).T
    form = FORMATS["llm-int8"]
    planes = {"codes": stored, "scale": rows[:, None]}
    from octavo.engine.quant.base import Packed

    result = form.linear(x.float(), Packed(planes, None, 128, torch.float32))
    torch.testing.assert_close(result, wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("wrong", ["nibbles", "table", "offset"])
def test_the_comparison_sees_what_would_be_wrong(
    write: Any, check: Any, wrong: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = write(four_bit("nf4", nested=True), FOUR)
    if wrong == "nibbles":
        monkeypatch.setattr(bnb, "halves", lambda packed: packed)
    elif wrong == "table":
        near = tuple(value * 1.00001 for value in TABLES["nf4"])
        monkeypatch.setitem(TABLES, "nf4", near)
    else:
        right = bnb._scales
        monkeypatch.setattr(bnb, "_scales", lambda found, offset: right(found, 0.0))
    with pytest.raises(AssertionError):
        check(written)


def test_a_table_of_its_own_is_refused(write: Any) -> None:
    def quantize(module: str, weight: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        parts, meant = four_bit("nf4")(module, weight)
        parts["weight.quant_map"] = parts["weight.quant_map"] * 2
        return parts, meant

    with pytest.raises(UnsupportedModelError, match="table of its own"):
        write(quantize, FOUR).open()


@pytest.mark.parametrize("state", [b"{", b"[]", json.dumps({"shape": [0, 4], "blocksize": 64}).encode()])
def test_a_description_that_is_none_is_blamed(write: Any, state: bytes) -> None:
    def quantize(module: str, weight: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        parts, meant = four_bit("nf4")(module, weight)
        parts["weight.quant_state.bitsandbytes__nf4"] = torch.tensor(list(state), dtype=torch.uint8)
        return parts, meant

    with pytest.raises(CheckpointError, match="not the description of a weight"):
        write(quantize, FOUR).open()
