"""Engine logic on a fake device: whatever happens around a request, it says what it would say alone."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from octavo.engine.request import Finished, PrefillProgress, Request, Started
from octavo.engine.speculate import Drafter, Speculator

Make = Callable[..., Any]


class Oracle(Drafter):
    """Guesses what the fake model will say, and at random goes wrong or says nothing."""

    name = "oracle"

    def __init__(self, seed: int, right: float = 0.7) -> None:
        self._random, self._right = random.Random(seed), right

    def propose(self, wanted: Sequence[tuple[Request, int]]) -> dict[str, tuple[int, ...]]:
        guesses = {}
        for request, count in wanted:
            text = list(request.tokens)
            for _ in range(count):
                text.append(next_token(text) if self._random.random() < self._right else self._random.randrange(97))
            if self._random.random() < 0.9:
                guesses[request.id] = tuple(text[len(request.tokens) :])
        return guesses


def next_token(tokens: list[int]) -> int:
    """The fake model's next token, as in the harness."""
    value = 7
    for token in tokens:
        value = (value * 31 + token + 1) % 1_000_003
    return value % 97


Greedy = Callable[[list[int], int], list[int]]


def test_a_request_gets_the_models_text_and_a_full_account(harness: Make, fake_greedy: Greedy) -> None:
    h = harness(chunk=4)
    prompt = list(range(10))
    h.submit("a", prompt, 6)
    h.run()
    assert h.tokens("a") == fake_greedy(prompt, 6)
    assert isinstance(h.events["a"][0], Started)
    progress = [e.done for e in h.events["a"] if isinstance(e, PrefillProgress)]
    assert progress == [4, 8, 10]
    last = h.finished("a")
    assert last is not None
    assert last.reason == "length"
    assert (last.usage.prompt_tokens, last.usage.cached_tokens, last.usage.completion_tokens) == (10, 0, 6)


def test_an_end_token_ends_the_reply_and_is_counted(harness: Make, fake_greedy: Greedy) -> None:
    h = harness()
    text = fake_greedy([1, 2, 3], 20)
    h.submit("a", [1, 2, 3], 20, end_ids=frozenset({text[4]}))
    h.run()
    cut = text.index(text[4]) + 1
    assert h.tokens("a") == text[:cut]
    assert h.finished("a").reason == "stop"
    assert h.finished("a").usage.completion_tokens == cut


def test_decodes_go_first_and_a_long_prompt_stalls_them_for_one_chunk_at_most(harness: Make) -> None:
    h = harness(chunk=8, context_length=256, pages=128)
    h.submit("chat", [1, 2, 3], 40)
    h.step()
    h.submit("long", list(range(90)), 4)
    before = len(h.runner.steps)
    while h.finished("long") is None:
        h.step()
    for plan in h.runner.steps[before:]:
        assert any(work.request.id == "chat" and work.count == 1 for work in plan.rows)
        assert sum(work.count for work in plan.rows if work.request.id == "long") <= 8


def test_requests_that_begin_alike_share_pages_while_both_run(harness: Make, fake_greedy: Greedy) -> None:
    h = harness(page_size=4, chunk=64)
    prompt = list(range(24))
    h.submit("a", [*prompt, 50], 12)
    h.submit("b", [*prompt, 60], 12)
    h.step()
    h.step()
    a, b = h.core.scheduler.running
    assert a.pages[0][:6] == b.pages[0][:6]
    assert b.cached_tokens == 24
    h.run()
    assert h.tokens("a") == fake_greedy([*prompt, 50], 12)
    assert h.tokens("b") == fake_greedy([*prompt, 60], 12)
    assert sum(count for rid, _, count in h.runner.computed if rid == "b") == 1 + 11


def test_a_prefix_being_read_is_computed_once_for_all_that_wait_for_it(harness: Make) -> None:
    h = harness(page_size=4, chunk=16, pages=400, max_running=64, context_length=256)
    shared = list(range(64))
    for index in range(32):
        h.submit(f"r{index}", [*shared, 90 + index % 7, index], 3)
    h.run()
    prompts = sum(count for _, begin, count in h.runner.computed if begin < 66)
    assert prompts <= 64 + 32 * (2 + 4)


def test_a_second_turn_computes_only_what_is_new(harness: Make) -> None:
    h = harness(page_size=4, chunk=64, pages=100, context_length=300)
    h.submit("one", list(range(80)), 9)
    h.run()
    history = [*range(80), *h.tokens("one"), 5, 6, 7]
    h.submit("two", history, 2)
    h.run()
    assert h.finished("two").usage.cached_tokens >= len(history) - 3 - 4
    assert sum(c for rid, begin, c in h.runner.computed if rid == "two" and begin < len(history)) <= 3 + 4


