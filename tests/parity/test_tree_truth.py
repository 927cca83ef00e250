"""What the prefix tree keeps is what a fresh computation gives, whatever ran before."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
import transformers

from octavo.engine.attention.torch_backend import TorchBackend
from octavo.engine.core import EngineCore
from octavo.engine.memory import KVCache, PagePool, RadixTree
from octavo.engine.model.base import CausalModel
from octavo.engine.request import Event, Finished, Request, SamplingParams
from octavo.engine.run.runner import ModelRunner
from octavo.engine.schedule import Scheduler, StepBudget, make_policy

PAGE, CONTEXT = 4, 64
CPU = torch.device("cpu")


class Rig:
    """A core on a real model and a small cache."""

    def __init__(self, model: CausalModel, pages: int) -> None:
        self.cache = KVCache(model.cache_groups, [pages] * len(model.cache_groups), PAGE, model.dtype, CPU)
        windows = [group.window for group in model.cache_groups]
        self.pools = [PagePool(pages) for _ in windows]
        self.tree = RadixTree(self.pools, PAGE, windows)
        scheduler = Scheduler(
            model.cache_groups, self.pools, self.tree, make_policy("fcfs"), StepBudget(7, 1.0, adaptive=False), 4
        )
        runner = ModelRunner(model, self.cache, TorchBackend(), max_running=4, context_length=CONTEXT)
        self.ends: dict[str, Finished] = {}
        self.core = EngineCore(scheduler, runner, self._note)

    def _note(self, request_id: str, event: Event) -> None:
        if isinstance(event, Finished):
            self.ends[request_id] = event

    def submit(self, name: str, prompt: list[int], new: int) -> None:
        params = SamplingParams(temperature=0.0, max_tokens=new, seed=1)
        request = Request(name, tuple(prompt), params, 0.0)
        request.limit = min(CONTEXT, len(prompt) + new)
        self.core.submit(request, frozenset(), None)

    def cached(self) -> dict[tuple[int, ...], tuple[int, ...]]:
        """Every page of the tree by the tokens up to its end: the physical page of each group."""
        found = {}
        stack = [(self.tree._root, ())]
        while stack:
            node, before = stack.pop()
            for index, row in enumerate(node.pages):
                found[before + node.tokens[: (index + 1) * PAGE]] = row
            stack.extend((child, before + node.tokens) for child in node.children.values())
        return found


@pytest.mark.parametrize("family", ["llama", "gemma2"])
def test_every_cached_page_equals_a_recomputation(family: str, saved: Callable[..., Any]) -> None:
    sizes = {"vocab_size": 101, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": CONTEXT}
    config = {
        "llama": lambda: transformers.LlamaConfig(**sizes, **heads),
        "gemma2": lambda: transformers.Gemma2Config(**sizes, **heads, sliding_window=12),
    }[family]()
    model = saved(config).load(context_length=CONTEXT)
    rig = Rig(model, pages=22)
    logits = model.logits
    broken: list[int] = []

    def sometimes_nan(hidden: torch.Tensor) -> torch.Tensor:
        scores = logits(hidden)
        if broken:
            scores[0] = float("nan")
            broken.pop()
        return scores

    model.logits = sometimes_nan
    rng = random.Random(2)
    stems = [[rng.randrange(3, 101) for _ in range(30)] for _ in range(2)]
    for number in range(40):
        stem = rng.choice(stems)
        rig.submit(f"r{number}", [*stem[: rng.randrange(30)], rng.randrange(3, 101)], rng.randrange(1, 30))
        for _ in range(rng.randrange(6)):
            rig.core.step()
        if rng.random() < 0.1:
            broken.append(1)
        if rng.random() < 0.2:
            rig.core.abort(f"r{rng.randrange(number + 1)}")
    while rig.core.has_work:
        rig.core.step()
    rig.core.scheduler.check_integrity()
    assert rig.core.scheduler.num_preemptions > 0
    assert any(end.reason == "error" for end in rig.ends.values())

    cached = rig.cached()
    assert len(cached) > 15
    for tokens, row in cached.items():
        fresh = Rig(model, pages=34)
        fresh.submit("again", list(tokens), 1)
        while fresh.core.has_work:
            fresh.core.step()
        again = fresh.cached()[tokens]
        for kept, made in zip(rig.cache.layers, fresh.cache.layers, strict=True):
            if row[kept.group] and again[kept.group]:
                torch.testing.assert_close(kept.k[row[kept.group]], made.k[again[made.group]], atol=1e-4, rtol=1e-4)
                torch.testing.assert_close(kept.v[row[kept.group]], made.v[again[made.group]], atol=1e-4, rtol=1e-4)
