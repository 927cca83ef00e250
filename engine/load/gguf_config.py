"""A GGUF file's metadata as the configuration Hugging Face's classes expect.

Keys by the GGUF specification. What a file leaves out because the reference implementation fixes it (gemma's window
pattern and query scale, smollm3's layers without rotary embedding) is filled in here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor

from octavo.engine.load.gguf_metadata import Metadata, shortest
from octavo.engine.load.gguf_names import Family, Source

ReadSetting = Callable[[str], Tensor | None]  # a setting tensor by its GGUF name, float32


def build_config(
    meta: Metadata, family: Family, sources: Mapping[str, Source], read_setting: ReadSetting
) -> dict[str, Any]:
    """The config.json this model would have; `sources` tell what metadata does not (vocabulary, biases, tying)."""
    hidden, heads = meta.whole(".embedding_length"), meta.whole(".attention.head_count")
    head_dim = meta.whole(".attention.key_length", None) or hidden // heads
    experts = meta.whole(".expert_count", 0)
    config: dict[str, Any] = {
        "model_type": family.model_type,
        "architectures": [family.class_name],
        "hidden_size": hidden,
        "intermediate_size": meta.whole(".feed_forward_length"),
        "num_hidden_layers": meta.whole(".block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": meta.whole(".attention.head_count_kv", heads),
        "head_dim": head_dim,
        "hidden_act": "silu",
        "max_position_embeddings": meta.whole(".context_length"),
        "rms_norm_eps": meta.number(".attention.layer_norm_rms_epsilon"),
        "vocab_size": sources["model.embed_tokens.weight"].shape[0],
        "tie_word_embeddings": "lm_head.weight" not in sources,
        "attention_bias": any(name.endswith(("_proj.bias",)) and ".self_attn." in name for name in sources),
        "mlp_bias": any(name.endswith("_proj.bias") and ".mlp." in name for name in sources),
        "rope_parameters": _rope(meta, head_dim, read_setting),
    }
    if experts:
        config |= _experts(meta, family, experts)
    config |= _FAMILY_SETTINGS.get(family.model_type, lambda *_: {})(meta, config)
    return config | _token_ids(meta)


def build_generation_config(meta: Metadata) -> dict[str, Any]:
    """End tokens and, where the file carries them, the sampling values its makers advise."""
    config: dict[str, Any] = _token_ids(meta)
    ends = [meta.whole(f"tokenizer.ggml.{key}_token_id", None) for key in ("eos", "eot", "eom")]
    ids = list(dict.fromkeys(i for i in ends if i is not None))
    if ids:
        config["eos_token_id"] = ids if len(ids) > 1 else ids[0]
    for key, name in (("temp", "temperature"), ("top_p", "top_p"), ("min_p", "min_p")):
        if (value := meta.number(f"general.sampling.{key}", None)) is not None:
            config[name] = value
    if (top_k := meta.whole("general.sampling.top_k", None)) is not None:
        config["top_k"] = top_k
    if (penalty := meta.number("general.sampling.penalty_repeat", None)) is not None:
        config["repetition_penalty"] = penalty
    return config


def _token_ids(meta: Metadata) -> dict[str, Any]:
    names = {"bos": "bos_token_id", "eos": "eos_token_id", "padding": "pad_token_id"}
    ids = {name: meta.whole(f"tokenizer.ggml.{key}_token_id", None) for key, name in names.items()}
    return {name: value for name, value in ids.items() if value is not None}


def _experts(meta: Metadata, family: Family, count: int) -> dict[str, Any]:
    used = meta.whole(".expert_used_count")
    if family.model_type == "qwen3_moe":
        return {
            "num_experts": count,
            "num_experts_per_tok": used,
            "moe_intermediate_size": meta.whole(".expert_feed_forward_length"),
            "norm_topk_prob": True,  # the reference implementation normalises always
            "decoder_sparse_step": 1,
            "mlp_only_layers": [],
        }
    return {
        "model_type": "mixtral",
        "architectures": ["MixtralForCausalLM"],
        "num_local_experts": count,
        "num_experts_per_tok": used,
        "sliding_window": None,
    }


def _rope(meta: Metadata, head_dim: int, read_setting: ReadSetting) -> dict[str, Any]:
    theta = meta.number(".rope.freq_base", 10000.0)
    rope: dict[str, Any] = {"rope_type": "default", "rope_theta": theta}
    rotary_dim = meta.whole(".rope.dimension_count", head_dim)
    if rotary_dim != head_dim:
        rope["partial_rotary_factor"] = rotary_dim / head_dim
    context = meta.whole(".context_length")
    original = meta.whole(".rope.scaling.original_context_length", context)

    def divisors(name: str) -> list[float] | None:
        tensor = read_setting(name)
        if tensor is None:
            return None
        values = [shortest(value) for value in tensor.tolist()]
        if len(values) != rotary_dim // 2 or not all(0 < value < math.inf for value in values):
            raise meta.error(f"the tensor {name} should hold {rotary_dim // 2} numbers above zero.")
        return values

    long, short = divisors("rope_factors_long.weight"), divisors("rope_factors_short.weight")
    if long is not None and short is not None:
        return rope | {
            "rope_type": "longrope",
            "long_factor": long,
            "short_factor": short,
            "original_max_position_embeddings": original,
        }
    if (factors := divisors("rope_freqs.weight")) is not None:
        return rope | _from_factors(factors, theta, rotary_dim, context)

    factor = meta.number(".rope.scaling.factor", None) or meta.number(".rope.scale_linear", None)
    kind = meta.text(".rope.scaling.type", "linear" if ".rope.scale_linear" in meta else "none")
    if kind == "yarn" and factor:
        rope |= {"rope_type": "yarn", "factor": factor, "original_max_position_embeddings": original}
        for key, name in (("yarn_beta_fast", "beta_fast"), ("yarn_beta_slow", "beta_slow")):
            if (value := meta.number(f".rope.scaling.{key}", None)) is not None:
                rope[name] = value
        # Both keys multiply the formula of the YaRN paper; transformers' attention_factor replaces it.
        extra = meta.number(".rope.scaling.yarn_attn_factor", None) or meta.number(".rope.scaling.attn_factor", None)
        if extra is not None and extra != 1.0:
            rope["attention_factor"] = extra * (0.1 * math.log(factor) + 1.0)
        return rope
    if kind == "linear" and factor and factor != 1.0:
        return rope | {"rope_type": "linear", "factor": factor}
    if kind not in ("none", "linear", "yarn", "longrope"):
        raise meta.error(f"the rope scaling {kind!r} is not known; known are linear, yarn and longrope.")
    return rope


def llama3_factors(theta: float, rotary_dim: int, factor: float, low: float, high: float, original: int) -> list[float]:
    """By how much each rotary frequency is divided under Llama 3's rule (Llama 3.1 model card, `rope_type` llama3)."""
    factors = []
    for index in range(0, rotary_dim, 2):
        wavelength = 2 * math.pi * theta ** (index / rotary_dim)
        if wavelength < original / high:
            factors.append(1.0)
        elif wavelength > original / low:
            factors.append(factor)
        else:
            smooth = (original / wavelength - low) / (high - low)
            factors.append(1.0 / ((1.0 - smooth) / factor + smooth))
    return factors


