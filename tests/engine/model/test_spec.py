"""What a config file says is what the decoder is built as; what it cannot be built as is refused by name."""

from __future__ import annotations

from typing import Any

import pytest
import transformers as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.engine.errors import ModelConfigError, UnsupportedModelError
from octavo.engine.model.defaults import FAMILY_DEFAULTS
from octavo.engine.model.families import LAYER_TABLES
from octavo.engine.model.parameters import part_shapes
from octavo.engine.model.rotary import ROPE_KINDS, inverse_frequencies
from octavo.engine.model.spec import FAMILIES, ModelSpec

CONFIG_CLASSES: dict[str, Any] = {
    "llama": tf.LlamaConfig,
    "smollm3": tf.SmolLM3Config,
    "mistral": tf.MistralConfig,
    "qwen2": tf.Qwen2Config,
    "qwen3": tf.Qwen3Config,
    "gemma2": tf.Gemma2Config,
    "gemma3_text": tf.Gemma3TextConfig,
    "phi3": tf.Phi3Config,
    "granite": tf.GraniteConfig,
    "olmo2": tf.Olmo2Config,
    "mixtral": tf.MixtralConfig,
    "qwen3_moe": tf.Qwen3MoeConfig,
}


def small(**changes: Any) -> dict[str, Any]:
    """A complete llama config of the old form."""
    config = {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "vocab_size": 64,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 256,
        "rms_norm_eps": 1e-5,
        "rope_theta": 5000.0,
        "tie_word_embeddings": False,
    }
    return {key: value for key, value in (config | changes).items() if value != "left out"}


def test_every_family_has_a_table_of_tensors_and_a_config_class_to_compare_with() -> None:
    assert set(FAMILIES) == set(LAYER_TABLES) == set(CONFIG_CLASSES)


@pytest.mark.parametrize("family", FAMILIES)
def test_fields_a_file_leaves_out_are_those_transformers_assumes(family: str) -> None:
    bare = ModelSpec.from_config({"model_type": family, "architectures": ["X"]})
    full = ModelSpec.from_config(CONFIG_CLASSES[family]().to_dict() | {"architectures": ["X"]})
    assert bare == full


def test_old_and_new_forms_of_rope_settings_mean_the_same() -> None:
    scaling = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64}
    kinds = [
        small(rope_scaling=scaling | {"rope_type": "llama3"}),
        small(rope_scaling=scaling | {"type": "llama3"}),
        small(rope_theta="left out", rope_parameters=scaling | {"rope_type": "llama3", "rope_theta": 5000.0}),
    ]
    specs = [ModelSpec.from_config(config) for config in kinds]
    assert specs[0].ropes[0].kind == "llama3"
    assert specs[0] == specs[1] == specs[2]


def test_gemma3_reads_both_its_ropes_in_old_and_new_form() -> None:
    sizes = {"model_type": "gemma3_text", "num_hidden_layers": 6, "architectures": ["X"]}
    old = sizes | {
        "rope_theta": 3e5,
        "rope_local_base_freq": 2e4,
        "rope_scaling": {"rope_type": "linear", "factor": 8.0},
    }
    new = sizes | {
        "rope_parameters": {
            "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 3e5},
            "sliding_attention": {"rope_type": "default", "rope_theta": 2e4},
        }
    }
    spec = ModelSpec.from_config(old)
    assert spec == ModelSpec.from_config(new)
    assert [(rope.kind, rope.theta) for rope in spec.ropes] == [("linear", 3e5), ("default", 2e4)]
    assert [layer.rope for layer in spec.layers] == [1, 1, 1, 1, 1, 0]


