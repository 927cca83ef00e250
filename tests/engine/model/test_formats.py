"""What `quantization` means for each part of a model, and how much memory that takes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from octavo.engine.model.build import build_model, build_random
from octavo.engine.model.formats import FormatChoice, weight_bytes
from octavo.engine.model.spec import ModelSpec
from octavo.engine.quant.products import find_all, find_fused

CPU = torch.device("cpu")


def build(checkpoint: Any, **options: Any) -> Any:
    settings = {"device": "cpu", "dtype": torch.float32, "context_length": 64, "fusion": True} | options
    return build_model(checkpoint, **settings)


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("fusion", [False, True])
def test_head_and_embedding_are_left_alone_unless_asked(
    memory_checkpoint: Callable[..., Any], tied: bool, fusion: bool
) -> None:
    plain = build(memory_checkpoint(tie_word_embeddings=tied), quantization="int8", fusion=fusion).weights
    assert plain.layers[0].down.format.name == "int8"
    assert (plain.head.format.name, plain.embed.format.name) == ("none", "none")
    assert (plain.head is plain.embed) == tied
    asked = build(
        memory_checkpoint(tie_word_embeddings=tied), quantization="int8", fusion=fusion, quantize_head=True
    ).weights
    assert (asked.head.format.name, asked.embed.format.name) == ("int8", "none")


@pytest.mark.parametrize("quantization", ["int8", "int4", "nf4", "fp8", "int8-dynamic", "llm-int8"])
def test_a_rounded_model_says_almost_what_the_exact_one_says(
    memory_checkpoint: Callable[..., Any], quantization: str
) -> None:
    """Merged and apart: rounding goes row by row, so that both hold the same numbers."""
    checkpoint = memory_checkpoint(hidden_size=64, intermediate_size=100, head_dim=16, attention_bias=True)
    merged, apart = (build(checkpoint, quantization=quantization, fusion=fusion) for fusion in (True, False))
    for one, many in zip(merged.weights.layers, apart.weights.layers):
        gate_up = torch.cat([ref.format.dequantize(ref.acquire()) for ref in many.gate_up])
        assert torch.equal(one.gate_up[0].format.dequantize(one.gate_up[0].acquire()), gate_up)
        wanted = checkpoint.held["model.layers.0.mlp.gate_proj.weight"]
        if one is merged.weights.layers[0]:
            error = (gate_up[:100] - wanted).norm() / wanted.norm()
            assert 0 < error < 0.15


def test_every_product_of_a_model_in_nf4_has_kernels_on_a_gpu(
    memory_checkpoint: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (9, 0))
    model = build(memory_checkpoint(hidden_size=64, intermediate_size=96, head_dim=16), quantization="nf4")
    for layer in model.weights.layers:
        for ref in (*layer.qkv, layer.o, *layer.gate_up, layer.down):
            assert ref.format.name == "nf4"
            assert find_fused(ref.format, ref.spec, torch.bfloat16, torch.device("cuda")) is not None
            assert all(find_all(ref.format, ref.spec, torch.bfloat16, torch.device("cuda")))


@pytest.mark.parametrize("quantization", ["none", "int8", "int4", "nf4", "fp8"])
@pytest.mark.parametrize("family", ["llama", "qwen3_moe"])
def test_memory_is_known_before_anything_is_loaded(
    memory_checkpoint: Callable[..., Any], quantization: str, family: str
) -> None:
    sizes = {"moe_intermediate_size": 32, "num_experts": 3, "num_experts_per_tok": 2, "head_dim": 8}
    checkpoint = memory_checkpoint(model_type=family, **sizes if family == "qwen3_moe" else {})
    spec = ModelSpec.from_config(checkpoint.config)
    formats = FormatChoice(quantization, False, CPU, torch.float32, True).of_config()
    model = build(checkpoint, quantization=quantization)
    small = sum(t.numel() * 4 for n, t in checkpoint.held.items() if t.ndim == 1 or n.endswith("mlp.gate.weight"))
    assert weight_bytes(formats, spec, torch.float32) == model.weight_bytes - small


def test_the_last_product_that_adds_to_the_stream_has_finer_steps_than_fp8(
    memory_checkpoint: Callable[..., Any],
) -> None:
    layers = build(memory_checkpoint(), quantization="fp8").weights.layers
    assert [layer.down.format.name for layer in layers] == ["fp8"] * (len(layers) - 1) + ["int8"]
    assert {ref.format.name for layer in layers for ref in (*layer.qkv, layer.o, *layer.gate_up)} == {"fp8"}
    experts = memory_checkpoint(
        model_type="qwen3_moe", moe_intermediate_size=32, num_experts=3, num_experts_per_tok=2, head_dim=8
    )
    assert {layer.down.format.name for layer in build(experts, quantization="fp8").weights.layers} == {"fp8"}


@pytest.mark.parametrize("quantization", ["int4", "fp8", "nf4"])
def test_shapes_can_be_measured_in_any_format(tiny_config: dict[str, Any], quantization: str) -> None:
    options = {"device": "cpu", "dtype": torch.bfloat16, "context_length": 64, "fusion": True}
    model = build_random(tiny_config, **options, quantization=quantization)
    ref = model.weights.layers[0].down
    assert ref.format.name == quantization
    assert float(ref.format.dequantize(ref.acquire()).float().std()) == pytest.approx(0.02, rel=0.15)


@pytest.mark.parametrize(
    ("quantization", "fusion", "warned"),
    [
        ("int8", True, False),
        ("int8", False, True),
        ("int4", True, False),
        ("int4-symmetric", True, False),
        ("int4", False, True),
        ("nf4", True, True),
        ("fp8", True, True),
        ("int8-dynamic", False, False),
        ("none", True, False),
    ],
)
def test_a_format_that_is_slow_on_the_device_says_so(
    memory_checkpoint: Callable[..., Any], quantization: str, fusion: bool, warned: bool
) -> None:
    checkpoint = memory_checkpoint(hidden_size=64, intermediate_size=96, head_dim=32)
    notices = build(checkpoint, quantization=quantization, fusion=fusion).notices
    assert [quantization in notice and "slow on the CPU" in notice for notice in notices] == [True] * warned
