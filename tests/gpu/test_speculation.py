"""Guesses checked on a CUDA GPU, from graphs: every reply is the one that plain decoding gives."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch

from octavo.engine.config import EngineConfig
from octavo.engine.engine import Engine
from octavo.engine.request import SamplingParams
from octavo.engine.speculate.recorded import RecordedDrafter

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU"),
]

CONFIG = EngineConfig(device="cuda", dtype="float32", context_length=300, kv_memory_bytes=64 << 20, max_running=6)
PARAMS = {
    "greedy": SamplingParams(temperature=0.0),
    "draw": SamplingParams(temperature=0.8),
    "filters": SamplingParams(temperature=0.8, top_k=40, top_p=0.9),
    "penalties": SamplingParams(temperature=0.8, top_k=40, top_p=0.9, repetition_penalty=1.1),
    "logprobs": SamplingParams(temperature=0.0, logprobs=2),
}


@pytest.fixture
def engine() -> Iterator[Engine]:
    made = Engine.load("shape:qwen-0.5b", CONFIG)
    yield made
    made.close()
    torch.cuda.empty_cache()


def prompts(count: int) -> list[tuple[int, ...]]:
    rng = random.Random(4)
    return [tuple(rng.randrange(3, 5000) for _ in range(rng.choice([1, 15, 16, 17, 90]))) for _ in range(count)]


def replies(engine: Engine, params: SamplingParams, chats: int) -> list[tuple[int, ...]]:
    handles = []
    for index, prompt in enumerate(prompts(chats)):
        changed = replace(params, max_tokens=(40, 77, 5)[index % 3], seed=index, ignore_eos=True)
        handles.append(engine.submit(prompt, changed))
        if index == 3:
            engine.submit(prompt, changed).abort()
    return [handle.result().token_ids for handle in handles]


@pytest.mark.parametrize("kind", list(PARAMS))
@pytest.mark.parametrize("chats", [1, 5])
def test_guesses_change_no_reply(kind: str, chats: int, engine: Engine) -> None:
    params = PARAMS[kind]
    plain = replies(engine, params, chats)
    said = dict(zip(prompts(chats), plain, strict=True))
    for attempt in range(3):  # captured, replayed, and always as many, so that checks follow each other
        engine.guess_with(RecordedDrafter(said, 0.7, attempt), 5, always=attempt == 2)
        assert replies(engine, params, chats) == plain
        assert engine.settle(60)
    counters = engine.status().counters
    assert counters["draft_tokens"] > counters["accepted_tokens"] > 20
    checks: Any = engine._core._runner._checks  # type: ignore[attr-defined]
    assert any(found is not None for found in checks._captured.values())