def test_pages_of_an_aborted_request_are_free_before_the_next_step(harness: Make) -> None:
    h = harness(cache="none", chunk=64)
    h.submit("a", list(range(40)), 40)
    h.submit("b", list(range(9)), 40)
    h.step()
    h.core.abort("a")
    assert h.finished("a").reason == "aborted"
    assert h.core.scheduler.pools[0].num_free == 64 - len(h.core.scheduler.running[0].pages[0])
    h.core.scheduler.check_integrity()


def test_a_waiting_request_that_is_aborted_never_runs(harness: Make) -> None:
    h = harness(max_running=1)
    h.submit("a", [1, 2], 5)
    h.submit("b", [3, 4], 5)
    h.step()
    h.core.abort("b")
    h.run()
    assert h.finished("b").reason == "aborted"
    assert all(rid != "b" for rid, _, _ in h.runner.computed)


def test_a_row_of_nan_ends_alone_and_its_pages_are_never_shared(harness: Make, fake_greedy: Greedy) -> None:
    h = harness(page_size=4, chunk=64)
    prompts = {f"r{i}": [i, *range(20, 33)] for i in range(4)}
    for name, prompt in prompts.items():
        h.submit(name, prompt, 10)
    h.runner.broken = lambda request: request.id == "r1" and request.num_generated == 3
    h.run()
    assert h.finished("r1").reason == "error"
    assert "not numbers" in h.finished("r1").error
    for name in ("r0", "r2", "r3"):
        assert h.tokens(name) == fake_greedy(prompts[name], 10)
    h.runner.broken = lambda request: True
    h.submit("bad", list(range(50, 70)), 5)
    h.run()
    h.runner.broken = lambda request: False
    h.submit("again", list(range(50, 70)), 5)
    h.run()
    assert h.finished("again").usage.cached_tokens == 0


def test_a_failing_step_ends_its_requests_and_the_engine_goes_on(harness: Make, fake_greedy: Greedy) -> None:
    h = harness()
    h.submit("a", [1, 2, 3], 5)
    launch = h.runner.launch

    def fail(plan: object) -> None:
        raise RuntimeError("device lost")

    h.runner.launch = fail
    h.step()
    assert "device lost" in h.finished("a").error
    h.runner.launch = launch
    h.submit("b", [1, 2, 3], 5)
    h.run()
    assert h.tokens("b") == fake_greedy([1, 2, 3], 5)


def test_a_preempted_request_says_the_same_and_the_oldest_keeps_running(harness: Make, fake_greedy: Greedy) -> None:
    h = harness(pages=20, page_size=4, chunk=16, context_length=72)
    prompts = {f"r{i}": [i * 10 + j for j in range(6)] for i in range(8)}
    for name, prompt in prompts.items():
        h.now += 0.01
        h.submit(name, prompt, 40)
    oldest = next(iter(prompts))
    while h.finished(oldest) is None:
        h.step()
        request = h.core.scheduler.find(oldest)
        assert request is None or request.preemptions == 0
    h.run()
    assert h.core.scheduler.num_preemptions > 0
    for name, prompt in prompts.items():
        assert h.tokens(name) == fake_greedy(prompt, 40)


def test_longest_prefix_runs_what_is_cached_first(harness: Make) -> None:
    h = harness(policy="longest-prefix", max_running=1)
    h.submit("warm", list(range(30)), 2)
    h.run()
    h.submit("cold", [70, 71, 72], 2)
    h.submit("hot", [*range(30), 1], 2)
    h.step()
    assert h.core.scheduler.running[0].id == "hot"
    h.run()


def test_a_slot_is_kept_for_the_chats_next_turn(harness: Make, fake_greedy: Greedy) -> None:
    h = harness(cache="slots", pages=3, context_length=64)
    h.submit("a", [1, 2, 3, 4, 5], 6)
    h.submit("b", [11, 12, 13], 6)
    h.run()
    history = [1, 2, 3, 4, 5, *h.tokens("a"), 8, 9]
    h.submit("a2", history, 4)
    h.run()
    assert h.tokens("a2") == fake_greedy(history, 4)
    assert h.finished("a2").usage.cached_tokens == 5 + 6 - 1


