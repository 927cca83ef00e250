"""Whole replies with guesses that a step checks, takes and goes on from by itself, on kernels that are interpreted.

There is no graph here: what would be captured runs anew at every replay, which must come to the same.
"""

from dataclasses import replace
from itertools import count

import torch

from octavo.engine.attention.triton_backend import TritonBackend
from octavo.engine.core import EngineCore
from octavo.engine.memory import KVCache, PagePool, RadixTree
from octavo.engine.model.build import build_random
from octavo.engine.request import Delta, Finished, Request, SamplingParams
from octavo.engine.run.checks import CheckGraphs
from octavo.engine.run.graphs import GraphParts
from octavo.engine.run.runner import ModelRunner
from octavo.engine.sample import sampler
from octavo.engine.schedule import Scheduler, StepBudget, make_policy
from octavo.engine.speculate import Speculator
from octavo.engine.speculate.recorded import RecordedDrafter
from octavo.kernels.device import DeviceTraits, as_device

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "vocab_size": 61,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
}
PAGE = 16
PROMPTS = [(5, 6, 7), tuple(range(3, 12))]
COUNTS = [13, 8]


class Replay:
    def __init__(self, run):
        self.replay = run


class EagerPool:
    """In place of a pool of captured graphs."""

    def capture(self, run):
        return Replay(run), run()


class Kept(CheckGraphs):
    """Gives outputs that later steps leave alone, as a copy to the host would be."""

    def launch(self, plan, tables, kind):
        checked = super().launch(plan, tables, kind)
        return replace(checked, outputs=checked.outputs.clone())


def make(params):
    """(core, events by request, plans that were launched)."""
    torch.manual_seed(3)
    model = build_random(CONFIG, device=torch.device("cpu"), dtype=torch.float32, context_length=256, fusion=False)
    pools = [PagePool(40)]
    cache = KVCache(model.cache_groups, [40], PAGE, torch.float32, model.device)
    runner = ModelRunner(model, cache, TritonBackend(), max_running=4, context_length=256)
    runner._sampler._kernels = sampler._sampling_kernels()
    parts = GraphParts(model, runner.backend, cache, runner._sampler, runner._last_tokens, EagerPool(), 4, 256)
    runner._checks, runner.max_checks, runner.run_ahead = Kept(parts), 3, 1
    budget = StepBudget(64, 0.05, adaptive=False)
    tree = RadixTree(pools, PAGE, [None])
    scheduler = Scheduler(cache.groups, pools, tree, make_policy("fcfs"), budget, 4)
    events, plans = {}, []
    launch = runner.launch

    def noted(plan):
        plans.append(plan)
        return launch(plan)

    runner.launch = noted
    ticks = count()  # however slow the machine is, a step seems quick, and is followed by others
    core = EngineCore(
        scheduler,
        runner,
        lambda name, event: events.setdefault(name, []).append(event),
        clock=lambda: next(ticks) * 1e-6,
    )
    return core, events, plans


def replies(core, events, params):
    for index in range(len(PROMPTS)):
        request = Request(f"r{index}", PROMPTS[index], replace(params, seed=index), 0.0)
        request.limit = len(PROMPTS[index]) + COUNTS[index]
        events[request.id] = []
        core.submit(request, frozenset(), None)
    while core.has_work:
        core.step()
    for index in range(len(PROMPTS)):
        assert isinstance(events[f"r{index}"][-1], Finished)
        assert events[f"r{index}"][-1].reason == "length"
    return [
        tuple(token for event in events[f"r{index}"] if isinstance(event, Delta) for token in event.token_ids)
        for index in range(len(PROMPTS))
    ]


def test_a_reply_is_the_same_however_many_checks_follow_each_other(monkeypatch):
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda tensor: tensor)
    params = SamplingParams(temperature=0.8, ignore_eos=True)
    core, events, plans = make(params)
    with as_device(DeviceTraits(90, 1, 232448)):  # attention in few programs
        plain = replies(core, events, params)
        said = dict(zip(PROMPTS, plain))
        core.guess_with(Speculator(RecordedDrafter(said, 0.7, 5), 3, always=True))
        plans.clear()
        assert replies(core, events, params) == plain
    checking = [plan for plan in plans if plan.num_guesses]
    assert any(plan.repeats > 1 for plan in checking)
    assert any(plan.continues for plan in checking)
    counters = core.counters
    assert 0.3 < counters.accepted_tokens / counters.draft_tokens < 0.8
