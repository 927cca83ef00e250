"""The same weights in the forms real checkpoints come in: multimodal wrappers, old configs, 16 bit, sharded."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
import torch
import transformers as tf

SIZES: dict[str, Any] = {
    "vocab_size": 101,
    "hidden_size": 48,
    "intermediate_size": 56,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
PROMPT = torch.randint(3, 90, (19,), generator=torch.Generator().manual_seed(11)).tolist()


def gemma3() -> tuple[Any, Any]:
    vision = {
        "hidden_size": 16,
        "intermediate_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "image_size": 28,
        "patch_size": 14,
    }
    text = SIZES | {"head_dim": 16, "sliding_window": 8, "layer_types": ["sliding_attention"] * 2 + ["full_attention"]}
    return tf.Gemma3Config(
        text_config=text, vision_config=vision, image_token_index=95, boi_token_index=96, eoi_token_index=97
    ), tf.Gemma3ForConditionalGeneration


def llava() -> tuple[Any, Any]:
    vision = {
        "model_type": "clip_vision_model",
        "hidden_size": 16,
        "intermediate_size": 16,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "image_size": 28,
        "patch_size": 14,
    }
    text = SIZES | {"model_type": "qwen2"}
    return tf.LlavaConfig(
        text_config=text, vision_config=vision, image_token_index=95
    ), tf.LlavaForConditionalGeneration


@pytest.mark.parametrize("make", [gemma3, llava])
def test_the_text_part_of_a_multimodal_checkpoint_runs(
    saved: Callable[..., Any], paged: Callable[..., Any], make: Callable[[], tuple[Any, Any]]
) -> None:
    config, model_class = make()
    reference = saved(config, model_class=model_class)
    model = reference.load()
    assert any("text part" in notice for notice in model.notices)
    torch.testing.assert_close(paged(model).forward({0: PROMPT}), reference.logits(PROMPT), atol=1e-4, rtol=1e-4)


def test_a_config_of_the_old_form_gives_the_same_scores(saved: Callable[..., Any], paged: Callable[..., Any]) -> None:
    parameters = {"rope_type": "linear", "factor": 2.0, "rope_theta": 300.0}
    reference = saved(tf.LlamaConfig(**SIZES, rope_parameters=parameters))
    file = reference.path / "config.json"
    config = json.loads(file.read_text(encoding="utf-8"))
    del config["rope_parameters"]
    config |= {"rope_theta": 300.0, "rope_scaling": {"type": "linear", "factor": 2.0}}
    file.write_text(json.dumps(config), encoding="utf-8")
    scores = paged(reference.load()).forward({0: PROMPT})
    torch.testing.assert_close(scores, reference.logits(PROMPT), atol=1e-4, rtol=1e-4)


def test_a_sharded_checkpoint_gives_the_same_scores(saved: Callable[..., Any], paged: Callable[..., Any]) -> None:
    reference = saved(tf.LlamaConfig(**SIZES))
    (reference.path / "model.safetensors").unlink()
    reference.model.save_pretrained(reference.path, max_shard_size="40KB")
    assert len(list(reference.path.glob("model-*.safetensors"))) > 1
    scores = paged(reference.load()).forward({0: PROMPT})
    torch.testing.assert_close(scores, reference.logits(PROMPT), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(
    "config", [tf.LlamaConfig(**SIZES), tf.Qwen3Config(**SIZES, head_dim=16), gemma3()[0].text_config]
)
def test_in_16_bit_fused_scores_are_as_near_to_the_truth_as_the_textbooks(
    saved: Callable[..., Any], paged: Callable[..., Any], config: Any
) -> None:
    reference = saved(config)
    truth = reference.logits(PROMPT)
    errors = []
    for fusion in (False, True):
        model = reference.load(dtype=torch.bfloat16, fusion=fusion)
        scores = paged(model).forward({0: PROMPT})
        assert scores.dtype == torch.float32
        errors.append(float((scores - truth).norm() / truth.norm()))
    assert errors[0] < 0.05
    assert errors[1] < 1.5 * errors[0]


@pytest.mark.parametrize("config", [tf.LlamaConfig(**SIZES), tf.Olmo2Config(**SIZES)])
def test_layers_can_be_run_in_two_halves(saved: Callable[..., Any], paged: Callable[..., Any], config: Any) -> None:
    reference = saved(config)
    model = reference.load()
    run = paged(model)
    step, ids, positions = run._step([(0, PROMPT)])
    with torch.inference_mode():
        middle = model.forward(ids, positions, step, last_layer=2)
        kept = middle.clone()
        end = model.forward(ids, positions, step, first_layer=2, hidden=middle)
    assert torch.equal(middle, kept)
    torch.testing.assert_close(model.logits(end), reference.logits(PROMPT), atol=1e-4, rtol=1e-4)