def _from_factors(factors: list[float], theta: float, rotary_dim: int, context: int) -> dict[str, Any]:
    """Llama 3's rule where the stored divisors follow it with its published settings; else the divisors themselves,
    which longrope with an attention factor of one expresses exactly."""
    low, high, original, factor = 1.0, 4.0, 8192, max(factors)
    expected = llama3_factors(theta, rotary_dim, factor, low, high, original)
    if len(expected) == len(factors) and all(math.isclose(a, b, rel_tol=1e-4) for a, b in zip(factors, expected)):
        return {
            "rope_type": "llama3",
            "factor": factor,
            "low_freq_factor": low,
            "high_freq_factor": high,
            "original_max_position_embeddings": original,
        }
    return {
        "rope_type": "longrope",
        "long_factor": factors,
        "short_factor": factors,
        "attention_factor": 1.0,
        "original_max_position_embeddings": context,
    }


def _llama(meta: Metadata, config: dict[str, Any]) -> dict[str, Any]:
    """Mistral's files are llama files with a window; Mixtral's, which have experts, use none."""
    window = meta.whole(".attention.sliding_window", 0)
    if not window or config["model_type"] != "llama":
        return {}
    return {"model_type": "mistral", "architectures": ["MistralForCausalLM"], "sliding_window": window}


