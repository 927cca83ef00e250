"""AWQ (Lin et al. 2024, "AWQ: Activation-aware Weight Quantization for On-Device LLM Compression and Acceleration").

Channels whose inputs are loud get larger weights before rounding, so that their share of the error shrinks; the factor
goes into what comes before (section 3.2: s = mean|x|^alpha, alpha by search). Then each group's range is cut where
that lowers the error of the results (appendix; alpha and cut are searched on the grids the authors' code uses).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from octavo.engine.quant.calibrate.grid import CHUNK, SHARES, Grid

ALPHAS = tuple(step / 20 for step in range(20))
_LEAST = 1e-4


def search_scales(
    weights: Sequence[Tensor],
    mean: Tensor,
    sample: Tensor,
    grid: Grid,
    tie: Callable[[Tensor], Tensor] = lambda scales: scales,
) -> tuple[Tensor, float]:
    """Factors [in] for the columns of weights [out, in] that read the same inputs, and the alpha they came from.

    `mean` [in] are the inputs' mean magnitudes, `sample` [n, in] some inputs; `tie` makes factors equal that must be.
    Each weight counts by the relative error of its results. Alpha 0 is plain rounding, so nothing gets worse.
    """
    norms = [(sample @ weight.T).square_().sum().clamp_(min=1e-30) for weight in weights]
    best, least, chosen = torch.ones_like(mean), float("inf"), 0.0
    for alpha in ALPHAS:
        scales = tie(mean.clamp(min=_LEAST).pow(alpha)).clamp_(min=_LEAST)
        scales /= (scales.amax() * scales.amin()).sqrt()
        error = 0.0
        for weight, norm in zip(weights, norms):
            difference = grid.snapped(weight * scales).div_(scales).sub_(weight)
            error += float((sample @ difference.T).square_().sum() / norm)
        if error < least:
            best, least, chosen = scales, error, alpha
    return best, chosen


def search_shares(weight: Tensor, sample: Tensor, grid: Grid) -> Tensor:
    """How much of its range each group of a weight [out, in] should keep, [out, groups]: what gives the group's part of
    the results for `sample` [n, in] the smallest squared error."""
    rows, in_dim = weight.shape
    size = grid.size(in_dim)
    inputs = sample.unflatten(1, (-1, size)).transpose(0, 1)  # [groups, n, size]
    gram = inputs.transpose(1, 2) @ inputs
    best = torch.ones((rows, in_dim // size), device=weight.device)
    step = max(1, CHUNK // in_dim)
    for begin in range(0, rows, step):
        part = weight[begin : begin + step]
        least = torch.full((len(part), in_dim // size), float("inf"), device=weight.device)
        for share in SHARES:
            difference = (grid.snapped(part, share) - part).unflatten(1, (-1, size)).transpose(0, 1)
            error = ((difference @ gram) * difference).sum(-1).T
            better = error < least
            least = torch.where(better, error, least)
            best[begin : begin + step][better] = share
    return best