def test_longest_context_counts_the_rope_scaling() -> None:
    yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 256}
    assert ModelSpec.from_config(small(rope_scaling=yarn)).max_positions == 1024
    assert ModelSpec.from_config(small(rope_scaling={"type": "dynamic", "factor": 2.0})).max_positions == 512
    llama3 = {"rope_type": "llama3", "factor": 8.0, "original_max_position_embeddings": 32}
    assert ModelSpec.from_config(small(rope_scaling=llama3)).max_positions == 256


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model_type": "foo"}, ["'foo'", "llama", "qwen3_moe"]),
        ({"model_type": "left out"}, ["none", "llama"]),
        ({"rope_scaling": {"rope_type": "bar"}}, ["'bar'", "llama3", "longrope"]),
        ({"rope_scaling": {"type": "bar", "factor": 2.0}}, ["'bar'"]),
        ({"rope_scaling": {"rope_type": "linear"}}, ["linear", "factor"]),
        ({"rope_scaling": {"rope_type": "linear", "factor": "two"}}, ["factor", "'two'"]),
        (
            {"rope_scaling": {"rope_type": "longrope", "short_factor": [1.0], "long_factor": [1.0]}},
            ["short_factor", "4"],
        ),
        ({"rope_scaling": "yarn"}, ["rope_scaling"]),
        ({"hidden_act": "mish"}, ["hidden_act", "'mish'", "silu"]),
        ({"num_key_value_heads": 3}, ["4", "3"]),
        ({"hidden_size": -1}, ["hidden_size", "-1"]),
        ({"num_hidden_layers": "four"}, ["num_hidden_layers", "'four'"]),
        ({"num_hidden_layers": 10**9}, ["1000000000 layers", "4096"]),
        ({"max_position_embeddings": 10**30}, ["max_position_embeddings", "2147483647"]),
        ({"use_bidirectional_attention": True}, ["bidirectional"]),
        ({"model_type": "qwen3", "use_sliding_window": True, "layer_types": ["chunked"] * 4}, ["chunked"]),
        ({"model_type": "mixtral", "num_local_experts": 2, "num_experts_per_tok": 3}, ["3", "2"]),
    ],
)
def test_what_is_not_supported_is_named_in_one_sentence_with_what_to_do(
    changes: dict[str, Any], words: list[str]
) -> None:
    with pytest.raises(UnsupportedModelError) as caught:
        ModelSpec.from_config(small(**changes))
    message = caught.value.message
    assert all(word in message for word in words), message
    assert message.count(". ") == 0
    assert message.endswith(".")
    assert caught.value.remedy


@pytest.mark.parametrize("changes", [{"hidden_size": -1}, {"rope_scaling": {"rope_type": "linear", "factor": "two"}}])
def test_a_value_that_no_model_has_asks_for_the_models_own_config(changes: dict[str, Any]) -> None:
    with pytest.raises(ModelConfigError, match=r"[Ff]etch .*own config\.json"):
        ModelSpec.from_config(small(**changes))


@pytest.mark.parametrize("changes", [{"hidden_act": "mish"}, {"rope_scaling": {"rope_type": "bar"}}])
def test_a_feature_that_is_not_there_asks_for_no_other_config(changes: dict[str, Any]) -> None:
    with pytest.raises(UnsupportedModelError, match="Choose another model") as caught:
        ModelSpec.from_config(small(**changes))
    assert not isinstance(caught.value, ModelConfigError)


def test_the_text_part_of_a_multimodal_checkpoint_is_read_and_said() -> None:
    outer = {
        "model_type": "llava",
        "architectures": ["LlavaForConditionalGeneration"],
        "text_config": small(architectures="left out"),
        "vision_config": {"model_type": "clip_vision_model"},
    }
    spec = ModelSpec.from_config(outer)
    assert (spec.family, spec.architecture) == ("llama", "LlavaForConditionalGeneration")
    assert spec.multimodal
    assert "text part" in spec.notices[0]
    assert not ModelSpec.from_config(small()).notices


def test_a_multimodal_checkpoint_whose_text_part_is_unknown_names_both() -> None:
    with pytest.raises(UnsupportedModelError, match=r"'newvl'.*'newtext'"):
        ModelSpec.from_config({"model_type": "newvl", "text_config": {"model_type": "newtext"}})


def test_a_checkpoint_that_attends_to_its_prompt_both_ways_is_refused() -> None:
    with pytest.raises(UnsupportedModelError, match="paligemma"):
        ModelSpec.from_config({"model_type": "paligemma", "text_config": {"model_type": "gemma2"}})