def _smollm3(meta: Metadata, config: dict[str, Any]) -> dict[str, Any]:
    layers = config["num_hidden_layers"]
    return {"no_rope_layers": [int((layer + 1) % 4 != 0) for layer in range(layers)], "no_rope_layer_interval": 4}


def _granite(meta: Metadata, config: dict[str, Any]) -> dict[str, Any]:
    return {
        "attention_multiplier": meta.number(".attention.scale", config["head_dim"] ** -0.5),
        "embedding_multiplier": meta.number(".embedding_scale", 1.0),
        "residual_multiplier": meta.number(".residual_scale", 1.0),
        "logits_scaling": meta.number(".logit_scale", 1.0),
    }


def _gemma(config: dict[str, Any], largest: int) -> dict[str, Any]:
    """The model with `largest` layers scales its queries by hidden size a head, the smaller ones by head size
    (Gemma 2 and 3 reports)."""
    per_head = config["hidden_size"] // config["num_attention_heads"]
    return {
        "hidden_activation": "gelu_pytorch_tanh",
        "query_pre_attn_scalar": per_head if config["num_hidden_layers"] == largest else config["head_dim"],
    }


def _layer_types(layers: int, full_every: int) -> list[str]:
    return ["full_attention" if (layer + 1) % full_every == 0 else "sliding_attention" for layer in range(layers)]


def _gemma2(meta: Metadata, config: dict[str, Any]) -> dict[str, Any]:
    return _gemma(config, largest=46) | {
        "sliding_window": meta.whole(".attention.sliding_window", 4096),
        "layer_types": _layer_types(config["num_hidden_layers"], full_every=2),
        "attn_logit_softcapping": meta.number(".attn_logit_softcapping", 50.0),
        "final_logit_softcapping": meta.number(".final_logit_softcapping", 30.0),
    }


def _gemma3(meta: Metadata, config: dict[str, Any]) -> dict[str, Any]:
    full = dict(config["rope_parameters"])
    if ".rope.freq_base" not in meta:
        full["rope_theta"] = 1_000_000.0
    sliding = {"rope_type": "default", "rope_theta": meta.number(".rope.freq_base_swa", 10_000.0)}
    window = meta.whole(".attention.sliding_window", None)
    return _gemma(config, largest=62) | {
        "sliding_window": window,
        "layer_types": _layer_types(config["num_hidden_layers"], full_every=6 if window else 1),
        "attn_logit_softcapping": None,
        "final_logit_softcapping": meta.number(".final_logit_softcapping", None),
        "rope_parameters": {"full_attention": full, "sliding_attention": sliding},
    }


def _phi3(meta: Metadata, config: dict[str, Any]) -> dict[str, Any]:
    original = meta.whole(".rope.scaling.original_context_length", config["max_position_embeddings"])
    return {
        "original_max_position_embeddings": original,
        "sliding_window": meta.whole(".attention.sliding_window", 0) or None,
    }


def _olmo2(meta: Metadata, config: dict[str, Any]) -> dict[str, Any]:
    window = meta.whole(".attention.sliding_window", 0)
    if not window:
        return {}
    pattern = meta.numbers(".attention.sliding_window_pattern", None)
    layers = config["num_hidden_layers"]
    windowed = [(layer + 1) % 4 != 0 for layer in range(layers)] if pattern is None else [bool(v) for v in pattern]
    return {
        "model_type": "olmo3",
        "architectures": ["Olmo3ForCausalLM"],
        "sliding_window": window,
        "layer_types": ["sliding_attention" if w else "full_attention" for w in windowed],
    }


_FAMILY_SETTINGS: dict[str, Callable[[Metadata, dict[str, Any]], dict[str, Any]]] = {
    "llama": _llama,
    "smollm3": _smollm3,
    "granite": _granite,
    "gemma2": _gemma2,
    "gemma3_text": _gemma3,
    "phi3": _phi3,
    "olmo2": _olmo2,
}
