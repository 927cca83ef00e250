"""What a config file that leaves a field out means, family by family.

The values are those of transformers' config classes; files written against them (the text parts of many multimodal
checkpoints) hold little else than what differs.
"""

from __future__ import annotations

from typing import Any

_BASE: dict[str, Any] = {
    "hidden_act": "silu",
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": False,
    "rope_theta": 10_000.0,
    "attention_bias": False,
    "mlp_bias": False,
}
_LLAMA_SIZES: dict[str, Any] = {
    "vocab_size": 32_000,
    "hidden_size": 4096,
    "intermediate_size": 11_008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "max_position_embeddings": 2048,
}
_QWEN_SIZES = _LLAMA_SIZES | {"vocab_size": 151_936, "intermediate_size": 22_016, "max_position_embeddings": 32_768}
_GEMMA_SIZES: dict[str, Any] = {
    "vocab_size": 256_000,
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_hidden_layers": 26,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "max_position_embeddings": 8192,
    "hidden_activation": "gelu_pytorch_tanh",
    "query_pre_attn_scalar": 256,
    "sliding_window": 4096,
    "tie_word_embeddings": True,
}
_FAMILIES: dict[str, dict[str, Any]] = {
    "llama": _LLAMA_SIZES,
    "smollm3": _LLAMA_SIZES
    | {
        "vocab_size": 128_256,
        "hidden_size": 2048,
        "num_hidden_layers": 36,
        "num_attention_heads": 16,
        "num_key_value_heads": 4,
        "max_position_embeddings": 32_768,
        "rope_theta": 2_000_000.0,
        "tie_word_embeddings": True,
    },
    "mistral": _LLAMA_SIZES
    | {
        "intermediate_size": 14_336,
        "num_key_value_heads": 8,
        "max_position_embeddings": 131_072,
        "sliding_window": 4096,
    },
    "qwen2": _QWEN_SIZES | {"num_key_value_heads": 32, "sliding_window": 4096, "max_window_layers": 28},
    "qwen3": _QWEN_SIZES
    | {"num_key_value_heads": 32, "head_dim": 128, "sliding_window": 4096, "max_window_layers": 28},
    "gemma2": _GEMMA_SIZES | {"final_logit_softcapping": 30.0, "attn_logit_softcapping": 50.0},
    "gemma3_text": _GEMMA_SIZES
    | {"vocab_size": 262_208, "max_position_embeddings": 131_072, "rope_theta": 1_000_000.0},
    "phi3": _LLAMA_SIZES
    | {
        "vocab_size": 32_064,
        "hidden_size": 3072,
        "intermediate_size": 8192,
        "max_position_embeddings": 4096,
        "original_max_position_embeddings": 4096,
        "rms_norm_eps": 1e-5,
    },
    "granite": _LLAMA_SIZES,
    "olmo2": _LLAMA_SIZES | {"vocab_size": 50_304, "rms_norm_eps": 1e-5},
    "mixtral": _LLAMA_SIZES
    | {
        "intermediate_size": 14_336,
        "num_key_value_heads": 8,
        "max_position_embeddings": 131_072,
        "rms_norm_eps": 1e-5,
        "rope_theta": 1_000_000.0,
        "num_local_experts": 8,
        "num_experts_per_tok": 2,
    },
    "qwen3_moe": _QWEN_SIZES
    | {
        "hidden_size": 2048,
        "intermediate_size": 6144,
        "num_hidden_layers": 24,
        "num_key_value_heads": 4,
        "sliding_window": 4096,
        "moe_intermediate_size": 768,
        "num_experts": 128,
        "num_experts_per_tok": 8,
    },
}

FAMILY_DEFAULTS: dict[str, dict[str, Any]] = {family: _BASE | own for family, own in _FAMILIES.items()}
