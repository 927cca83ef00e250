"""The whole engine with 8-bit keys and values: the same ids however a prompt is read, scores near a plain cache's."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers

from octavo.engine.config import EngineConfig
from octavo.engine.engine import Engine
from octavo.engine.request import SamplingParams

SMALL = {
    "vocab_size": 101,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 256,
    "pad_token_id": None,
    "bos_token_id": 1,
    "eos_token_id": None,
}
FAMILIES = {
    "llama": lambda: transformers.LlamaConfig(**SMALL),
    "gemma2": lambda: transformers.Gemma2Config(**SMALL, sliding_window=12, query_pre_attn_scalar=8),
}
SHARED = list(range(20, 61))
PROMPTS = [[*SHARED, 7, 8], [*SHARED, 9], [33], [9, 80, 7] * 11]
GREEDY = SamplingParams(temperature=0.0, max_tokens=24)
BASE = EngineConfig(device="cpu", dtype="float32", context_length=128, page_size=4, kv_memory_bytes=8 << 20)

Open = Callable[..., Engine]


@pytest.fixture(params=list(FAMILIES))
def opened(request: pytest.FixtureRequest, saved: Callable[..., Any]) -> Iterator[Open]:
    """Opens engines on one small model."""
    path = saved(FAMILIES[request.param]()).path
    backend = Tokenizer(models.WordLevel({f"w{i}": i for i in range(101)}, unk_token="w0"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    transformers.PreTrainedTokenizerFast(tokenizer_object=backend).save_pretrained(path)
    engines: list[Engine] = []

    def make(**changes: Any) -> Engine:
        engines.append(Engine.load(path, replace(BASE, **changes)))
        return engines[-1]

    yield make
    for engine in engines:
        engine.close()


def alone(engine: Engine) -> list[tuple[int, ...]]:
    return [engine.submit(prompt, GREEDY).result().token_ids for prompt in PROMPTS]


def together(engine: Engine) -> list[tuple[int, ...]]:
    handles = [engine.submit(prompt, GREEDY) for prompt in PROMPTS]
    return [handle.result().token_ids for handle in handles]


@pytest.mark.parametrize("kv", ["int8", "fp8"])
def test_ids_depend_on_no_chunk_no_neighbour_no_shared_page_and_no_toggle(opened: Open, kv: str) -> None:
    said = alone(opened(kv_cache_dtype=kv, prefix_sharing=False))
    sharing = opened(kv_cache_dtype=kv)
    assert together(sharing) == said
    assert alone(sharing) == said
    assert sharing.status().counters["cached_prompt_tokens"] > 2 * len(SHARED) // 4 * 4
    for changes in ({"prefill_chunk": 5}, {"paged_attention": False}, {"fusion": False}):
        assert together(opened(kv_cache_dtype=kv, **changes)) == said


@pytest.mark.parametrize("kv", ["int8", "fp8"])
def test_a_preempted_chat_and_one_with_guesses_go_on_with_the_same_ids(opened: Open, kv: str) -> None:
    said = alone(opened(kv_cache_dtype=kv, prefix_sharing=False))
    page = 4 * 2 * 2 * 2 * 36  # tokens, layers, KV heads, keys and values, bytes
    tight = opened(kv_cache_dtype=kv, prefix_sharing=False, context_length=100, kv_memory_bytes=29 * page)
    assert together(tight) == said
    assert tight.status().counters["preemptions"] > 0
    guessing = opened(kv_cache_dtype=kv, speculation="ngram")
    assert together(guessing) == said
    assert guessing.status().counters["draft_tokens"] > 0


def test_scores_are_nearly_those_of_a_plain_cache_and_pages_are_smaller(opened: Open) -> None:
    params = SamplingParams(temperature=0.0, max_tokens=0, prompt_logprobs=0)

    def scores(engine: Engine) -> torch.Tensor:
        scored = engine.submit(PROMPTS[0], params).result().finished.prompt_logprobs or ()
        return torch.tensor([entry.logprob for entry in scored if entry is not None])

    plain = opened()
    exact = scores(plain)
    page = plain.info.kv_bytes / plain.status().pages["total"]
    for kv, off in (("int8", 0.02), ("fp8", 0.08)):
        engine = opened(kv_cache_dtype=kv)
        assert engine.info.kv_dtype == engine.status().settings["kv_cache_dtype"] == kv
        difference = (scores(engine) - exact).abs().mean()
        assert 0 < difference < off
        # 32 channels and a scale against 32 float32; the trash page is counted in both
        assert engine.info.kv_bytes / engine.status().pages["total"] == pytest.approx(page * 36 / 128, rel=0.03)
        assert any("8-bit cache" in notice for notice in engine.info.notices)
