"""torchao: what its tensors are written as decodes here to exactly what they stand for."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest
import torch
from torch import Tensor

from octavo.engine.errors import CheckpointError, UnsupportedModelError

SETTINGS = {"quant_method": "torchao", "quant_type": {"default": {"_type": "Int8WeightOnlyConfig", "_data": {}}}}


def described(kinds: dict[str, dict[str, Any]], model: Any) -> dict[str, str]:
    """The header's metadata for weights of those kinds by module ending; everything else is plain."""
    names = [f"model.layers.{layer}.{module}.weight" for layer in range(2) for module in model]
    found = {name: json.dumps(kinds["all"]) for name in names}
    return found | {"tensor_names": json.dumps(names)}


MODULES = [f"self_attn.{part}_proj" for part in "qkvo"] + [f"mlp.{part}_proj" for part in ("gate", "up", "down")]


def data(kind: str, **attributes: Any) -> dict[str, str]:
    return described({"all": {"_type": kind, "_data": attributes, "_tensor_data_names": ["qdata", "scale"]}}, MODULES)


def int8(module: str, weight: Tensor) -> tuple[dict[str, Tensor], Tensor]:
    scale = weight.abs().amax(1, keepdim=True) / 127
    codes = (weight / scale).round().to(torch.int8)
    return {"qdata": codes, "scale": scale}, codes.float() * scale


def int4(module: str, weight: Tensor) -> tuple[dict[str, Tensor], Tensor]:
    """Groups of 32 with the middle of their range for zero point; signed nibbles, the low one first."""
    groups = weight.view(weight.shape[0], -1, 32)
    low = groups.amin(-1, keepdim=True)
    scale = ((groups.amax(-1, keepdim=True) - low) / 15).bfloat16().float()
    middle = (low + 8 * scale).bfloat16().float()
    codes = ((groups - middle) / scale).round().clamp(-8, 7)
    meant = (codes * scale + middle).flatten(1)
    flat = codes.flatten(1).to(torch.int8)
    packed = (flat[:, ::2] & 0x0F) | (flat[:, 1::2] << 4)
    parts = {"qdata": packed, "scale": scale[..., 0].t().bfloat16(), "zero_point": middle[..., 0].t().bfloat16()}
    return parts, meant


def test_int8_by_row(write: Any, check: Any) -> None:
    check(write(int8, SETTINGS, joined="._weight_", metadata=data("Int8Tensor", block_size=[1, 128]) | _down()))


def _down() -> dict[str, str]:
    """The down projection's rows are longer."""
    kind = json.dumps({"_type": "Int8Tensor", "_data": {"block_size": [1, 192]}})
    return {f"model.layers.{layer}.mlp.down_proj.weight": kind for layer in range(2)}


def test_int4_with_zero_points_that_are_no_whole_numbers(write: Any, check: Any) -> None:
    written = write(int4, SETTINGS, joined="._weight_", metadata=data("Int4Tensor", block_size=[1, 32], shape=[0]))
    model = check(written)
    assert model.weights.layers[0].o.format.shifts


def test_whole_zero_points_of_int8_groups(write: Any, check: Any) -> None:
    def quantize(module: str, weight: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        groups = weight.view(weight.shape[0], -1, 64)
        low, high = groups.amin(-1), groups.amax(-1)
        scale = (high - low) / 15
        zero = (-8 - (low / scale).round()).clamp(-8, 7)
        codes = ((groups / scale[..., None]).round() + zero[..., None]).clamp(-8, 7)
        meant = ((codes - zero[..., None]) * scale[..., None]).flatten(1)
        return {"qdata": codes.flatten(1).to(torch.int8), "scale": scale, "zero_point": zero.to(torch.int8)}, meant

    metadata = data("IntxUnpackedToInt8Tensor", block_size=[1, 64], target_dtype="int4", activation_quantization=None)
    check(write(quantize, SETTINGS, joined="._weight_", metadata=metadata))


@pytest.mark.parametrize("wrong", ["order", "sign"])
def test_nibbles_in_another_order_or_without_a_sign_are_noticed(write: Any, check: Any, wrong: str) -> None:
    def quantize(module: str, weight: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        parts, meant = int4(module, weight)
        stored = parts["qdata"].view(torch.uint8)
        stored = (stored << 4) | (stored >> 4) if wrong == "order" else stored ^ 0x88
        return parts | {"qdata": stored.view(torch.int8)}, meant

    written = write(quantize, SETTINGS, joined="._weight_", metadata=data("Int4Tensor", block_size=[1, 32]))
    with pytest.raises(AssertionError):
        check(written)


def test_other_tensors_and_missing_descriptions_are_refused(write: Any) -> None:
    with pytest.raises(UnsupportedModelError, match=r"Int4TilePackedTo4dTensor.*Int4Tensor"):
        write(int8, SETTINGS, joined="._weight_", metadata=data("Int4TilePackedTo4dTensor")).open()
    with pytest.raises(CheckpointError, match="nothing in the header says"):
        write(int8, SETTINGS, joined="._weight_").open()


@pytest.mark.skipif(sys.platform == "win32", reason="the library has no such build")
@pytest.mark.parametrize("kind", ["Int8Tensor", "Float8Tensor", "IntxUnpackedToInt8Tensor"])
def test_the_librarys_own_files(tmp_path: Any, kind: str) -> None:
    pytest.importorskip("torchao")
    from safetensors.torch import save_file
    from torchao.prototype.safetensors.safetensors_support import flatten_tensor_state_dict
    from torchao.quantization import Float8Tensor, Int8Tensor, IntxUnpackedToInt8Tensor, PerRow

    from octavo.engine.load.checkpoint import open_checkpoint

    weight = torch.randn(48, 64, generator=torch.Generator().manual_seed(3)).bfloat16()
    made = {
        "Int8Tensor": lambda: Int8Tensor.from_hp(weight, PerRow()),
        "Float8Tensor": lambda: Float8Tensor.from_hp(weight, granularity=PerRow()),
        "IntxUnpackedToInt8Tensor": lambda: IntxUnpackedToInt8Tensor.from_hp(weight, (1, 32), torch.int4),
    }[kind]()
    tensors, metadata = flatten_tensor_state_dict({"a.weight": made, "a.bias": torch.zeros(48)})
    save_file(tensors, tmp_path / "model.safetensors", metadata)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama", "quantization_config": SETTINGS}))
    with open_checkpoint(tmp_path) as checkpoint:
        assert set(checkpoint.tensors) == {"a.weight", "a.bias"}
        assert torch.equal(checkpoint.read("a.weight", torch.bfloat16), made.dequantize())
