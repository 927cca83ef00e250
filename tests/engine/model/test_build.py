"""Building: where weights land, in which dtype, with what progress, and what the finished model says of itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from octavo.engine.errors import LoadError, UnsupportedModelError
from octavo.engine.model.build import build_model, build_random, longest_context, model_limits
from octavo.engine.model.families import parameter_count
from octavo.engine.model.parameters import Weights, interleave, part_shapes
from octavo.engine.model.spec import ModelSpec
from octavo.engine.quant.plain import PlainFormat

Make = Callable[..., Any]


def build(checkpoint: Any, **options: Any) -> Any:
    settings = {"device": "cpu", "dtype": torch.float32, "context_length": 64, "fusion": False} | options
    return build_model(checkpoint, **settings)


def test_merged_parts_stand_in_order(memory_checkpoint: Make) -> None:
    checkpoint = memory_checkpoint(attention_bias=True)
    spec = ModelSpec.from_config(checkpoint.config)
    weights = Weights.allocate(spec, PlainFormat(), device=torch.device("cpu"), dtype=torch.float32, merged=True)
    for name, shape in part_shapes(spec).items():
        weights.fill(name, torch.full(shape, {"q": 1.0, "k": 2.0, "v": 3.0}.get(name.split(".")[-2], 0.0)))
    packed = weights.layers[0].qkv[0].acquire()
    for tensor in (packed.weight[:, 0], packed.bias):
        assert tensor.tolist() == [1.0] * 32 + [2.0] * 16 + [3.0] * 16


def test_weights_are_cast_and_norms_that_multiply_early_stay_exact(memory_checkpoint: Make) -> None:
    plain = build(memory_checkpoint(), dtype=torch.bfloat16)
    assert plain.weights.norm.dtype == torch.bfloat16
    gemma = build(memory_checkpoint(model_type="gemma2", head_dim=8), dtype=torch.bfloat16)
    assert gemma.weights.norm.dtype == torch.float32
    assert gemma.weights.embed.acquire().weight.dtype == torch.bfloat16


def test_gemma_norms_get_their_one_back(memory_checkpoint: Make) -> None:
    checkpoint = memory_checkpoint(model_type="gemma2", head_dim=8)
    checkpoint.held["model.norm.weight"] = torch.linspace(-1, 1, 32)
    assert torch.equal(build(checkpoint).weights.norm, torch.linspace(-1, 1, 32) + 1)


def test_progress_rises_to_the_whole(memory_checkpoint: Make) -> None:
    calls: list[tuple[str, int, int]] = []
    checkpoint = memory_checkpoint()
    build(checkpoint, progress=lambda *call: calls.append(call))
    done = [call[1] for call in calls]
    assert done == sorted(done)
    assert {call[2] for call in calls} == {sum(info.size_bytes for info in checkpoint.tensors.values())} == {done[-1]}


def test_every_tensor_is_read_once(memory_checkpoint: Make) -> None:
    checkpoint = memory_checkpoint()
    build(checkpoint)
    assert sorted(checkpoint.streamed) == sorted(checkpoint.tensors)


def test_a_model_says_what_it_needs(memory_checkpoint: Make, tiny_config: dict[str, Any]) -> None:
    checkpoint = memory_checkpoint()
    model = build(checkpoint, dtype=torch.bfloat16)
    assert (model.name, model.architecture, model.vocab_size, model.max_positions) == (
        "tiny-model",
        "LlamaForCausalLM",
        40,
        64,
    )
    assert model.weight_bytes == 2 * parameter_count(model_limits(tiny_config))
    assert model.weight_bytes == 2 * sum(t.numel() for t in checkpoint.held.values())
    assert model.capturable
    (group,) = model.cache_groups
    assert (group.layers, group.window, group.numel_per_token) == ((0, 1), None, 2 * 2 * 2 * 8)


def test_layers_of_a_kind_share_a_cache_group(memory_checkpoint: Make) -> None:
    checkpoint = memory_checkpoint(
        model_type="gemma3_text", head_dim=8, num_hidden_layers=4, sliding_window=16, sliding_window_pattern=2
    )
    model = build(checkpoint)
    assert [(g.name, g.layers, g.window) for g in model.cache_groups] == [
        ("window-16", (0, 2), 16),
        ("full", (1, 3), None),
    ]
    assert [spec.window for spec in model.attn_specs] == [16, None, 16, None]


def test_a_window_no_shorter_than_the_context_is_none(memory_checkpoint: Make) -> None:
    checkpoint = memory_checkpoint(model_type="mistral", sliding_window=32)
    assert build(checkpoint, context_length=32).cache_groups[0].window is None
    assert build(checkpoint, context_length=33).cache_groups[0].window == 32


def test_an_unknown_weight_format_names_those_that_exist(memory_checkpoint: Make) -> None:
    checkpoint = memory_checkpoint()
    with pytest.raises(LoadError, match=r"'q99'.*none"):
        build(checkpoint, quantization="q99")
    assert not checkpoint.streamed


@pytest.mark.parametrize("fusion", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_random_weights_are_seeded_and_spread(tiny_config: dict[str, Any], fusion: bool, dtype: torch.dtype) -> None:
    options = {"device": "cpu", "dtype": dtype, "context_length": 64, "fusion": fusion}
    one, same, other = (build_random(tiny_config, **options, seed=seed) for seed in (1, 1, 2))
    ids = torch.arange(40)
    assert torch.equal(one.weights.embed.rows(ids), same.weights.embed.rows(ids))
    assert not torch.equal(one.weights.embed.rows(ids), other.weights.embed.rows(ids))
    for ref in (one.weights.head, one.weights.layers[1].down, one.weights.layers[0].qkv[0]):
        weight = ref.format.dequantize(ref.acquire()).float()
        assert float(weight.std()) == pytest.approx(0.02, rel=0.1)
        assert abs(float(weight.mean())) < 2e-3
    assert one.weights.norm.unique().tolist() == [1.0]


def test_interleaving_puts_rotating_channels_side_by_side() -> None:
    rows = torch.arange(2 * 6)[:, None]
    assert interleave(rows, 6, 4)[:, 0].tolist() == [0, 2, 1, 3, 4, 5, 6, 8, 7, 9, 10, 11]


def test_an_architecture_nobody_knows_is_refused_by_name_with_what_is_supported(memory_checkpoint: Make) -> None:
    checkpoint = memory_checkpoint()
    checkpoint.config = checkpoint.config | {"model_type": "foo"}
    for attempt in (lambda: build(checkpoint), lambda: longest_context(checkpoint.config)):
        with pytest.raises(UnsupportedModelError, match=r"foo.*llama.*qwen3_moe"):
            attempt()
    assert not checkpoint.streamed


def test_a_feature_of_a_known_family_that_is_missing_is_refused_and_not_tried_elsewhere(
    memory_checkpoint: Make,
) -> None:
    checkpoint = memory_checkpoint()
    checkpoint.config = checkpoint.config | {"rope_scaling": {"rope_type": "bar"}}
    with pytest.raises(UnsupportedModelError, match=r"'bar'.*longrope"):
        build(checkpoint)


def test_other_architectures_run_through_their_transformers_class(
    saved_model: Callable[..., Any],
) -> None:
    with saved_model("starcoder2") as checkpoint:
        assert longest_context(checkpoint.config) == 64
        model = build(checkpoint)
        assert model.architecture == "Starcoder2ForCausalLM"
        with pytest.raises(LoadError, match="'q4'"):
            build(checkpoint, quantization="q4")
