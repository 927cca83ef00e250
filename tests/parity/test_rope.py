"""Every rope scaling in a whole model, at the frequencies of one context length, equals transformers at that length."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import transformers as tf

SIZES: dict[str, Any] = {
    "vocab_size": 101,
    "hidden_size": 64,
    "intermediate_size": 56,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
FACTORS = {"short_factor": [1.0 + i / 8 for i in range(8)], "long_factor": [1.0 + i for i in range(8)]}
SCALINGS: dict[str, dict[str, Any]] = {
    "default": {},
    "linear": {"factor": 4.0},
    "dynamic": {"factor": 2.0},
    "llama3": {
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 32,
    },
    "yarn": {"factor": 4.0, "original_max_position_embeddings": 16},
    "longrope": {**FACTORS, "original_max_position_embeddings": 32},
}


@pytest.mark.parametrize("length", [24, 90], ids=["short", "beyond-training"])
@pytest.mark.parametrize("fusion", [False, True], ids=["textbook", "fused"])
@pytest.mark.parametrize("kind", SCALINGS)
def test_scores_equal_those_of_transformers_at_the_same_length(
    saved: Callable[..., Any], paged: Callable[..., Any], kind: str, fusion: bool, length: int
) -> None:
    parameters = {"rope_type": kind, "rope_theta": 1000.0} | SCALINGS[kind]
    reference = saved(tf.LlamaConfig(**SIZES, rope_parameters=parameters))
    ids = torch.randint(0, 101, (length,), generator=torch.Generator().manual_seed(length)).tolist()
    model = reference.load(context_length=length, fusion=fusion)
    torch.testing.assert_close(paged(model).forward({0: ids}), reference.logits(ids), atol=1e-4, rtol=1e-4)


def test_a_short_row_keeps_the_frequencies_of_the_context_length(
    saved: Callable[..., Any], paged: Callable[..., Any]
) -> None:
    """What transformers would compute alone differs, but a chat may not change when a longer one joins its batch."""
    reference = saved(tf.LlamaConfig(**SIZES, rope_parameters={"rope_type": "longrope", **SCALINGS["longrope"]}))
    ids = list(range(3, 20))
    model = reference.load(context_length=64)
    alone, beside = paged(model).forward({0: ids}), paged(model).forward({0: ids, 1: [*range(60)]})
    torch.testing.assert_close(beside[: len(ids)], alone, atol=1e-4, rtol=1e-4)
    assert (alone - reference.logits(ids)).abs().max() > 1e-2
