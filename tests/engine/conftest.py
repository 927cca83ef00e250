"""A fake device for engine tests: pages that remember which token was written where, and a next token that is a
hash of what was read back. A wrong page, a lost write or a stale read changes the text or raises at once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from octavo.engine.attention.base import CacheGroup, Plane
from octavo.engine.core import EngineCore
from octavo.engine.memory import NoCache, PagePool, RadixTree, SlotCache
from octavo.engine.request import Delta, Event, Finished, Request, SamplingParams
from octavo.engine.run.step import StepResult
from octavo.engine.schedule import Scheduler, StepBudget, StepPlan, make_policy

VOCAB = 97


def next_token(tokens: list[int]) -> int:
    """The fake model: a token for a sequence."""
    value = 7
    for token in tokens:
        value = (value * 31 + token + 1) % 1_000_003
    return value % VOCAB


def greedy(prompt: list[int], count: int) -> list[int]:
    """What the fake model says after a prompt, alone."""
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(next_token(tokens))
    return tokens[len(prompt) :]


class _Done:
    def __init__(self, result: StepResult) -> None:
        self._result = result

    def wait(self) -> StepResult:
        return self._result


class FakeRunner:
    """Executes plans on pages of plain numbers. `broken` gives (request id, step) pairs whose scores are NaN."""

    def __init__(self, groups: tuple[CacheGroup, ...], page_size: int) -> None:
        self.groups, self.page_size = groups, page_size
        self.slots: list[dict[int, tuple[int, int]]] = [{} for _ in groups]  # physical slot -> (token, position)
        self.broken: Callable[[Request], bool] = lambda request: False
        self.computed: list[tuple[str, int, int]] = []  # (request id, begin, count) of every row
        self.steps: list[StepPlan] = []

    def launch(self, plan: StepPlan) -> _Done:
        self.steps.append(plan)
        rows = {work.request.row for work in plan.rows}
        assert len(rows) == len(plan.rows), "two requests share a row"
        for work in plan.rows:
            self._write(work.request, work.begin, work.count)
            self.computed.append((work.request.id, work.begin, work.count))
        tokens: list[int | None] = []
        for work in plan.rows:
            end = work.begin + work.count
            self._read(work.request, work.begin, end)
            tokens.append(next_token(work.request.tokens[:end]) if work.samples else None)
        finite = tuple(not self.broken(work.request) for work in plan.rows)
        count = len(plan.rows)
        return _Done(StepResult(tuple(tokens), finite, (None,) * count, ((),) * count))

    def _slot(self, request: Request, group: int, position: int) -> int:
        page = request.pages[group][position // self.page_size]
        assert page != 0, f"{request.id} needs position {position}, which was given back"
        return page * self.page_size + position % self.page_size

    def _write(self, request: Request, begin: int, count: int) -> None:
        for group in range(len(self.groups)):
            for position in range(begin, begin + count):
                self.slots[group][self._slot(request, group, position)] = (request.tokens[position], position)

    def _read(self, request: Request, begin: int, end: int) -> None:
        for index, group in enumerate(self.groups):
            first = 0 if group.window is None else max(0, begin - group.window + 1)
            for position in range(first, end):
                held = self.slots[index].get(self._slot(request, index, position))
                assert held == (request.tokens[position], position), f"{request.id} reads {held} at {position}"


@dataclass
class Harness:
    """A core on the fake device, with what it emitted."""

    core: EngineCore
    runner: FakeRunner
    context_length: int
    now: float = 0.0
    events: dict[str, list[Event]] = field(default_factory=dict)

    def submit(
        self, request_id: str, prompt: list[int], max_tokens: int, end_ids: frozenset[int] = frozenset()
    ) -> None:
        params = SamplingParams(max_tokens=max_tokens)
        request = Request(request_id, tuple(prompt), params, self.now)
        request.limit = min(len(prompt) + max_tokens, self.context_length)
        self.events[request_id] = []
        self.core.submit(request, end_ids, None)

    def tokens(self, request_id: str) -> list[int]:
        return [t for e in self.events[request_id] if isinstance(e, Delta) for t in e.token_ids]

    def finished(self, request_id: str) -> Finished | None:
        last = self.events[request_id][-1] if self.events[request_id] else None
        return last if isinstance(last, Finished) else None

    def step(self) -> bool:
        self.now += 1.0
        return self.core.step()

    def run(self, steps: int = 10_000) -> None:
        for _ in range(steps):
            if not self.core.has_work:
                return
            self.step()
        raise AssertionError("the requests did not end")


@pytest.fixture
def harness() -> Callable[..., Harness]:
    """Makes a Harness; arguments as below."""

    def make(
        *,
        pages: int = 64,
        page_size: int = 4,
        windows: tuple[int | None, ...] = (None,),
        cache: str = "tree",
        max_running: int = 8,
        chunk: int = 16,
        policy: str = "fcfs",
        context_length: int = 128,
    ) -> Harness:
        if cache == "slots":
            page_size, windows = context_length, (None,) * len(windows)
        plane = (Plane("k", 1, 1), Plane("v", 1, 1))
        groups = tuple(CacheGroup(f"g{i}", (i,), plane, window) for i, window in enumerate(windows))
        pools = [PagePool(pages + 1) for _ in groups]
        prefix = {
            "tree": lambda: RadixTree(pools, page_size, windows),
            "slots": lambda: SlotCache(pools, page_size),
            "none": lambda: NoCache(pools, page_size),
        }[cache]()
        scheduler = Scheduler(
            groups,
            pools,
            prefix,
            make_policy(policy),
            StepBudget(chunk, 0.05, adaptive=False),
            max_running,
            prune_windows=cache != "slots",
            hold_back=cache == "tree",
        )
        runner = FakeRunner(groups, page_size)
        made: list[Harness] = []
        core = EngineCore(
            scheduler,
            runner,
            lambda request_id, event: made[0].events[request_id].append(event),
            clock=lambda: made[0].now,
        )
        made.append(Harness(core, runner, context_length))
        return made[0]

    return make


@pytest.fixture
def fake_greedy() -> Callable[[list[int], int], list[int]]:
    return greedy
