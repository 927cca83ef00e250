"""Guessing ahead on a fake device: it changes how many steps a reply takes and nothing else."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import pytest
import torch
from fake_model import Oracle

from octavo.engine.request import Request, SamplingParams
from octavo.engine.schedule.plan import RowWork, count_checks
from octavo.engine.speculate import Speculator

Make = Callable[..., Any]
Greedy = Callable[[list[int], int], list[int]]


@pytest.mark.parametrize("right", [0.0, 0.5, 1.0])
def test_guesses_change_the_pace_and_never_the_text(harness: Make, fake_greedy: Greedy, right: float) -> None:
    h = harness(run_ahead=2, tick=1e-6, pages=200, speculator=Speculator(Oracle(3, right), 5))
    prompts = {f"r{i}": ([i, 5, 6], 60) for i in range(3)}
    for name, (prompt, count) in prompts.items():
        h.submit(name, prompt, count)
    h.run()
    for name, (prompt, count) in prompts.items():
        assert h.tokens(name) == fake_greedy(prompt, count)
        usage = h.finished(name).usage
        assert usage.completion_tokens == count
        assert 0 <= usage.accepted_tokens <= usage.draft_tokens
    counters = h.core.counters
    assert counters.draft_tokens > 0
    if right == 1.0:
        assert counters.accepted_tokens > 0.8 * 3 * 60 * 4 / 5
        assert counters.steps < 30
    if right == 0.0:
        assert counters.draft_tokens < 3 * 60, "who is always wrong is seldom asked"


@pytest.mark.parametrize("right", [0.5, 1.0])
def test_guesses_are_checked_several_times_before_anybody_looks(
    harness: Make, fake_greedy: Greedy, right: float
) -> None:
    alone, several = (
        harness(tick=1e-6, pages=200, max_checks=checks, speculator=Speculator(Oracle(3, right), 3, always=True))
        for checks in (1, 4)
    )
    for h in (alone, several):
        for index in range(3):
            h.submit(f"r{index}", [index, 5, 6], 60 + index)
        h.run()
        for index in range(3):
            assert h.tokens(f"r{index}") == fake_greedy([index, 5, 6], 60 + index)
    assert len(several.runner.steps) < len(alone.runner.steps) / 2
    assert max(plan.repeats for plan in several.runner.steps) == 4
    for h in (alone, several):
        counters, usages = h.core.counters, [h.finished(f"r{index}").usage for index in range(3)]
        assert counters.accepted_tokens == sum(usage.accepted_tokens for usage in usages)
        share = counters.accepted_tokens / counters.draft_tokens
        assert share > 0.95 if right == 1.0 else 0.2 < share < 0.5  # of three in a row, each right half of the time
        assert all(usage.speedup > (2.0 if right == 1.0 else 1.1) for usage in usages)
        assert counters.guess_cost_steps > 0


def test_a_step_with_guesses_goes_on_from_one_under_way(harness: Make, fake_greedy: Greedy) -> None:
    h = harness(run_ahead=1, tick=1e-6, pages=200, max_checks=3, speculator=Speculator(Oracle(3, 0.7), 3, always=True))
    for index in range(3):
        h.submit(f"r{index}", [index, 5, 6], 60 + 10 * index)
    for _ in range(4):
        h.step()
    h.submit("late", [9, 9], 20)
    h.run()
    for name, prompt, count in [("late", [9, 9], 20)] + [(f"r{i}", [i, 5, 6], 60 + 10 * i) for i in range(3)]:
        assert h.tokens(name) == fake_greedy(prompt, count)
        usage = h.finished(name).usage
        assert 0 < usage.accepted_tokens < usage.draft_tokens
    plans = h.runner.steps
    late = next(at for at, plan in enumerate(plans) if any(work.request.id == "late" for work in plan.rows))
    assert sum(plan.continues for plan in plans[:late]) >= 1
    assert sum(plan.continues for plan in plans[late:]) >= 2
    assert all(before.num_guesses for before, plan in pairwise(plans) if plan.continues)


def test_a_rows_tokens_tell_how_its_checks_went() -> None:
    work = RowWork(Request("a", (1,), SamplingParams(), 0.0), 0, 4, True, 0, draft=(1, 2, 3), beyond=(4, 5, 6, 7))
    assert list(count_checks(work, (1, 2, 9, 4, 5, 6, 7))) == [(0, 3, 2), (3, 3, 3)]
    assert list(count_checks(work, (1, 2, 3, 4, 9, 6))) == [(0, 3, 3), (4, 3, 0), (5, 2, 0)]
    assert list(count_checks(work, (8, 2, 3))) == [(0, 3, 0), (1, 3, 1)], "a reply that ended within a check"
    assert list(count_checks(work, ())) == []


def test_a_guess_never_passes_the_limit_or_an_end_token(harness: Make, fake_greedy: Greedy) -> None:
    expected = fake_greedy([1, 2, 3], 30)
    for count in range(1, 12):
        guesses = Speculator(Oracle(1, 1.0), 5, always=count % 2 == 0)
        h = harness(tick=1e-6, speculator=guesses, context_length=3 + count, max_checks=1 + count % 3)
        h.submit("a", [1, 2, 3], 30)
        h.run()
        assert h.tokens("a") == expected[:count]
    for place in range(2, 9):
        h = harness(tick=1e-6, speculator=Speculator(Oracle(1, 1.0), 5, always=True), max_checks=1 + place % 3)
        h.submit("a", [1, 2, 3], 30, frozenset({expected[place]}))
        h.run()
        end = expected.index(expected[place])
        assert h.tokens("a") == expected[: end + 1]
        assert h.finished("a").reason == "stop"


def test_a_drafter_that_breaks_ends_guessing_and_no_reply(harness: Make, fake_greedy: Greedy) -> None:
    class Breaking(Oracle):
        asked = 0

        def propose(self, wanted: Sequence[tuple[Request, int]]) -> dict[str, tuple[int, ...]]:
            self.asked += 1
            if self.asked == 3:
                raise torch.cuda.OutOfMemoryError("no room for the draft model's step")
            return super().propose(wanted)

    drafter = Breaking(1, 1.0)
    h = harness(tick=1e-6, speculator=Speculator(drafter, 2))
    h.submit("a", [1, 2, 3], 30)
    h.submit("b", [4, 5], 30)
    h.run()
    assert h.tokens("a") == fake_greedy([1, 2, 3], 30)
    assert h.tokens("b") == fake_greedy([4, 5], 30)
    assert h.finished("a").reason == h.finished("b").reason == "length"
    assert drafter.asked == 3


def test_guesses_take_pages_that_nobody_uses_and_none_of_a_running_chat(harness: Make, fake_greedy: Greedy) -> None:
    h = harness(page_size=4, pages=16, tick=1e-6, speculator=Speculator(Oracle(1, 1.0), 5, always=True))
    h.submit("before", list(range(40)), 20)
    h.run()
    assert h.core.scheduler.pools[0].num_free < 3
    steps = len(h.runner.steps)
    h.submit("a", [90, 91, 92], 30)
    h.run()
    assert h.tokens("a") == fake_greedy([90, 91, 92], 30)
    assert len(h.runner.steps) - steps <= 2 + 30 // 5
    for index in range(4):  # what all need is all there is
        h.submit(f"r{index}", [index, 5, 6], 11)
    h.run()
    for index in range(4):
        assert h.tokens(f"r{index}") == fake_greedy([index, 5, 6], 11)
    assert h.core.scheduler.num_preemptions == 0
