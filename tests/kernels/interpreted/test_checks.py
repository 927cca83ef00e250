"""Rows that check guesses and feed themselves: the kernels against their references and against a plain account."""

from dataclasses import fields, replace

import pytest
import torch

from octavo.kernels.checks import CheckRows, Places, settle, settle_reference, spread, spread_reference
from octavo.kernels.rows import CLOSED, NOT_FINITE

PAGE = 4
PAGES = 12


def made(rows, places, guesses=20, engine_rows=12, stops=(-1, -1)):
    positions = torch.randint(0, 12, (rows,))
    return CheckRows(
        last=torch.randint(0, 9, (engine_rows + 1,)),
        rows=torch.randperm(engine_rows)[:rows],
        positions=positions,
        caps=torch.where(torch.rand(rows) < 0.2, 0, positions + torch.randint(1, 20, (rows,))),
        windows=torch.randint(0, places, (rows,)),
        firsts=positions + 1,
        counts=torch.randint(0, guesses + 1, (rows,)),
        guesses=torch.randint(0, 9, (rows, guesses)),
        stops=torch.tensor([list(stops)] * rows),
        ring=torch.full((3, rows, places), -7),
        turn=torch.tensor([4]),
    )


def copied(state):
    return CheckRows(*(getattr(state, field.name).clone() for field in fields(state)))


def empty(state):
    size = state.rows.shape[0] * state.places
    wide = [torch.full((size,), -7) for _ in range(4)]
    return Places(wide[0], wide[1], wide[2], torch.full((size,), -7, dtype=torch.int32)), wide[3]


@pytest.mark.parametrize(("rows", "places"), [(1, 6), (3, 2), (5, 7), (8, 3)])
def test_places_get_the_newest_token_and_the_guesses_behind_it(rows, places):
    for _ in range(5):
        state = made(rows, places)
        table = torch.randint(1, 99, (rows * places, PAGES), dtype=torch.int32)
        got, slots = empty(state)
        spread(state, table, PAGE, got, slots)
        expected, expected_slots = spread_reference(state, table, PAGE)
        assert torch.equal(got.kv_len, expected.kv_len)
        on = got.kv_len > 0
        for found, wanted in ((got.token_ids, expected.token_ids), (slots, expected_slots)):
            assert torch.equal(found[on], wanted[on])
        assert torch.equal(got.positions, expected.positions)
        assert torch.equal(got.rows, expected.rows)
        assert (slots[~on] < PAGE).all()
        assert (slots[on] >= PAGE).all()


@pytest.mark.parametrize(("rows", "places"), [(1, 6), (3, 2), (5, 7), (8, 3)])
def test_settling_takes_what_is_certain_and_not_a_token_more(rows, places):
    for _ in range(8):
        state = made(rows, places, stops=(3, -1))
        table = torch.randint(1, 99, (rows * places, PAGES), dtype=torch.int32)
        got, _ = spread_reference(state, table, PAGE)
        right = torch.cat((got.token_ids[1:], got.token_ids[:1]))
        ids = torch.where(torch.rand(right.shape) < 0.8, right, torch.randint(0, 9, right.shape))
        best = torch.where(torch.rand(right.shape) < 0.1, float("nan"), torch.randn(right.shape))
        expected = copied(state)
        settle_reference(expected, got, ids, best)
        settle(state, got, ids, best)
        for field in fields(state):
            assert torch.equal(getattr(state, field.name), getattr(expected, field.name)), field.name


def test_a_row_reads_on_behind_a_wrong_guess_and_stops_at_its_cap():
    text = [10, 11, 12, 13, 14, 15, 16, 17, 18, 19]  # what the model says; guesses are wrong at position 3
    guesses = [11, 12, 99, 14, 15, 16, 17, 18, 19]
    state = CheckRows(
        last=torch.tensor([10, 0]),
        rows=torch.tensor([0]),
        positions=torch.tensor([0]),
        caps=torch.tensor([8]),
        windows=torch.tensor([3]),
        firsts=torch.tensor([1]),
        counts=torch.tensor([len(guesses)]),
        guesses=torch.tensor([guesses]),
        stops=torch.tensor([[-1, -1]]),
        ring=torch.full((8, 1, 4), -7),
        turn=torch.tensor([0]),
    )
    table = torch.arange(1, 1 + PAGES, dtype=torch.int32).expand(4, PAGES).contiguous()
    said = []
    for turn in range(4):
        places, slots = empty(state)
        spread(state, table, PAGE, places, slots)
        ids = torch.tensor([text[position + 1] if position < 9 else 0 for position in places.positions.tolist()])
        settle(state, places, ids, torch.zeros(4))
        said.append([token for token in state.ring[turn, 0].tolist() if token != CLOSED])
    assert said == [[11, 12, 13], [14, 15, 16, 17], [18], []]
    assert state.positions.item() == 8
    assert state.last[0] == 18


def test_scores_that_are_not_numbers_close_the_row_after_the_tokens_before_them():
    state = replace(made(1, 4), positions=torch.tensor([0]), caps=torch.tensor([9]), windows=torch.tensor([3]))
    state = replace(state, firsts=torch.tensor([1]), counts=torch.tensor([3]), guesses=torch.tensor([[5, 6, 7]]))
    places, _ = spread_reference(state, torch.ones(4, PAGES, dtype=torch.int32), PAGE)
    settle(state, places, torch.tensor([5, 6, 7, 8]), torch.tensor([0.0, 0.0, float("inf"), 0.0]))
    assert state.ring[1, 0].tolist() == [5, 6, NOT_FINITE, CLOSED]
    assert (state.positions.item(), state.caps.item()) == (2, 0)
    assert state.last[state.rows[0]] == 6
