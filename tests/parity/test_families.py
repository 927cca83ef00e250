"""Every family: our scores are transformers' for the same random weights, merged or not, in one piece or in chunks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import transformers as tf

SIZES: dict[str, Any] = {
    "vocab_size": 101,
    "hidden_size": 48,
    "intermediate_size": 56,
    "num_hidden_layers": 4,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
LONGROPE = {
    "rope_type": "longrope",
    "short_factor": [1.0, 1.1, 1.3],
    "long_factor": [1.5, 2.0, 4.0],
    "rope_theta": 10000.0,
}


def configs() -> dict[str, Any]:
    """One or more configs a family; windows shorter than the prompt."""
    return {
        "llama": tf.LlamaConfig(**SIZES),
        "llama-mha-biases": tf.LlamaConfig(**SIZES | {"num_key_value_heads": 6}, attention_bias=True, mlp_bias=True),
        "llama-mqa-tied": tf.LlamaConfig(**SIZES | {"num_key_value_heads": 1}, tie_word_embeddings=True, head_dim=10),
        "smollm3": tf.SmolLM3Config(**SIZES),
        "smollm3-window": tf.SmolLM3Config(**SIZES, use_sliding_window=True, sliding_window=7),
        "mistral": tf.MistralConfig(**SIZES, sliding_window=9, head_dim=12),
        "mistral-full": tf.MistralConfig(**SIZES, sliding_window=None),
        "qwen2": tf.Qwen2Config(**SIZES),
        "qwen2-window": tf.Qwen2Config(**SIZES, use_sliding_window=True, sliding_window=8, max_window_layers=2),
        "qwen3": tf.Qwen3Config(**SIZES, head_dim=16),
        "qwen3-biases": tf.Qwen3Config(**SIZES, head_dim=16, attention_bias=True),
        "gemma2": tf.Gemma2Config(**SIZES, head_dim=16, sliding_window=8, query_pre_attn_scalar=24),
        "gemma3_text": tf.Gemma3TextConfig(**SIZES | {"num_hidden_layers": 7}, head_dim=16, sliding_window=8),
        "phi3": tf.Phi3Config(**SIZES, sliding_window=11),
        "phi3-partial-longrope": tf.Phi3Config(
            **SIZES, rope_parameters=LONGROPE | {"partial_rotary_factor": 0.75}, original_max_position_embeddings=128
        ),
        "granite": tf.GraniteConfig(
            **SIZES,
            embedding_multiplier=3.0,
            attention_multiplier=0.2,
            residual_multiplier=0.4,
            logits_scaling=2.5,
        ),
        "olmo2": tf.Olmo2Config(**SIZES),
        "mixtral": tf.MixtralConfig(**SIZES, num_local_experts=4, num_experts_per_tok=2),
        "qwen3_moe": tf.Qwen3MoeConfig(
            **SIZES, num_experts=6, num_experts_per_tok=3, moe_intermediate_size=24, head_dim=16, norm_topk_prob=True
        ),
        "qwen3_moe-some-dense": tf.Qwen3MoeConfig(
            **SIZES,
            num_experts=6,
            num_experts_per_tok=2,
            moe_intermediate_size=24,
            head_dim=16,
            norm_topk_prob=False,
            decoder_sparse_step=2,
            mlp_only_layers=[3],
        ),
    }


NAMES = sorted(configs())
PROMPT = torch.randint(0, 101, (23,), generator=torch.Generator().manual_seed(7)).tolist()


@pytest.fixture(params=NAMES)
def reference(request: pytest.FixtureRequest, saved: Callable[..., Any]) -> Any:
    return saved(configs()[request.param])


@pytest.mark.parametrize("fusion", [False, True], ids=["textbook", "fused"])
def test_scores_equal_those_of_transformers(reference: Any, paged: Callable[..., Any], fusion: bool) -> None:
    model = reference.load(fusion=fusion)
    torch.testing.assert_close(paged(model).forward({0: PROMPT}), reference.logits(PROMPT), atol=1e-4, rtol=1e-4)


def test_chunks_and_single_tokens_equal_one_piece(reference: Any, paged: Callable[..., Any]) -> None:
    model = reference.load()
    whole, pieces = paged(model).forward({0: PROMPT}), paged(model)
    parts = [pieces.forward({0: PROMPT[a:b]}) for a, b in ((0, 1), (1, 9), (9, 10), (10, 21), (21, 22), (22, 23))]
    torch.testing.assert_close(torch.cat(parts), whole, atol=1e-4, rtol=1e-4)


def test_a_row_does_not_depend_on_its_neighbours(reference: Any, paged: Callable[..., Any]) -> None:
    model = reference.load()
    alone, together = paged(model), paged(model)
    expected = [alone.forward({0: PROMPT[:12]}), alone.forward({0: PROMPT[12:13]})]
    together.forward({1: PROMPT[5:20]})
    first = together.forward({0: PROMPT[:12], 1: PROMPT[20:21], 2: PROMPT[3:9]})[1:13]
    second = together.forward({1: PROMPT[21:22], 0: PROMPT[12:13], 3: PROMPT[:4]})[1:2]
    torch.testing.assert_close(first, expected[0], atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(second, expected[1], atol=1e-4, rtol=1e-4)
