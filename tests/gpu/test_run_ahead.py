"""Decoding that feeds itself on the device: the gate, repeated steps and steps under way change only the pace."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch

from octavo.engine.attention import choose_backend
from octavo.engine.config import EngineConfig
from octavo.engine.engine import Engine
from octavo.engine.memory import KVCache
from octavo.engine.model.build import build_random
from octavo.engine.request import Request, SamplingParams
from octavo.engine.run.graphs import DecodeGraphs
from octavo.engine.run.runner import ModelRunner
from octavo.engine.run.step import PageTables
from octavo.engine.schedule.plan import RowWork, StepPlan

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU"),
]

SHAPE = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 997,
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
}
PAGE, ROWS, STEPS = 16, 5, 20
CUDA = torch.device("cuda")


class Rig:
    """A runner on a small random model with one prompt of its own length in every row."""

    def __init__(self) -> None:
        self.model = build_random(SHAPE, device=CUDA, dtype=torch.float32, context_length=512, fusion=True, seed=5)
        self.cache = KVCache(self.model.cache_groups, [64], PAGE, torch.float32, CUDA)
        for layer in self.cache.layers:
            layer.k.fill_(float("nan"))  # whatever is read and was not written shows
            layer.v.fill_(float("nan"))
        backend = choose_backend(CUDA, torch.float32, self.model.attn_specs, True)
        self.runner = ModelRunner(self.model, self.cache, backend, max_running=8, context_length=512, graphs=True)
        self.requests = []
        for index in range(ROWS):
            prompt = tuple(random.Random(index).randrange(997) for _ in range(3 + 7 * index))
            request = Request(f"r{index}", prompt, SamplingParams(temperature=0.0), 0.0)
            request.row, request.epoch, request.limit, request.pages_changed = ROWS - index, index + 1, 400, 1
            request.pages = [list(range(1 + 10 * index, 11 + 10 * index))]
            self.requests.append(request)
        works = [RowWork(r, 0, r.num_prompt, True, r.epoch) for r in self.requests]
        for request, (token,) in zip(self.requests, self.runner.launch(StepPlan(tuple(works), 0)).wait().tokens):
            request.tokens.append(token)

    @property
    def graphs(self) -> DecodeGraphs:
        assert self.runner._graphs is not None
        return self.runner._graphs

    def plan(self, repeats: int = 1) -> StepPlan:
        works = [RowWork(r, len(r.tokens) - 1, 1, True, r.epoch, repeats) for r in self.requests]
        return StepPlan(tuple(works), len(works), repeats)


@pytest.fixture(scope="module")
def expected() -> list[tuple[int, ...]]:
    rig = Rig()
    rig.runner._graphs = None
    for _ in range(STEPS):
        for request, (token,) in zip(rig.requests, rig.runner.launch(rig.plan()).wait().tokens):
            request.tokens.append(token)
    return [tuple(r.tokens[-STEPS:]) for r in rig.requests]


@pytest.mark.parametrize("repeats", [1, 3, 16])
def test_replayed_and_repeated_steps_say_what_eager_ones_do(repeats: int, expected: list[tuple[int, ...]]) -> None:
    rig = Rig()
    said: list[tuple[int, ...]] = [()] * ROWS
    while len(said[0]) < STEPS:
        result = rig.runner.launch(rig.plan(repeats)).wait()
        for index, request in enumerate(rig.requests):
            said[index] += result.tokens[index]
            request.tokens.extend(result.tokens[index])
    assert [tokens[:STEPS] for tokens in said] == expected


def test_closing_rows_at_random_only_delays_them(expected: list[tuple[int, ...]]) -> None:
    rig = Rig()
    rig.runner._feed(rig.plan())
    tables = PageTables(1, 8, 32)
    tables.update(rig.plan())
    rig.graphs.launch(rig.plan(), tables, "greedy")
    state = next(iter(rig.graphs._states.values()))
    caps, closed = state.caps.clone(), torch.zeros_like(state.caps)
    said: list[list[int]] = [[] for _ in range(ROWS)]
    for index, token in enumerate(state.ring[0, :ROWS].tolist()):
        said[index].append(token)
    pages = [layer.k[1:].clone() for layer in rig.cache.layers]
    owned = {page for request in rig.requests for page in request.pages[0]}
    graph = rig.graphs._captured[state.size, "greedy", False]
    assert graph is not None
    generator = torch.Generator(device="cuda").manual_seed(1)
    for turn in range(1, 200):
        for layer in rig.cache.layers:
            layer.k[0].fill_(float("nan"))
            layer.v[0].fill_(float("nan"))
        is_open = torch.rand(state.size, device="cuda", generator=generator) < 0.5
        state.caps.copy_(torch.where(is_open, caps, closed))
        before = state.positions.clone()
        graph.graph.replay()
        outputs = state.ring[turn % state.ring.shape[0]].tolist()
        assert torch.equal(state.positions - before, ((is_open & (before < caps)).long()))
        for index in range(ROWS):
            assert (outputs[index] >= 0) == bool(is_open[index])
            if outputs[index] >= 0:
                said[index].append(outputs[index])
        assert all(output == -1 for output in outputs[ROWS:]), "places nobody fills stay closed"
        if min(map(len, said)) >= STEPS:
            break
    assert [tuple(tokens[:STEPS]) for tokens in said] == expected
    free = [page for page in range(1, 64) if page not in owned]
    for layer, old in zip(rig.cache.layers, pages):
        assert layer.k[free].isnan().all()
        assert old[[page - 1 for page in free]].isnan().all()


def test_a_row_stops_itself_at_an_end_token_and_at_its_limit(expected: list[tuple[int, ...]]) -> None:
    rig = Rig()
    rig.requests[1].end_ids = frozenset({expected[1][4]})
    rig.requests[2].limit = len(rig.requests[2].tokens) + 6
    result = rig.runner.launch(rig.plan(12)).wait()
    place = expected[1].index(expected[1][4])
    assert result.tokens[1] == expected[1][: place + 1]
    assert result.tokens[2] == expected[2][:6]
    assert result.tokens[0] == expected[0][:12]
    assert all(result.finite)


def test_scores_that_are_not_numbers_close_their_row_alone(expected: list[tuple[int, ...]]) -> None:
    rig = Rig()
    page = rig.requests[3].pages[0][0]
    rig.cache.layers[0].v[page].fill_(float("nan"))
    result = rig.runner.launch(rig.plan(4)).wait()
    assert result.finite == (True, True, True, False, True)
    assert result.tokens[3] == ()
    assert result.tokens[0] == expected[0][:4]


ENGINE = EngineConfig(device="cuda", dtype="float32", context_length=300, kv_memory_bytes=64 << 20, max_running=6)


@pytest.fixture
def make_engine() -> Iterator[Callable[..., Engine]]:
    made: list[Engine] = []

    def make(run_ahead: int, max_repeats: int, **changes: Any) -> Engine:
        engine = Engine.load("shape:qwen-0.5b", replace(ENGINE, **changes))
        runner: Any = engine._core._runner
        runner.run_ahead, runner.max_repeats = run_ahead, max_repeats
        made.append(engine)
        return engine

    yield make
    for engine in made:
        engine.close()
    torch.cuda.empty_cache()


def replies(engine: Engine, params: SamplingParams) -> list[tuple[int, ...]]:
    """More requests than rows, of all lengths, some of them ended from outside."""
    rng = random.Random(2)
    handles = []
    for index in range(14):
        prompt = [rng.randrange(3, 5000) for _ in range(rng.choice([1, 2, 15, 16, 17, 90]))]
        changed = replace(params, max_tokens=rng.choice([1, 2, 30, 77, 100]), seed=index)
        handles.append(engine.submit(prompt, changed))
        if index in (4, 9):
            engine.submit(prompt, changed).abort()
    return [handle.result().token_ids for handle in handles]


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(temperature=0.0, ignore_eos=True),
        SamplingParams(temperature=0.8, ignore_eos=True),
        SamplingParams(temperature=0.8, top_k=40, top_p=0.9, ignore_eos=True),
        SamplingParams(temperature=0.8, top_k=40, top_p=0.9, repetition_penalty=1.1, ignore_eos=True),
        SamplingParams(temperature=0.0, ignore_eos=True, logprobs=2),
    ],
    ids=["greedy", "draw", "filters", "penalties", "logprobs"],
)
def test_no_depth_and_no_repetition_changes_a_reply(params: SamplingParams, make_engine: Callable[..., Engine]) -> None:
    plain = replies(make_engine(0, 1), params)
    assert replies(make_engine(5, 3), params) == plain
    engine = make_engine(1, 16, prefix_sharing=False)
    for _ in range(3):  # the first time eager, the second captured, the third replayed
        assert replies(engine, params) == plain
        assert engine.settle(60)
    mixed: Any = engine._core._runner._mixed  # type: ignore[attr-defined]
    assert sum(captured is not None for captured in mixed._captured.values()) > 1


def test_many_chats_say_the_same_in_graphs_captured_for_more_of_them(make_engine: Callable[..., Engine]) -> None:
    def say(engine: Engine) -> list[tuple[int, ...]]:
        rng = random.Random(9)
        handles = []
        for index in range(44):
            prompt = [rng.randrange(3, 5000) for _ in range(rng.choice([1, 9, 40]))]
            params = SamplingParams(temperature=0.0, ignore_eos=True, max_tokens=12 + index)
            handles.append(engine.submit(prompt, params))
        return [handle.result().token_ids for handle in handles]

    room = {"max_running": 40, "kv_memory_bytes": 256 << 20}
    plain = say(make_engine(0, 1, **room, paged_attention=False))
    engine = make_engine(1, 16, **room)
    assert say(engine) == plain
    assert engine.settle(60)
    assert say(engine) == plain
    graphs: Any = engine._core._runner._graphs  # type: ignore[attr-defined]
    sizes = {size for size, _, _ in graphs._captured}
    assert any(size > 16 for size in sizes)


def test_pressure_preempts_and_changes_no_reply(make_engine: Callable[..., Engine]) -> None:
    params = SamplingParams(temperature=0.0, ignore_eos=True)
    plain = replies(make_engine(0, 1), params)
    tight = make_engine(4, 8, kv_memory_bytes=5 << 20)
    assert replies(tight, params) == plain
    assert tight.status().counters["preemptions"] > 0


def test_chats_with_one_long_beginning_read_it_together_and_say_what_they_say_apart(
    make_engine: Callable[..., Engine],
) -> None:
    params = SamplingParams(temperature=0.0, ignore_eos=True, max_tokens=24)
    rng = random.Random(5)
    shared = [rng.randrange(3, 5000) for _ in range(600)]
    prompts = [[*shared, *(rng.randrange(3, 5000) for _ in range(5 + index))] for index in range(6)]
    said = []
    for sharing in (False, True):
        engine = make_engine(1, 16, dtype="bfloat16", context_length=700, prefix_sharing=sharing)
        handles = [engine.submit(prompt, params) for prompt in prompts]
        said.append([handle.result().token_ids for handle in handles])
        graphs: Any = engine._core._runner._graphs  # type: ignore[attr-defined]
        assert any(shares for _, _, shares in graphs._captured) is sharing
    assert sum(a[0] == b[0] for a, b in zip(*said, strict=True)) >= 5
    same = sum(x == y for a, b in zip(*said, strict=True) for x, y in zip(a, b, strict=True))
    assert same > 0.5 * 24 * len(prompts)


def test_log_probabilities_come_with_every_token_of_a_repeated_step(make_engine: Callable[..., Engine]) -> None:
    params = SamplingParams(temperature=0.0, ignore_eos=True, logprobs=2, max_tokens=50)
    done = make_engine(1, 16).submit(list(range(5, 25)), params).result()
    assert len(done.logprobs) == len(done.token_ids) == 50
    assert all(entry.token_id == token == entry.top[0][0] for entry, token in zip(done.logprobs, done.token_ids))
