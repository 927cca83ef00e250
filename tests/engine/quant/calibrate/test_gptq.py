"""GPTQ against its definition: each column rounded, its error made up for by those that follow."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from octavo.engine.quant.calibrate.errors import QuantizeError
from octavo.engine.quant.calibrate.gptq import DAMPING, gptq
from octavo.engine.quant.calibrate.grid import Grid, Rounded

Problem = tuple[Tensor, Tensor]
GRIDS = [Grid(4, 32, False, torch.float32), Grid(4, 64, True, torch.float32), Grid(8, 0, True, torch.float32)]


def error(weight: Tensor, rounded: Rounded, x: Tensor) -> float:
    return float((x @ (rounded.decode() - weight).T).norm() / (x @ weight.T).norm())


def by_definition(weight: Tensor, gram: Tensor, grid: Grid) -> Tensor:
    """Optimal brain quantization, column by column as they stand, with the inverse reduced after each one (equations 2
    and 3 of the GPTQ paper), in float64: what is decoded."""
    todo, h = weight.double().clone(), gram.double().clone()
    h.diagonal().add_(DAMPING * h.diagonal().mean())
    inverse = torch.linalg.inv(h)
    size = grid.size(weight.shape[1])
    out = torch.empty_like(todo)
    for column in range(weight.shape[1]):
        if column % size == 0:
            loudness = gram.diagonal()[column : column + size]
            scale, zero = grid.fit_weighted(todo[:, column : column + size].float(), loudness)
        code = grid.encode(todo[:, column].float(), scale, zero)
        out[:, column] = ((code - zero) * scale).double()
        lost = (todo[:, column] - out[:, column]) / inverse[column, column]
        todo[:, column + 1 :] -= torch.outer(lost, inverse[column, column + 1 :])
        inverse -= torch.outer(inverse[:, column], inverse[column]) / inverse[column, column]
    return out


@pytest.mark.parametrize("grid", GRIDS)
def test_the_codes_are_those_of_the_definition(problem: Problem, grid: Grid) -> None:
    weight, x = problem
    weight = weight[:24]
    gram = x.T @ x
    found, wanted = gptq(weight, gram, grid, act_order=False).decode(), by_definition(weight, gram, grid)
    # a number halfway between two codes may fall to either side and take its row along
    assert float(((found - wanted).abs() < 1e-6).double().mean()) > 0.97
    # columns in another order, or the errors of a column left alone, give other codes
    assert float(((grid.nearest(weight).decode() - wanted).abs() < 1e-6).double().mean()) < 0.9


@pytest.mark.parametrize("grid", GRIDS)
@pytest.mark.parametrize("act_order", [False, True])
def test_results_are_nearer_than_those_of_plain_rounding(problem: Problem, grid: Grid, act_order: bool) -> None:
    weight, x = problem
    plain = error(weight, grid.nearest(weight), x)
    found = gptq(weight, x.T @ x, grid, act_order=act_order)
    assert error(weight, found, x) < 0.7 * plain
    # a wrong H, of inputs whose channels are in another order, does not help
    other = x.flip(1)
    wrong = gptq(weight, other.T @ other, grid, act_order=act_order)
    assert error(weight, wrong, x) > plain


def test_loud_columns_first_helps_where_some_are_loud(problem: Problem) -> None:
    weight, x = problem
    grid, gram = Grid(4, 64, True, torch.float32), x.T @ x
    first, in_place = (error(weight, gptq(weight, gram, grid, act_order=order), x) for order in (True, False))
    assert first < 0.97 * in_place


def test_inputs_that_are_always_zero_lose_nothing_and_break_nothing(problem: Problem) -> None:
    weight, x = problem
    x = x.clone()
    x[:, 40:50] = 0.0
    grid = Grid(4, 32, False, torch.float32)
    found = gptq(weight, x.T @ x, grid)
    assert error(weight, found, x) < error(weight, grid.nearest(weight), x)


def test_what_cannot_be_inverted_is_said(problem: Problem) -> None:
    weight, _ = problem
    with pytest.raises(QuantizeError, match="cannot be inverted"):
        gptq(weight, torch.full((256, 256), float("nan")), Grid(4, 32, False, torch.float32))
