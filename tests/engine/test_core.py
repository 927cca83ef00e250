"""Engine logic on a fake device: whatever happens around a request, it says what it would say alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from fake_model import Oracle
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from octavo.engine.request import Finished, PrefillProgress, Started
from octavo.engine.speculate import Speculator

Make = Callable[..., Any]
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


@pytest.mark.parametrize("page_size", [1, 4])
def test_chats_that_say_the_same_hold_it_once(harness: Make, fake_greedy: Greedy, page_size: int) -> None:
    h = harness(pages=48 // page_size + 6, page_size=page_size, context_length=48, max_running=3)
    for name, count in (("short", 21), ("long", 40)):  # begin at once, so that neither finds the other's pages
        h.submit(name, [3], count)
    h.run()
    assert h.tokens("long") == fake_greedy([3], 40)
    assert h.tokens("short") == fake_greedy([3], 21)
    assert h.core.scheduler.num_preemptions == 0
    h.core.scheduler.check_integrity()


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
        max_checks=data.draw(st.integers(1, 4)),
        tick=1e-6,
        speculator=Speculator(Oracle(seed), data.draw(st.integers(1, 5)), always=seed % 2 == 0) if seed else None,
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
