"""Parts of a quantized model that are special: its head, its experts, linears that were left alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from octavo.engine.errors import CheckpointError, LoadError

EXPERTS = {
    "model_type": "qwen3_moe",
    "architectures": ["Qwen3MoeForCausalLM"],
    "num_experts": 3,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 64,
    "head_dim": 32,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
}
FP8 = {"quant_method": "fp8", "weight_block_size": [32, 32]}


def float8(module: str, weight: Tensor) -> tuple[dict[str, Tensor], Tensor]:
    scales = torch.rand(-(-weight.shape[0] // 32), -(-weight.shape[1] // 32)) + 0.5
    spread = scales.repeat_interleave(32, 0)[: weight.shape[0]].repeat_interleave(32, 1)[:, : weight.shape[1]]
    codes = (weight / spread).to(torch.float8_e4m3fn)
    return {"weight": codes, "weight_scale_inv": scales}, codes.float() * spread


def alone(skipped: str) -> Callable[[str, Tensor], tuple[dict[str, Tensor], Tensor]]:
    def quantize(module: str, weight: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        return ({"weight": weight}, weight) if skipped in module else float8(module, weight)

    return quantize


def test_a_head_that_is_packed_stays_so(write: Any) -> None:
    written = write(float8, FP8, also=("lm_head",))
    head, wanted = written.build().weights.head, written.meant["lm_head.weight"]
    assert head.format.name == "FP8"
    assert torch.equal(head.format.dequantize(head.acquire()), wanted)


def test_a_packed_head_beside_a_tied_embedding_is_that_embedding(write: Any) -> None:
    model = write(float8, FP8, also=("lm_head",), tie_word_embeddings=True).build()
    assert model.weights.head is model.weights.embed
    assert model.weights.head.format.name == "none"


def test_a_packed_embedding_is_read_by_rows(write: Any) -> None:
    written = write(float8, FP8, also=("embed_tokens",))
    embed, wanted = written.build().weights.embed, written.meant["model.embed_tokens.weight"]
    assert embed.format.name == "FP8"
    assert torch.equal(embed.rows(torch.tensor([7, 0, 7])), wanted[[7, 0, 7]])


@pytest.mark.parametrize("skipped", ["v_proj", "up_proj", "o_proj"])
def test_a_linear_that_was_left_alone_stands_beside_packed_ones(write: Any, skipped: str) -> None:
    written = write(alone(skipped), FP8)
    for packed, plain in zip(written.build().weights.layers, written.build(quantization="none").weights.layers):
        for one, other in zip((*packed.qkv, packed.o, *packed.gate_up), (*plain.qkv, plain.o, *plain.gate_up)):
            wanted = other.format.dequantize(other.acquire())
            assert torch.equal(one.format.dequantize(one.acquire()), wanted)
            x = torch.randn(2, one.spec.in_dim)
            torch.testing.assert_close(one(x), x @ wanted.T)


def test_experts_stay_packed(write: Any) -> None:
    written = write(float8, FP8, **EXPERTS)
    packed, plain = written.build().weights, written.build(quantization="none").weights
    for mine, full in zip(packed.layers, plain.layers):
        for one, other in ((mine.gate_up[0], full.gate_up[0]), (mine.down, full.down)):
            assert one.format.name == "FP8"
            assert torch.equal(one.format.dequantize(one.acquire()), other.format.dequantize(other.acquire()))
            x, ends = torch.randn(5, one.spec.in_dim), torch.tensor([2, 2, 5], dtype=torch.int32)
            torch.testing.assert_close(one.grouped(x, ends), other.grouped(x, ends))
        assert torch.equal(mine.router, full.router)


def test_one_expert_that_was_left_alone_expands_its_stack(write: Any) -> None:
    weights = write(alone("layers.0.mlp.experts.1.up_proj"), FP8, **EXPERTS).build().weights
    gate, up = weights.layers[0].gate_up[0].format.pieces
    assert (gate.name, up.name) == ("FP8", "none")
    assert weights.layers[1].gate_up[0].format.name == "FP8"


def test_other_architectures_get_their_weights_expanded(write: Any) -> None:
    written = write(
        float8,
        FP8,
        model_type="starcoder2",
        architectures=["Starcoder2ForCausalLM"],
        also=("c_fc", "c_proj"),
        use_bias=False,
    )
    model = written.build(quantization="none")
    assert model.architecture == "Starcoder2ForCausalLM"
    assert len(written.meant) == 12
    for name, wanted in written.meant.items():
        assert torch.equal(model._model.get_parameter(name), wanted), name


@pytest.mark.parametrize(
    "settings",
    [
        {"quant_method": "awq", "group_size": "many"},
        {"quant_method": "gptq", "bits": [4]},
        {"quant_method": "fp8", "weight_block_size": [0, 0]},
        {"quant_method": "fp8", "weight_block_size": "128"},
        {"quant_method": "compressed-tensors", "config_groups": {"a": {"targets": ["re:("]}}},
    ],
)
def test_settings_that_make_no_sense_are_blamed(write: Any, settings: dict[str, Any]) -> None:
    def quantize(module: str, weight: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        parts, meant = float8(module, weight)
        words = torch.zeros(weight.shape[1], weight.shape[0] // 8, dtype=torch.int32)
        extra = {"qweight": words, "qzeros": words[:1], "scales": torch.ones(1, weight.shape[0])}
        fits = {"awq": extra, "gptq": extra, "fp8": parts}
        return fits.get(settings["quant_method"], parts | {"weight_scale": torch.ones(1)}), meant

    with pytest.raises(LoadError) as caught:
        write(quantize, settings).open()
    assert "Traceback" not in str(caught.value)


@pytest.mark.parametrize("dtype", [torch.float32, torch.int8])
def test_codes_of_another_type_are_blamed(write: Any, dtype: torch.dtype) -> None:
    def quantize(module: str, weight: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        parts, meant = float8(module, weight)
        return parts | {"weight": torch.zeros(weight.shape, dtype=dtype)}, meant

    with pytest.raises(CheckpointError, match="with a scale"):
        write(quantize, FP8).open()
