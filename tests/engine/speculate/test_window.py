"""Guessing goes on while it pays."""

from __future__ import annotations

import random

from octavo.engine.speculate.window import LONGEST_SLEEP, Window, expected_tokens


def live(window: Window, right: float, cost: float, tokens: int, begin: int = 100) -> tuple[float, int]:
    """(speed against plain decoding, guesses made) of a text whose guesses are right so often."""
    rng, longest, length, seconds, guesses = random.Random(4), 5, begin, 0.0, 0
    while length < begin + tokens:
        size = window.size(longest, length, cost)
        good = 0
        while good < size and rng.random() < right:
            good += 1
        window.observe(size, good)
        guesses += size
        length += good + 1
        seconds += 1 + cost * size
    return (length - begin) / seconds, guesses


def test_the_expectation_is_that_of_the_formula() -> None:
    assert expected_tokens(1.0, 5) == 6
    assert expected_tokens(0.0, 5) == 1
    assert abs(expected_tokens(0.8, 5) - (1 - 0.8**6) / 0.2) < 1e-12


def test_good_guesses_get_the_whole_window_and_pay() -> None:
    speed, _ = live(Window(), 0.9, 0.05, 400)
    assert speed > 3.0
    assert Window(acceptance=0.95, probes=0).size(5, 10, 0.05) == 5


def test_bad_guesses_cost_next_to_nothing() -> None:
    speed, guesses = live(Window(), 0.0, 0.06, 2000)
    assert speed > 0.97
    assert guesses < 100
    speed, _ = live(Window(), 0.1, 0.25, 2000)
    assert speed > 0.95


def test_a_text_that_becomes_predictable_is_noticed() -> None:
    window = Window()
    live(window, 0.0, 0.06, 3000)
    assert window.sleep <= LONGEST_SLEEP
    speed, _ = live(window, 0.95, 0.06, 2000, begin=3100)
    assert speed > 2.0


def test_where_a_wider_step_costs_as_much_as_another_nothing_is_guessed_for_long() -> None:
    _, guesses = live(Window(), 0.6, 1.0, 1000)
    assert guesses < 100
