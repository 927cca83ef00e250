"""Steps launched before the last ones' results are taken, and several in one, on a fake device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

Make = Callable[..., Any]
Greedy = Callable[[list[int], int], list[int]]


@pytest.mark.parametrize("depth", range(9))
def test_requests_join_and_leave_at_every_depth(harness: Make, fake_greedy: Greedy, depth: int) -> None:
    h = harness(run_ahead=depth, max_repeats=3, tick=1e-6, pages=200, max_running=4)
    prompts = {f"r{i}": ([i, 5, 6], 3 + 7 * (i % 4)) for i in range(12)}
    for name, (prompt, count) in prompts.items():
        h.submit(name, prompt, count)
        h.step()
    h.run()
    for name, (prompt, count) in prompts.items():
        assert h.tokens(name) == fake_greedy(prompt, count)
    ahead = max(len(plan.rows) * plan.repeats for plan in h.runner.steps)
    assert ahead > 4, "steps were repeated"


def test_steps_are_repeated_while_others_wait_for_a_row_but_not_while_they_could_enter(
    harness: Make, fake_greedy: Greedy
) -> None:
    h = harness(max_running=2, max_repeats=4, tick=1e-6)
    for index in range(4):
        h.submit(f"r{index}", [index, 5, 6], 12 + index)
    h.step()
    h.core.scheduler.budget.observe(0, 2, 1e-4)
    h.step()
    assert [(len(plan.rows), plan.repeats) for plan in h.runner.steps[-1:]] == [(2, 4)]
    assert len(h.core.scheduler.waiting) == 2
    h.core.abort("r0")
    h.step()
    assert h.runner.steps[-1].repeats == 1
    assert {work.request.id for work in h.runner.steps[-1].rows} == {"r1", "r2"}
    h.run()
    for index in range(1, 4):
        assert h.tokens(f"r{index}") == fake_greedy([index, 5, 6], 12 + index)


def test_pages_nobody_uses_give_way_to_repeated_steps(harness: Make, fake_greedy: Greedy) -> None:
    h = harness(page_size=4, pages=16, max_repeats=4, tick=1e-6)
    h.submit("before", list(range(40)), 20)
    h.run()
    assert h.core.scheduler.pools[0].num_free < 3
    h.submit("a", [90, 91, 92], 30)
    h.run()
    assert h.tokens("a") == fake_greedy([90, 91, 92], 30)
    assert len([plan for plan in h.runner.steps if plan.rows[0].request.id == "a"]) <= 2 + 30 // 4


def test_steps_are_launched_before_the_last_ones_results_are_taken(harness: Make) -> None:
    h = harness(run_ahead=2, tick=1e-6)
    h.submit("a", [1, 2, 3], 20)
    h.step()
    assert len(h.runner.steps) == 3
    assert len(h.tokens("a")) == 1
    h.run()
    assert len(h.runner.steps) == 20, "none is launched beyond the limit"


def test_readers_are_thought_of_once_the_next_step_is_queued_and_before_its_wait(harness: Make) -> None:
    h = harness(run_ahead=1, tick=1e-6)
    h.submit("a", [1, 2, 3], 6)
    seen: list[tuple[int, int]] = []
    while h.core.has_work:
        h.core.step(lambda: seen.append((len(h.runner.steps), len(h.tokens("a")))))
    assert seen == [(2, 0), (3, 1), (4, 2), (5, 3), (6, 4), (6, 5)]


def test_a_broken_score_within_a_repeated_step_leaves_the_tokens_before_it(harness: Make, fake_greedy: Greedy) -> None:
    h = harness(run_ahead=1, max_repeats=4, tick=1e-6)
    h.submit("a", [1, 2, 3], 20)
    h.submit("b", [4, 5, 6], 20)
    calls = iter(range(1000))
    h.runner.broken = lambda request: request.id == "a" and next(calls) == 9
    h.run()
    assert h.finished("a").reason == "error"
    assert h.tokens("a") == fake_greedy([1, 2, 3], 9)
    assert h.tokens("b") == fake_greedy([4, 5, 6], 20)


class _Slow:
    """A step whose results come when somebody waits for them; until then looking at it takes time."""

    def __init__(self, inner: Any, log: list[str], harness: Any) -> None:
        self._inner, self._log, self._harness = inner, log, harness

    def done(self) -> bool:
        self._harness.now += 0.06
        return False

    def wait(self) -> Any:
        self._log.append("taken")
        return self._inner.wait()


def test_a_step_is_queued_behind_a_long_one_before_its_results_are_taken(harness: Make) -> None:
    h = harness(run_ahead=1, tick=1e-6)
    log: list[str] = []
    launch = h.runner.launch

    def slow(plan: Any) -> _Slow:
        log.append("launched")
        return _Slow(launch(plan), log, h)

    h.runner.launch = slow
    h.core.scheduler.budget.observe(0, 1, 0.2)  # a step takes a fifth of a second, more than may be queued at once
    h.submit("a", [1, 2, 3], 4)
    h.run()
    assert h.finished("a").reason == "length"
    # one is always queued behind the one under way
    assert " ".join(log) == "launched launched taken launched taken launched taken taken"
