"""Factors for columns and cuts of ranges: that they are found by what they do to a linear's results."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from octavo.engine.quant.calibrate import grid as module
from octavo.engine.quant.calibrate.awq import ALPHAS, search_scales, search_shares
from octavo.engine.quant.calibrate.grid import SHARES, Grid
from octavo.engine.quant.calibrate.methods import round_activations
from octavo.engine.quant.calibrate.smooth import smooth_scales

Problem = tuple[Tensor, Tensor]
GRID = Grid(4, 64, False, torch.float32)


def error(weight: Tensor, x: Tensor, scales: Tensor, grid: Grid = GRID) -> float:
    """Relative error of a linear that was rounded with its columns multiplied and its inputs divided."""
    found = (x / scales) @ grid.nearest(weight * scales).decode().T
    return float((found - x @ weight.T).norm() / (x @ weight.T).norm())


@pytest.mark.parametrize("grid", [GRID, Grid(4, 32, True, torch.float16)])
def test_awqs_factors_lower_the_error_where_inputs_are_loud(problem: Problem, grid: Grid) -> None:
    weight, x = problem
    mean = x.abs().mean(0)
    scales, alpha = search_scales([weight], mean, x, grid)
    plain = error(weight, x, torch.ones(256), grid)
    assert alpha > 0.2
    assert error(weight, x, scales, grid) < 0.75 * plain
    assert error(weight, x, 1 / scales, grid) > plain


def test_awqs_alpha_is_the_best_of_the_grid(problem: Problem) -> None:
    weight, x = problem
    mean = x.abs().mean(0)
    found = []
    for alpha in ALPHAS:
        scales = mean**alpha
        found.append(error(weight, x, scales / (scales.max() * scales.min()).sqrt()))
    _, chosen = search_scales([weight], mean, x, GRID)
    assert chosen == ALPHAS[min(range(len(found)), key=found.__getitem__)]


def test_even_inputs_get_even_factors() -> None:
    generator = torch.Generator().manual_seed(0)
    weight, x = torch.randn(16, 64, generator=generator), torch.randn(32, 64, generator=generator)
    scales, _ = search_scales([weight], torch.ones(64), x, GRID)
    assert torch.equal(scales, torch.ones(64))


def test_ranges_are_cut_where_the_groups_own_results_gain(problem: Problem) -> None:
    weight, x = problem
    weight = weight.clone()
    weight[:, 3::64] *= 6  # a number in each group that widens its range
    x[:, 3::64] *= 0.01  # and hardly matters
    shares = search_shares(weight, x, GRID)
    assert shares.shape == (96, 4)
    assert set(shares.flatten().tolist()) <= set(torch.tensor(SHARES).tolist())
    best = torch.full((96, 4), float("inf"))
    for share in SHARES:
        difference = GRID.snapped(weight, share) - weight
        for group in range(4):
            at = slice(group * 64, group * 64 + 64)
            own = (x[:, at] @ difference[:, at].T).square().sum(0)
            best[:, group] = torch.minimum(best[:, group], own)
    difference = GRID.snapped(weight, shares) - weight
    for group in range(4):
        at = slice(group * 64, group * 64 + 64)
        own = (x[:, at] @ difference[:, at].T).square().sum(0)
        torch.testing.assert_close(own, best[:, group], rtol=1e-3, atol=1e-6)
    assert float((shares < 1).float().mean()) > 0.5


def test_smoothquants_factors_are_those_of_the_paper() -> None:
    weights = [torch.tensor([[1.0, -4.0], [0.5, 1.0]]), torch.tensor([[-9.0, 1.0]])]
    scales = smooth_scales(weights, torch.tensor([36.0, 1.0]), 0.5)
    assert scales.tolist() == pytest.approx([6 / 3, 1 / 2])
    scales = smooth_scales(weights, torch.tensor([16.0, 1.0]), 0.75)
    assert scales.tolist() == pytest.approx([8 / 9**0.25, 1 / 4**0.25])


def test_smooth_activations_survive_being_rounded_by_token(problem: Problem) -> None:
    weight, x = problem
    grid = Grid(8, 0, True, torch.float32)

    def lost(scales: Tensor) -> float:
        found = round_activations(x / scales) @ grid.nearest(weight * scales).decode().T
        return float((found - x @ weight.T).norm() / (x @ weight.T).norm())

    scales = smooth_scales([weight], x.abs().amax(0))
    assert float((x / scales).abs().amax(1).mean()) < float(x.abs().amax(1).mean())
    assert lost(scales) < 0.6 * lost(torch.ones(256))
    assert lost(1 / scales) > lost(torch.ones(256))


def test_a_grid_holds_its_ends_and_zero_and_uses_every_code() -> None:
    numbers = torch.tensor([[-0.5, 0.0, 1.0, 0.31], [2.0, 3.0, 4.0, 5.0]])
    rounded = Grid(4, 4, False, torch.float32).nearest(numbers)
    decoded = rounded.decode()
    assert decoded[0].tolist() == pytest.approx([-0.5, 0.0, 1.0, 0.3], abs=1e-6)
    assert rounded.zero[1].item() == 0  # zero itself is always there, also below numbers that are all positive
    assert decoded[1].tolist() == pytest.approx([2.0, 3.0, 4.0, 5.0], abs=0.17)
    assert Grid(4, 4, True, torch.float32).nearest(torch.zeros(1, 4)).decode().tolist() == [[0.0] * 4]
    half = Grid(4, 4, True, torch.float16).nearest(numbers)
    assert torch.equal(half.scale, half.scale.half().float())


def test_weighted_ranges_are_the_best_of_those_that_are_tried(
    problem: Problem, monkeypatch: pytest.MonkeyPatch
) -> None:
    weight, x = problem
    groups, importance = weight.unflatten(1, (-1, 64)), x.square().sum(0).unflatten(0, (-1, 64))

    def lost(scale: Tensor, zero: Tensor) -> Tensor:
        scale, zero = scale.unsqueeze(-1), zero.unsqueeze(-1)
        found = (GRID.encode(groups, scale, zero) - zero) * scale
        return ((found - groups).square() * importance).sum(-1)

    whole = GRID.fit_weighted(groups, importance)
    found = lost(*whole)
    monkeypatch.setattr(module, "CHUNK", 1000)  # so that rows are tried three at a time
    for one, other in zip(GRID.fit_weighted(groups, importance), whole):
        assert torch.equal(one, other)
    best = torch.stack([lost(*GRID.fit(groups, share)) for share in SHARES]).amin(0)
    torch.testing.assert_close(found, best)
    assert float(found.sum()) < 0.5 * float(lost(*GRID.fit(groups)).sum())