def test_pages_behind_a_window_are_given_back(harness: Make, fake_greedy: Greedy) -> None:
    h = harness(windows=(None, 8), page_size=4, cache="none", pages=30)
    h.submit("a", list(range(40)), 30)
    most = 0
    while h.core.has_work:
        h.step()
        most = max(most, h.core.scheduler.pools[1].total - h.core.scheduler.pools[1].num_free)
    assert h.tokens("a") == fake_greedy(list(range(40)), 30)
    assert most <= (16 + 8) // 4 + 2


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_random_traffic_never_changes_a_text(harness: Make, fake_greedy: Greedy, data: st.DataObject) -> None:
    cache = data.draw(st.sampled_from(["tree", "tree", "slots", "none"]))
    windows = data.draw(st.sampled_from([(None,), (None, 8), (6,), (None, None)]))
    page_size = data.draw(st.sampled_from([1, 2, 4, 8]))
    context, seed = 48, data.draw(st.integers(0, 50))
    pages = data.draw(st.integers(2, 5)) if cache == "slots" else data.draw(st.integers(48 // page_size + 1, 120))
    h = harness(
        pages=pages,
        page_size=page_size,
        windows=windows,
        cache=cache,
        max_running=data.draw(st.integers(1, 6)),
        chunk=data.draw(st.integers(1, 20)),
        policy=data.draw(st.sampled_from(["fcfs", "longest-prefix"])),
        context_length=context,
        run_ahead=data.draw(st.integers(0, 8)),
        max_repeats=data.draw(st.integers(1, 5)),
        tick=1e-6,
        speculator=Speculator(Oracle(seed), data.draw(st.integers(1, 5))) if seed else None,
    )
    ends = frozenset(data.draw(st.lists(st.integers(0, 96), max_size=6)))
    prompts: dict[str, tuple[list[int], int]] = {}
    stems = [[3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8] * 2, [2, 7, 1, 8, 2, 8, 1, 8], []]
    for number in range(data.draw(st.integers(1, 10))):
        stem = data.draw(st.sampled_from(stems))
        cut = data.draw(st.integers(0, len(stem)))
        prompt = [*stem[:cut], *data.draw(st.lists(st.integers(0, 3), min_size=1, max_size=10))]
        count = data.draw(st.integers(1, 30))
        prompts[f"r{number}"] = (prompt, count)
        h.submit(f"r{number}", prompt, count, ends)
        for _ in range(data.draw(st.integers(0, 6))):
            h.step()
            h.core.scheduler.check_integrity()
        if data.draw(st.integers(0, 9)) == 0:
            h.core.abort(data.draw(st.sampled_from(sorted(prompts))))
            h.core.scheduler.check_integrity()
    h.run()
    h.core.scheduler.check_integrity()
    pool = h.core.scheduler.pools[0]
    h.core.scheduler.prefix.clear()
    assert pool.num_free == pool.total
    for name, (prompt, count) in prompts.items():
        expected = fake_greedy(prompt, min(count, context - len(prompt)))
        end = next((place for place, token in enumerate(expected) if token in ends), None)
        expected = expected if end is None else expected[: end + 1]
        last = h.finished(name)
        assert isinstance(last, Finished)
        if last.reason == "aborted":
            assert expected[: len(h.tokens(name))] == h.tokens(name)
        else:
            assert h.tokens(name) == expected
            assert last.usage.completion_tokens == len(expected)


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


def test_running_out_of_device_memory_loses_no_step(harness: Make, fake_greedy: Greedy) -> None:
    h = harness(run_ahead=2, tick=1e-6, chunk=256, context_length=400, pages=400)
    h.submit("short", [1, 2, 3], 30)
    for _ in range(4):
        h.step()
    launch, prompt = h.runner.launch, list(range(90)) * 3

    def small(plan: Any) -> Any:
        if plan.num_tokens > 100:
            raise torch.cuda.OutOfMemoryError("too large")
        return launch(plan)

    h.runner.launch = small
    h.submit("long", prompt, 5)
    h.run()
    assert h.tokens("short") == fake_greedy([1, 2, 3], 30)
    assert h.tokens("long") == fake_greedy(prompt, 5)


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


def test_a_guess_never_passes_the_limit_or_an_end_token(harness: Make, fake_greedy: Greedy) -> None:
    expected = fake_greedy([1, 2, 3], 30)
    for count in range(1, 12):
        h = harness(tick=1e-6, speculator=Speculator(Oracle(1, 1.0), 5), context_length=3 + count)
        h.submit("a", [1, 2, 3], 30)
        h.run()
        assert h.tokens("a") == expected[:count]
    for place in range(2, 9):
        h = harness(tick=1e-6, speculator=Speculator(Oracle(1, 1.0), 5))
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


@pytest.mark.parametrize("ahead", [0, 4])
@pytest.mark.parametrize("cache", ["tree", "none"])
def test_eight_growing_chats_in_sixty_four_pages_all_finish(
    harness: Make, fake_greedy: Greedy, cache: str, ahead: int
) -> None:
    h = harness(pages=64, page_size=4, cache=cache, context_length=100, run_ahead=ahead, tick=1e-6)
    for index in range(8):
        h.submit(f"r{index}", [index, index + 1], 90)
    h.run(steps=2_000)
    for index in range(8):
        assert h.tokens(f"r{index}") == fake_greedy([index, index + 1], 90)
    assert h.core.scheduler.num_preemptions < 40


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
