"""Chunks that keep running chats smooth."""

from __future__ import annotations

from octavo.engine.schedule.budget import MIN_CHUNK, StepBudget


def settled(budget: StepBudget, seconds_per_token: float, fixed_s: float = 0.0, decode_s: float = 0.0) -> int:
    """The chunk beside running chats once a machine of that speed was seen for a while."""
    for _ in range(12):
        tokens = budget.chunk(4)
        budget.observe(0, 4, decode_s)
        budget.observe(tokens, 4, decode_s + fixed_s + tokens * seconds_per_token)
    return budget.chunk(4)


def test_a_prompt_alone_gets_the_whole_chunk() -> None:
    budget = StepBudget(512, 0.05)
    budget.observe(512, 0, 1.0)
    assert budget.chunk(0) == 512


def test_beside_running_chats_a_chunk_takes_about_the_target_gap() -> None:
    assert 64 <= settled(StepBudget(512, 0.05), 0.0005) <= 96


def test_a_slow_machine_still_gets_somewhere() -> None:
    assert settled(StepBudget(512, 0.05), 0.1) == MIN_CHUNK


def test_a_size_the_user_has_set_is_kept() -> None:
    budget = StepBudget(300, 0.05, adaptive=False)
    budget.observe(300, 0, 60.0)
    assert budget.chunk(4) == 300


def test_the_decodes_own_time_is_not_counted_against_the_prompt() -> None:
    assert 64 <= settled(StepBudget(512, 0.05), 0.0005, decode_s=0.048) <= 96


def test_a_first_step_that_had_to_compile_is_forgotten_within_a_few() -> None:
    budget = StepBudget(8192, 0.05)
    budget.observe(8192, 3, 9.0)
    seen = []
    for _ in range(4):
        seen.append(budget.chunk(3))
        budget.observe(seen[-1], 3, 0.004 + seen[-1] * 5e-6)
    assert seen == [2048, 4096, 8192, 8192]


def test_what_every_chunk_costs_does_not_make_chunks_ever_smaller() -> None:
    budget = StepBudget(8192, 0.05)
    budget.observe(64, 3, 0.5)
    assert settled(budget, 1e-5, fixed_s=0.015) >= 3000


def test_the_small_rest_of_a_prompt_says_nothing_about_large_chunks() -> None:
    budget = StepBudget(8192, 0.05)
    budget.observe(4096, 3, 0.045)
    before = budget.chunk(3)
    budget.observe(40, 3, 0.01)
    assert budget.chunk(3) == before


def test_chunks_take_few_different_sizes() -> None:
    """What was captured for one chunk serves the next one."""
    budget = StepBudget(8192, 0.05)
    seen = set()
    for step in range(200):
        chunk = budget.chunk(4)
        seen.add(chunk)
        budget.observe(chunk, 4, chunk * (1e-5 + 1e-7 * (step * 37 % 100)))
    assert len(seen) <= 6
