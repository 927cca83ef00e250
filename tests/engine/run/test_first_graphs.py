"""Steps and graphs while their kernels are being compiled: what waits for what."""

from __future__ import annotations

from typing import Any

import pytest

from octavo.engine.request import Request, SamplingParams
from octavo.engine.run.runner import EVERYTHING, FIRST_GRAPHS, IDLE_WAIT_S, ModelRunner, first_graphs_of
from octavo.engine.schedule.plan import RowWork, StepPlan


def work(count: int, *, begin: int = 0, row: int = 0, draft: tuple[int, ...] = ()) -> RowWork:
    request = Request(f"r{row}", (1,) * (begin + count), SamplingParams(), 0.0, row=row, epoch=1)
    return RowWork(request, begin, count, True, 1, draft=draft)


@pytest.mark.parametrize(
    ("plan", "graphs"),
    [
        (StepPlan((work(1, begin=5),), 1), 1),
        (StepPlan((work(3),), 0), 2),
        (StepPlan((work(64),), 0), 2),
        (StepPlan((work(100),), 0), 4),
        (StepPlan((work(200),), 0), 5),
        (StepPlan(tuple(work(1, begin=5, row=row) for row in range(2)), 2), 6),
        (StepPlan(tuple(work(1, begin=5, row=row) for row in range(3)), 3), 7),
        (StepPlan(tuple(work(1, begin=5, row=row) for row in range(5)), 5), EVERYTHING),
        (StepPlan((work(1, begin=5), work(30, row=1)), 1), EVERYTHING),
        (StepPlan((work(3000),), 0), EVERYTHING),
        (StepPlan((work(2, begin=5, draft=(4,)),), 0), EVERYTHING),
    ],
)
def test_a_step_waits_for_the_graph_of_its_size(plan: StepPlan, graphs: int) -> None:
    assert first_graphs_of(plan) == graphs
    assert len(FIRST_GRAPHS) + 1 == EVERYTHING


class Kernels:
    """Stands for processes that compile: `ready` of the first graphs' kernels are there."""

    def __init__(self) -> None:
        self.ready = 0
        self.asked: list[tuple[int, float]] = []

    def wait(self, graphs: int, longest_s: float = float("inf")) -> bool:
        self.asked.append((graphs, longest_s))
        return graphs <= self.ready

    @property
    def over(self) -> bool:
        return self.ready >= len(FIRST_GRAPHS)


def runner_with(kernels: Kernels, graphs: Any = None) -> ModelRunner:
    runner = ModelRunner.__new__(ModelRunner)
    runner._kernels = kernels
    runner._graphs = runner._mixed = graphs
    runner._checks = None
    runner._to_prepare = list(FIRST_GRAPHS)
    return runner


def test_a_step_waits_until_there_is_nothing_left_to_wait_for(monkeypatch: pytest.MonkeyPatch) -> None:
    kernels = Kernels()
    runner = runner_with(kernels)
    monkeypatch.setattr(ModelRunner, "_launch_eagerly", lambda *told: "launched")
    assert runner.launch(StepPlan((work(64),), 0)) == "launched"
    kernels.ready = len(FIRST_GRAPHS)
    for plan in (StepPlan((work(3000),), 0), StepPlan((work(1, begin=5),), 1)):
        assert runner.launch(plan) == "launched"
    assert [graphs for graphs, _ in kernels.asked] == [2, EVERYTHING]


def test_while_a_graph_waits_for_its_kernels_the_engine_looks_for_requests() -> None:
    class Graphs:
        def __init__(self) -> None:
            self.made: list[object] = []

        def prepare_next(self) -> bool:
            return False

        def prepare(self, rows: int, kind: str) -> None:
            self.made.append((rows, kind))

        def want(self, bucket: Any, kind: str) -> None:
            self.made.append((bucket.tokens, kind))

    kernels, graphs = Kernels(), Graphs()
    runner = runner_with(kernels, graphs)
    assert runner.prepare_next()  # there is more to do, and nothing was done
    assert not graphs.made
    assert kernels.asked == [(1, IDLE_WAIT_S)]
    kernels.ready = 2
    for _ in range(4):
        assert runner.prepare_next()
    assert graphs.made == [(1, "filter"), (64, "filter")]
    kernels.ready = len(FIRST_GRAPHS)
    while runner.prepare_next():
        pass
    assert len(graphs.made) == len(FIRST_GRAPHS)
    assert IDLE_WAIT_S < 0.5
