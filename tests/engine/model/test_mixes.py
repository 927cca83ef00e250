"""Random models in the mixtures of types that GGUF files come in."""

from __future__ import annotations

from collections import Counter

import pytest
import torch

from octavo.engine.assemble import shape_config
from octavo.engine.errors import LoadError
from octavo.engine.model.build import build_random
from octavo.engine.model.mixes import mixed_parts
from octavo.engine.model.spec import ModelSpec
from octavo.engine.quant.base import LinearSpec, Part
from octavo.engine.quant.blocks import BlockFormat
from octavo.kernels.gguf_weight import KINDS


def test_half_of_the_values_and_second_products_have_six_bits():
    held = mixed_parts("q4_k_m", ModelSpec.from_config(shape_config("llama-8b")))
    kinds = Counter((name.split(".")[-1], form.name) for name, form in held.items())
    assert kinds[("v", "Q6_K")] == kinds[("v", "Q4_K")] == kinds[("down", "Q6_K")] == kinds[("down", "Q4_K")] == 16
    assert kinds[("head", "Q6_K")] == 1
    assert kinds[("q", "Q4_K")] == kinds[("gate", "Q4_K")] == 32
    assert held["layers.0.attn.v"].name == "Q6_K"
    five = mixed_parts("q5_k_m", ModelSpec.from_config(shape_config("llama-8b")))
    assert {name for name, form in five.items() if form.name == "Q5_K"} == {
        name for name, form in held.items() if form.name == "Q4_K"
    }


def test_rows_that_are_no_whole_blocks_are_refused_in_words():
    with pytest.raises(LoadError, match="896 columns"):
        mixed_parts("q4_k_m", ModelSpec.from_config(shape_config("qwen-0.5b")))


def test_a_random_model_of_blocks_answers_with_numbers_about_those_of_plain_weights():
    config = shape_config("qwen-0.5b") | {
        "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "vocab_size": 96, "max_position_embeddings": 64,
    }  # fmt: skip
    where = {"device": "cpu", "dtype": torch.float32, "context_length": 64, "fusion": False}
    model, plain = build_random(config, **where, quantization="q4_k_m"), build_random(config, **where)
    weight, other = (one.weights.layers[0].down.rows(torch.arange(64)) for one in (model, plain))
    assert model.weights.layers[0].down.format.name in ("Q4_K", "Q6_K")
    assert 0.8 < float(weight.std() / other.std()) < 1.25


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_random_blocks_have_the_deviation_that_was_asked_for(kind):
    form, spec = BlockFormat(kind), LinearSpec("w", (Part("w", 64),), 1024)
    packed = form.allocate(spec, torch.float32, torch.device("cpu"))
    form.randomize(packed, spec, torch.Generator().manual_seed(0), 0.02)
    weight = form.dequantize(packed)
    assert 0.018 < float(weight.std()) < 0.022
    assert abs(float(weight.mean())) < 0.003
