"""The whole engine against transformers: the same 64 greedy ids in float32, whatever goes on around a request."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers

from octavo.engine.config import EngineConfig
from octavo.engine.engine import Engine
from octavo.engine.request import SamplingParams

NEW = 64
SMALL = {
    "vocab_size": 101,
    "hidden_size": 48,
    "intermediate_size": 56,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "pad_token_id": None,
    "bos_token_id": 1,
    "eos_token_id": None,
}
FAMILIES = {
    "llama": lambda: transformers.LlamaConfig(**SMALL),
    "mistral-window": lambda: transformers.MistralConfig(**SMALL, head_dim=8, sliding_window=12),
    "gemma2": lambda: transformers.Gemma2Config(**SMALL, head_dim=8, sliding_window=12, query_pre_attn_scalar=8),
    "qwen3-moe": lambda: transformers.Qwen3MoeConfig(
        **SMALL, head_dim=8, moe_intermediate_size=24, num_experts=6, num_experts_per_tok=2, decoder_sparse_step=1
    ),
}
PROMPTS = [
    [5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21],
    [5, 6, 7, 8, 9, 10, 11, 12, 40],
    [33],
    [9, 80, 7] * 11,
]
GREEDY = SamplingParams(temperature=0.0, max_tokens=NEW)
BASE = EngineConfig(device="cpu", dtype="float32", context_length=128, page_size=4, kv_memory_bytes=8 << 20)


class Case:
    """A saved model, what transformers says after each prompt, and engines on it."""

    def __init__(self, path: Path, model: Any) -> None:
        self.path = path
        self.expected = [self._greedy(model, prompt) for prompt in PROMPTS]
        self._open: list[Engine] = []

    def _greedy(self, model: Any, prompt: list[int]) -> tuple[int, ...]:
        ids = torch.tensor([prompt])
        with torch.inference_mode():
            for _ in range(NEW):
                scores = model(ids, use_cache=False).logits[0, -1]
                ids = torch.cat((ids, scores.argmax().view(1, 1)), dim=1)
        return tuple(ids[0, len(prompt) :].tolist())

    def engine(self, **changes: Any) -> Engine:
        self._open.append(Engine.load(self.path, replace(BASE, **changes)))
        return self._open[-1]

    def close(self) -> None:
        while self._open:
            self._open.pop().close()

    def check_together(self, engine: Engine) -> None:
        """All prompts at once; each must say what it says alone."""
        handles = [engine.submit(prompt, GREEDY) for prompt in PROMPTS]
        for handle, expected in zip(handles, self.expected, strict=True):
            assert handle.result().token_ids == expected


@pytest.fixture(scope="module", params=list(FAMILIES))
def family(request: pytest.FixtureRequest, saved_once: Callable[..., Any]) -> Case:
    reference = saved_once(FAMILIES[request.param]())
    backend = Tokenizer(models.WordLevel({f"w{i}": i for i in range(101)}, unk_token="w0"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    transformers.PreTrainedTokenizerFast(tokenizer_object=backend).save_pretrained(reference.path)
    return Case(reference.path, reference.model)


@pytest.fixture
def case(family: Case) -> Iterator[Case]:
    """A family's case, whose engines are the test's own."""
    yield family
    family.close()


def test_alone_and_in_a_changing_batch(case: Case) -> None:
    engine = case.engine()
    for prompt, expected in zip(PROMPTS, case.expected, strict=True):
        assert engine.submit(prompt, GREEDY).result().token_ids == expected
    engine = case.engine()
    first = engine.submit(PROMPTS[0], GREEDY)
    stream = iter(first)
    for _ in range(6):
        next(stream)
    late = engine.submit(PROMPTS[3], GREEDY)
    gone = engine.submit(PROMPTS[1], GREEDY)
    gone.abort()
    assert late.result().token_ids == case.expected[3]
    assert engine.submit(PROMPTS[0], GREEDY).result().token_ids == case.expected[0]


@pytest.mark.parametrize("changes", [{"fusion": False}, {"paged_attention": False}, {"prefix_sharing": False}])
def test_each_toggle_gives_the_same_text(case: Case, changes: dict[str, bool]) -> None:
    case.check_together(case.engine(**changes))


@pytest.mark.parametrize("chunk", [1, 5])
def test_prompts_read_in_chunks(case: Case, chunk: int) -> None:
    case.check_together(case.engine(prefill_chunk=chunk))


def test_a_prefix_hit(case: Case) -> None:
    engine = case.engine()
    case.check_together(engine)
    case.check_together(engine)
    done = engine.submit(PROMPTS[3], GREEDY).result()
    assert done.token_ids == case.expected[3]
    assert done.finished.usage.cached_tokens == 32


def test_a_preempted_request_is_resumed(case: Case) -> None:
    engine = case.engine(context_length=100, prefix_sharing=False, prefill_chunk=4)
    scheduler = engine._core.scheduler
    assert engine.settle(60)  # the engine's thread looks at its pages before it sleeps
    scheduler.check_integrity = lambda: None  # type: ignore[method-assign]  # the pages taken here have no owner
    for group, pool in enumerate(scheduler.pools):  # leave room for little more than one chat
        spare = pool.num_free - (26 if scheduler.groups[group].window is None else 8)
        pool.allocate(max(0, spare))
    case.check_together(engine)
    assert engine.status().counters["preemptions"] > 0
