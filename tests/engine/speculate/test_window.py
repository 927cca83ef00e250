"""Guesses are paid for by what they win."""

from __future__ import annotations

import random

from octavo.engine.speculate.cost import Cost
from octavo.engine.speculate.window import ALLOWANCE, SHARE, Window, expected_tokens

COST = Cost(0.1, 0.05)


def live(window: Window, right: float, cost: Cost, tokens: int, begin: int = 100) -> tuple[float, int]:
    """(speed against plain decoding, guesses made) of a text whose guesses are right so often, by a drafter that always
    promises 0.6."""
    rng, length, seconds, guesses = random.Random(4), begin, 0.0, 0
    while length < begin + tokens:
        size = window.size(5, length, 0.6, cost)
        good = 0
        while good < size and rng.random() < right:
            good += 1
        if size:
            window.observe(length, 0.6, size, good, cost)
            seconds += cost.of(size)
        guesses += size
        length += good + 1
        seconds += 1
    return (length - begin) / seconds, guesses


def test_the_expectation_is_that_of_the_formula() -> None:
    assert expected_tokens(1.0, 5) == 6
    assert expected_tokens(0.0, 5) == 1
    assert abs(expected_tokens(0.8, 5) - (1 - 0.8**6) / 0.2) < 1e-12


def test_good_guesses_get_the_whole_window_and_pay() -> None:
    speed, _ = live(Window(), 0.9, Cost(0.0, 0.05), 400)
    assert speed > 3.0
    assert Window().size(5, 10, 0.95, COST) == 5


def test_the_less_likely_and_the_dearer_guesses_are_the_fewer_are_made() -> None:
    sizes = [Window().size(5, 10, chance, COST) for chance in (0.1, 0.3, 0.5, 0.9)]
    assert sizes == sorted(sizes)
    assert sizes[0] == 0
    assert len(set(sizes)) > 2
    assert Window().size(5, 10, 0.9, Cost(0.1, 0.2)) < 5


def test_a_request_loses_no_more_than_it_may_whatever_guesses_cost() -> None:
    for cost in (COST, Cost(0.3, 0.01), Cost(0.02, 0.25), Cost(0.5, 0.2)):
        for right in (0.0, 0.05, 0.15):
            speed, _ = live(Window(), right, cost, 2000)
            assert speed >= 2000 / (2000 + ALLOWANCE + SHARE * 2000)


def test_what_failed_is_tried_again_and_a_text_that_becomes_predictable_is_noticed() -> None:
    window = Window()
    _, guesses = live(window, 0.0, COST, 3000)
    assert 10 < guesses < 350
    speed, _ = live(window, 0.95, COST, 60, begin=3100)
    assert speed > 2.0


def test_what_a_long_copy_won_is_not_lost_on_what_follows() -> None:
    window = Window()
    live(window, 1.0, COST, 2000)
    speed, _ = live(window, 0.0, COST, 200, begin=2100)
    assert speed > 0.97


def test_where_a_wider_step_costs_as_much_as_another_nothing_is_guessed() -> None:
    _, guesses = live(Window(), 0.6, Cost(0.0, 1.0), 1000)
    assert guesses == 0


def test_checks_follow_each_other_unseen_once_guesses_have_won_something_and_while_they_are_likely() -> None:
    window, cost = Window(), Cost(0.1, 0.02)
    assert window.checks(5, 8, 100, 0.9, cost) == 1
    for length in (106, 112, 118):
        window.observe(length, 0.9, 5, 5, cost)
    assert window.checks(5, 8, 124, 0.9, cost) == 8
    assert window.checks(5, 8, 124, 0.5, cost) == 1
    window.observe(124, 0.9, 5, 0, cost)
    assert 1 <= window.checks(5, 8, 125, 0.9, cost) < 8


def test_the_more_is_under_way_the_likelier_a_guess_must_be_to_be_waited_for() -> None:
    window = Window()
    assert window.is_worth_waiting(1, 100, 0.4, COST)
    assert not window.is_worth_waiting(8, 100, 0.4, COST)
    assert window.is_worth_waiting(8, 100, 0.9, COST)
    assert not window.is_worth_waiting(1, 100, 0.4, Cost(2.0, 0.05))


def test_waiting_in_vain_is_paid_for() -> None:
    window = Window()
    tries = 0
    while tries < 100 and window.size(5, 100, 0.6, COST):
        window.observe(100, 0.6, 0, 0, COST)
        tries += 1
    assert 2 < tries < 10
