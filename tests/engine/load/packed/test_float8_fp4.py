"""E4M3 by blocks, by rows and by tensor, ModelOpt's NVFP4, and gpt-oss's stacks of MXFP4."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from octavo.engine.errors import UnsupportedModelError
from octavo.engine.load.packed import float8, modelopt
from octavo.engine.load.packed.mxfp4 import MXFP4
from octavo.engine.quant.codes import TableCode

E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)


def block_float8(module: str, weight: Tensor) -> tuple[dict[str, Tensor], Tensor]:
    """Blocks of 48 x 80: they fit neither rows nor columns evenly."""
    rows, columns = weight.shape
    codes = torch.empty(rows, columns, dtype=torch.float8_e4m3fn)
    scales = torch.empty(-(-rows // 48), -(-columns // 80))
    meant = torch.empty_like(weight)
    for i in range(scales.shape[0]):
        for j in range(scales.shape[1]):
            at = (slice(48 * i, 48 * i + 48), slice(80 * j, 80 * j + 80))
            scales[i, j] = weight[at].abs().max() / 448
            codes[at] = (weight[at] / scales[i, j]).to(torch.float8_e4m3fn)
            meant[at] = codes[at].float() * scales[i, j]
    return {"weight": codes, "weight_scale_inv": scales}, meant


BLOCKS = {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", "weight_block_size": [48, 80]}


def test_blocks_that_end_where_they_like(write: Any, check: Any) -> None:
    model = check(write(block_float8, BLOCKS))
    assert model.weights.layers[0].qkv[0].format.group == 80


def test_the_comparison_sees_a_scale_that_is_divided_by(
    write: Any, check: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = write(block_float8, BLOCKS)
    right = float8.block_scales
    monkeypatch.setattr(float8, "block_scales", lambda scales, *rest: 1 / right(scales, *rest))
    with pytest.raises(AssertionError):
        check(written)


@pytest.mark.parametrize("by", ["row", "tensor"])
def test_e4m3_by_row_and_by_tensor(write: Any, check: Any, by: str) -> None:
    def quantize(module: str, weight: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        scale = weight.abs().amax(1, keepdim=True) / 448 if by == "row" else (weight.abs().max() / 448).reshape(())
        codes = (weight / scale).to(torch.float8_e4m3fn)
        parts = {"weight": codes, "weight_scale": scale}
        if by == "tensor":
            parts["input_scale"] = torch.tensor(0.1)
        return parts, codes.float() * scale

    settings: dict[str, Any] = {"quant_method": "fbgemm_fp8"}
    if by == "tensor":
        settings = {"quant_method": "modelopt", "quantization": {"quant_algo": "FP8"}}
    check(write(quantize, settings))


def nvfp4(module: str, weight: Tensor) -> tuple[dict[str, Tensor], Tensor]:
    outer = weight.abs().max() / (448 * 6)
    scales = (weight.view(weight.shape[0], -1, 16).abs().amax(-1) / 6 / outer).to(torch.float8_e4m3fn)
    generator = torch.Generator().manual_seed(weight.shape[0])
    codes = torch.randint(0, 16, weight.shape, generator=generator, dtype=torch.uint8)
    numbers = torch.tensor([*E2M1, *(-value for value in E2M1)])[codes.int()]
    meant = numbers * (scales.float() * outer).repeat_interleave(16, 1)
    packed = codes[:, ::2] | (codes[:, 1::2] << 4)
    return {"weight": packed, "weight_scale": scales, "weight_scale_2": outer.reshape(())}, meant


@pytest.mark.parametrize(
    "settings", [{"quant_method": "modelopt", "quant_algo": "NVFP4"}, {"quantization": {"quant_algo": "NVFP4"}}]
)
def test_modelopt_nvfp4(write: Any, check: Any, settings: dict[str, Any]) -> None:
    """In config.json, or in the file of its own that older versions write."""
    if "quant_method" in settings:
        written = write(nvfp4, settings)
    else:
        written = write(nvfp4, None)
        (written.folder / "hf_quant_config.json").write_text('{"quantization": {"quant_algo": "NVFP4"}}')
    check(written)


def test_high_nibbles_first_are_noticed(write: Any, check: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    written = write(nvfp4, {"quant_method": "modelopt", "quant_algo": "NVFP4"})

    class Swapped(TableCode):
        def unpack(self, plane: Tensor, in_dim: int) -> Tensor:
            return super().unpack((plane << 4) | (plane >> 4), in_dim)

    monkeypatch.setattr(modelopt, "E2M1", Swapped("e2m1"))
    with pytest.raises(AssertionError):
        check(written)


def test_other_algorithms_of_modelopt_are_refused(write: Any) -> None:
    with pytest.raises(UnsupportedModelError, match=r"W4A8_AWQ.*NVFP4"):
        write(nvfp4, {"quant_method": "modelopt", "quant_algo": "W4A8_AWQ"}).open()


def test_stacks_of_mxfp4_expand_as_transformers_expands_them() -> None:
    integration = pytest.importorskip("transformers.integrations.mxfp4")
    generator = torch.Generator().manual_seed(0)
    blocks = torch.randint(0, 256, (3, 10, 4, 16), generator=generator, dtype=torch.uint8)
    scales = torch.randint(118, 134, (3, 10, 4), generator=generator, dtype=torch.uint8)
    planes = _mxfp4(blocks, scales)
    wanted = integration.convert_moe_packed_tensors(blocks.clone(), scales.clone(), dtype=torch.bfloat16)
    assert torch.equal(planes["weight"], wanted)
    assert not torch.equal(_mxfp4((blocks << 4) | (blocks >> 4), scales)["weight"], wanted)


def _mxfp4(blocks: Tensor, scales: Tensor) -> dict[str, Tensor]:
    from pathlib import Path

    from octavo.engine.load.checkpoint import TensorInfo

    def info(name: str, tensor: Tensor) -> TensorInfo:
        return TensorInfo(name, "U8", tuple(tensor.shape), Path("model.safetensors"), tensor.numel())

    found = {"_blocks": blocks, "_scales": scales}
    scheme = MXFP4({}, lambda name: found[name], Path("model"))
    assert scheme.module_of("model.layers.0.mlp.experts.down_proj_blocks") == (
        "model.layers.0.mlp.experts.down_proj",
        "_blocks",
    )
    weight = scheme.weight("experts.gate_up_proj", {role: info(role, tensor) for role, tensor in found.items()})
    assert weight.shape == (3, 128, 10)
    return weight.convert(found)
