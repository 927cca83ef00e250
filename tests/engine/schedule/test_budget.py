"""Chunks that keep running chats smooth."""

from __future__ import annotations

from octavo.engine.schedule.budget import MIN_CHUNK, StepBudget


def test_a_prompt_alone_gets_the_whole_chunk() -> None:
    budget = StepBudget(512, 0.05)
    budget.observe(512, 0, 1.0)
    assert budget.chunk(0) == 512


def test_beside_running_chats_a_chunk_takes_about_the_target_gap() -> None:
    budget = StepBudget(512, 0.05)
    budget.observe(512, 0, 0.256)
    assert budget.chunk(3) == 96


def test_a_slow_machine_still_gets_somewhere() -> None:
    budget = StepBudget(512, 0.05)
    budget.observe(512, 0, 60.0)
    assert budget.chunk(1) == MIN_CHUNK


def test_a_size_the_user_has_set_is_kept() -> None:
    budget = StepBudget(300, 0.05, adaptive=False)
    budget.observe(300, 0, 60.0)
    assert budget.chunk(4) == 300


def test_the_decodes_own_time_is_not_counted_against_the_prompt() -> None:
    budget = StepBudget(512, 0.05)
    budget.observe(0, 4, 0.048)
    budget.observe(32, 4, 0.048 + 32 * 0.0005)
    assert budget.chunk(4) == 96