def test_layers_without_positions_and_windows_follow_the_config() -> None:
    spec = ModelSpec.from_config(small(model_type="smollm3", no_rope_layers=[1, 0, 1, 0]))
    assert [layer.rope for layer in spec.layers] == [0, None, 0, None]
    qwen = ModelSpec.from_config(
        small(model_type="qwen2", use_sliding_window=True, sliding_window=16, max_window_layers=3)
    )
    assert [layer.window for layer in qwen.layers] == [None, None, None, 16]
    assert {layer.window for layer in ModelSpec.from_config(small(model_type="mistral", sliding_window=8)).layers} == {
        8
    }
    assert {
        layer.window for layer in ModelSpec.from_config(small(model_type="mistral", sliding_window=None)).layers
    } == {None}


def test_a_tied_model_has_no_head_of_its_own() -> None:
    assert "head.weight" in part_shapes(ModelSpec.from_config(small()))
    assert "head.weight" not in part_shapes(ModelSpec.from_config(small(tie_word_embeddings=True)))


JUNK = st.sampled_from(
    [None, 0, -1, 1, 3, 10**6, 0.0, -2.5, float("inf"), float("nan"), True, "x", [], [0], [1] * 4, {}, {"a": 1}]
)
KEYS = sorted(
    {key for defaults in FAMILY_DEFAULTS.values() for key in defaults}
    | {"layer_types", "no_rope_layers", "mlp_only_layers", "decoder_sparse_step", "architectures", "rope_scaling"}
)
ROPE_KEYS = [
    "factor",
    "rope_theta",
    "original_max_position_embeddings",
    "partial_rotary_factor",
    "attention_factor",
    "beta_fast",
    "beta_slow",
    "mscale",
    "low_freq_factor",
    "high_freq_factor",
    "short_factor",
    "long_factor",
    "truncate",
]


def outcome(config: dict[str, Any]) -> str:
    """The sentence of a refusal, or nothing if the config gives a model with finite frequencies."""
    try:
        spec = ModelSpec.from_config(config)
    except UnsupportedModelError as error:
        return str(error)
    for rope in spec.ropes:
        if rope.rot_dim <= 512:
            assert inverse_frequencies(rope, 64)[0].isfinite().all()
    return ""


@settings(max_examples=200, deadline=None)
@given(
    family=st.sampled_from(FAMILIES),
    junk=st.dictionaries(st.sampled_from(KEYS), JUNK, min_size=1, max_size=2),
)
def test_no_config_ends_in_anything_but_a_model_or_a_sentence(family: str, junk: dict[str, Any]) -> None:
    assert outcome({"model_type": family} | junk)[-1:] in ("", ".")


@settings(max_examples=300, deadline=None)
@given(
    kind=st.sampled_from([*ROPE_KINDS, "su", 7]),
    junk=st.dictionaries(st.sampled_from(ROPE_KEYS), JUNK, min_size=1, max_size=2),
)
def test_no_rope_setting_ends_in_anything_but_frequencies_or_a_sentence(kind: Any, junk: dict[str, Any]) -> None:
    good = {"factor": 2.0, "short_factor": [1.0] * 4, "long_factor": [2.0] * 4, "original_max_position_embeddings": 64}
    assert outcome(small(rope_scaling=good | {"rope_type": kind} | junk))[-1:] in ("", ".")


@pytest.mark.parametrize(
    "rope",
    [
        {"rope_type": "yarn", "factor": 2.0, "rope_theta": 1.0},
        {"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 1},
        {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 4.0},
        {"rope_type": "linear", "factor": 0.5},
        {"rope_type": "dynamic", "factor": -1},
        {"rope_type": "longrope", "short_factor": [0] * 4, "long_factor": [1.0] * 4},
    ],
)
def test_rope_values_that_give_no_frequencies_are_refused(rope: dict[str, Any]) -> None:
    assert "The config's" in outcome(small(rope_scaling=rope))
