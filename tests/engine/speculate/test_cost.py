"""What guesses cost is measured against plain steps of the same kind."""

from __future__ import annotations

import random

from octavo.engine.speculate.cost import FIRST_EACH, FIRST_FIXED, Cost, StepCost


def measure(cost: StepCost, fixed: float, each: float, steps: int = 200, rows: int = 1, noise: float = 0.0) -> None:
    """Plain steps of 10 ms among ones with 1 to 5 guesses a row, disturbed by so much of a step in the mean."""
    rng = random.Random(5)
    for _ in range(steps):
        size = rng.randrange(6)
        seconds = 1 + (fixed + each * size if size else 0) + (noise and rng.expovariate(1 / noise))
        cost.observe(0.010 * seconds, rows, size * rows, rows)


def near(cost: Cost, fixed: float, each: float, within: float) -> bool:
    return all(abs(cost.of(size) - (fixed + each * size)) < within for size in (1, 5))


def test_the_fixed_part_and_that_of_every_guess_are_told_apart() -> None:
    for fixed, each in ((0.3, 0.02), (0.02, 0.12), (0.1, 0.3)):
        cost = StepCost()
        measure(cost, fixed, each, steps=400)
        assert near(cost.of_rows(1), fixed, each, 0.03)


def test_disturbed_steps_hardly_matter() -> None:
    cost = StepCost()
    measure(cost, 0.1, 0.05, noise=0.2)
    assert near(cost.of_rows(1), 0.1, 0.05, 0.2)
    before = cost.of_rows(1).of(5)
    cost.observe(3.0, 1, 5, 1)  # a step that was compiled
    assert cost.of_rows(1).of(5) - before < 0.07


def test_a_step_is_compared_with_plain_ones_of_as_many_rows_only() -> None:
    cost = StepCost()
    for _ in range(5):
        cost.observe(0.010, 1, 0, 1)
    cost.observe(0.020, 4, 4, 4)  # twice a plain step of one row, which says nothing
    assert cost.of_rows(4) == Cost()
    measure(cost, 0.02, 0.01, rows=4)
    assert near(cost.of_rows(4), 0.02, 0.01, 0.02)
    assert cost.of_rows(1) == Cost()


def test_few_of_many_rows_that_guess_pay_for_all() -> None:
    cost = StepCost()
    for _ in range(200):
        cost.observe(0.010, 4, 0, 1)
        cost.observe(0.011, 4, 2, 1)  # a tenth more for four rows, so that one may win what another loses
    assert abs(cost.of_rows(4).of(2) - 0.4) < 0.02


def test_nothing_is_learned_from_another_requests_plain_steps_or_from_a_clock_that_stands() -> None:
    cost = StepCost()
    for _ in range(5):
        cost.observe(0.010, 1, 0, 1)
    cost.request_ended()
    cost.observe(0.050, 1, 5, 1)
    assert cost.of_rows(1) == Cost()
    for _ in range(5):
        cost.observe(0.0, 1, 0, 1)
    cost.observe(0.0, 1, 5, 1)
    assert cost.of_rows(1) == Cost()


def test_a_guess_is_never_free_and_what_was_measured_too_high_is_forgotten() -> None:
    cost = StepCost()
    measure(cost, -0.5, 0.0)
    assert cost.of_rows(1).fixed > 0
    assert cost.of_rows(1).each > 0
    measure(cost, 1.0, 1.0, steps=2000)
    assert cost.of_rows(1).of(1) > 1.5
    for _ in range(60):
        cost.request_ended()
    assert abs(cost.of_rows(1).of(1) - FIRST_FIXED - FIRST_EACH) < 0.01
