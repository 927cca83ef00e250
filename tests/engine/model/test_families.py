"""A checkpoint fits its config in every name and shape, or nothing of it is read and the error says what is wrong."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch

from octavo.engine.errors import CheckpointError
from octavo.engine.model.build import build_model, check_checkpoint
from octavo.engine.model.families import plan_weights
from octavo.engine.model.spec import ModelSpec

Make = Callable[..., Any]
UP = "model.layers.1.mlp.up_proj.weight"
MOE: dict[str, Any] = {
    "model_type": "qwen3_moe",
    "vocab_size": 40,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "num_experts": 3,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 16,
}


def refusal(checkpoint: Any) -> CheckpointError:
    """The error of building, which must come before any tensor is read; the check without loading says the same."""
    with pytest.raises(CheckpointError) as built:
        build_model(checkpoint, device="cpu", dtype=torch.float32, context_length=64, fusion=False)
    with pytest.raises(CheckpointError) as checked:
        check_checkpoint(checkpoint)
    assert str(built.value) == str(checked.value)
    assert not checkpoint.streamed
    return built.value


def with_tensor(checkpoint: Any, name: str, tensor: torch.Tensor | None) -> Any:
    """The same checkpoint with a tensor put in, replaced, or (None) taken out."""
    held = dict(checkpoint.held)
    held.pop(name, None)
    if tensor is not None:
        held[name] = tensor
    return type(checkpoint)(checkpoint.config, held)


def test_a_tensor_nobody_knows_is_refused_by_name_and_file(memory_checkpoint: Make) -> None:
    error = refusal(with_tensor(memory_checkpoint(), "model.layers.0.self_attn.sinks", torch.zeros(4)))
    assert error.tensor == "model.layers.0.self_attn.sinks"
    assert "model.safetensors" in str(error.file)
    assert "self_attn.sinks" in str(error)
    assert "model.safetensors" in str(error)


def test_a_tensor_of_another_family_is_refused(memory_checkpoint: Make) -> None:
    name = "model.layers.0.self_attn.q_norm.weight"
    assert refusal(with_tensor(memory_checkpoint(), name, torch.ones(8))).tensor == name


def test_a_layer_more_than_the_config_says_is_refused(memory_checkpoint: Make) -> None:
    name = "model.layers.2.mlp.up_proj.weight"
    assert refusal(with_tensor(memory_checkpoint(), name, torch.ones(48, 32))).tensor == name


def test_a_bias_the_config_does_not_mention_is_refused(memory_checkpoint: Make) -> None:
    name = "model.layers.0.self_attn.q_proj.bias"
    assert refusal(with_tensor(memory_checkpoint(), name, torch.ones(32))).tensor == name


def test_a_missing_tensor_is_named_as_files_name_it(memory_checkpoint: Make) -> None:
    error = refusal(with_tensor(memory_checkpoint(), UP, None))
    assert error.tensor == UP
    assert "model.safetensors" in str(error)
    assert error.remedy


@pytest.mark.parametrize("name", ["model.embed_tokens.weight", "model.norm.weight", "lm_head.weight"])
def test_a_missing_end_of_the_model_is_named(memory_checkpoint: Make, name: str) -> None:
    assert refusal(with_tensor(memory_checkpoint(), name, None)).tensor == name


def test_a_wrong_shape_names_both_shapes(memory_checkpoint: Make) -> None:
    error = refusal(with_tensor(memory_checkpoint(), UP, torch.ones(32, 48)))
    assert error.tensor == UP
    assert "32 x 48" in str(error)
    assert "48 x 32" in str(error)


@pytest.mark.parametrize("stored", ["I64", "I32", "I16", "I8", "U8", "BOOL"])
def test_whole_numbers_are_not_taken_for_weights(memory_checkpoint: Make, stored: str) -> None:
    checkpoint = memory_checkpoint()
    checkpoint.tensors[UP] = dataclasses.replace(checkpoint.tensors[UP], dtype=stored)
    error = refusal(checkpoint)
    assert error.tensor == UP
    assert f"stored as {stored}" in str(error)


def test_a_tied_head_that_is_there_is_skipped(memory_checkpoint: Make) -> None:
    checkpoint = memory_checkpoint(tie_word_embeddings=True)
    assert "lm_head.weight" in checkpoint.tensors
    plan = plan_weights(ModelSpec.from_config(checkpoint.config), checkpoint.tensors)
    assert plan.skipped == ("lm_head.weight",)
    model = build_model(checkpoint, device="cpu", dtype=torch.float32, context_length=64, fusion=True)
    assert "lm_head.weight" not in checkpoint.streamed
    hidden = torch.randn(3, 32)
    expected = hidden @ checkpoint.held["model.embed_tokens.weight"].T
    torch.testing.assert_close(model.logits(hidden), expected)


def test_a_tied_checkpoint_may_hold_its_embedding_under_the_heads_name(memory_checkpoint: Make) -> None:
    checkpoint = with_tensor(memory_checkpoint(tie_word_embeddings=True), "model.embed_tokens.weight", None)
    model = build_model(checkpoint, device="cpu", dtype=torch.float32, context_length=64, fusion=False)
    assert torch.equal(model.weights.embed.acquire().weight, checkpoint.held["lm_head.weight"])


def test_frequencies_that_follow_from_the_config_are_skipped(memory_checkpoint: Make) -> None:
    name = "model.layers.0.self_attn.rotary_emb.inv_freq"
    checkpoint = with_tensor(memory_checkpoint(), name, torch.ones(4))
    assert plan_weights(ModelSpec.from_config(checkpoint.config), checkpoint.tensors).skipped == (name,)


@pytest.mark.parametrize(
    "prefix", ["", "model.", "language_model.model.", "model.language_model.", "model.text_model."]
)
def test_the_prefixes_of_real_files_are_known(memory_checkpoint: Make, prefix: str) -> None:
    checkpoint = memory_checkpoint()
    held = {
        name.replace("model.", prefix, 1) if "lm_head" not in name else name: t for name, t in checkpoint.held.items()
    }
    spec = ModelSpec.from_config(checkpoint.config)
    assert len(plan_weights(spec, type(checkpoint)(checkpoint.config, held).tensors).sources) == len(held)


def test_other_towers_are_skipped_in_a_multimodal_checkpoint_alone(memory_checkpoint: Make) -> None:
    checkpoint = with_tensor(memory_checkpoint(), "vision_tower.patch.weight", torch.ones(3))
    assert refusal(checkpoint).tensor == "vision_tower.patch.weight"
    checkpoint.config = {"model_type": "llava", "text_config": checkpoint.config}
    plan = plan_weights(ModelSpec.from_config(checkpoint.config), checkpoint.tensors)
    assert plan.skipped == ("vision_tower.patch.weight",)


def test_experts_come_one_by_one_or_stacked(memory_checkpoint: Make) -> None:
    stacked = memory_checkpoint(MOE)
    single = {name: t for name, t in stacked.held.items() if ".experts." not in name}
    gate_up = stacked.held["model.layers.0.mlp.experts.gate_up_proj"]
    down = stacked.held["model.layers.0.mlp.experts.down_proj"]
    for e in range(3):
        for name, part in (("gate", gate_up[e, :16]), ("up", gate_up[e, 16:]), ("down", down[e])):
            single[f"model.layers.0.mlp.experts.{e}.{name}_proj.weight"] = part
    built = [
        build_model(c, device="cpu", dtype=torch.float32, context_length=64, fusion=False).weights.layers[0]
        for c in (stacked, type(stacked)(stacked.config, single))
    ]
    for get in (lambda layer: layer.gate_up[0], lambda layer: layer.down):
        assert torch.equal(get(built[0]).acquire().weight, get(built[1]).acquire().weight)

    without = {name: t for name, t in single.items() if "experts.2.up_proj" not in name}
    assert refusal(type(stacked)(stacked.config, without)).tensor == "model.layers.0.mlp.experts.2.up_proj.weight"
    both = single | {"model.layers.0.mlp.experts.down_proj": down}
    assert "already" in str(refusal(type(stacked)(stacked.config, both)))
    more = single | {"model.layers.0.mlp.experts.3.up_proj.weight": down[0].T}
    assert "expert" in str(refusal(type(stacked)(stacked.config, more)))
