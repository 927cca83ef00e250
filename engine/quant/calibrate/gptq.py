"""GPTQ (Frantar et al. 2023, "GPTQ: Accurate Post-Training Quantization for Generative Pre-trained Transformers").

Columns are rounded one after the other, and each one's error is made up for by those still to come, as the inverse of
H = X^T X says (the paper's algorithm 1: Cholesky form, lazy updates by blocks). Ranges are those with the smallest
squared error where each column counts as much as H's diagonal says.
"""

from __future__ import annotations

import torch
from torch import Tensor

from octavo.engine.quant.calibrate.errors import QuantizeError
from octavo.engine.quant.calibrate.grid import Grid, Rounded

BLOCK = 128  # columns whose errors reach the columns behind them in one product; a multiple of every group size
DAMPING = 0.01  # share of the mean of H's diagonal that is added to it (section 3.3, step 3)


def gptq(weight: Tensor, gram: Tensor, grid: Grid, *, act_order: bool = True, damping: float = DAMPING) -> Rounded:
    """Rounds float32 [out, in] given X^T X [in, in] of its inputs.

    With `act_order` the columns with the loudest inputs come first, in groups and with scales as plain rounding has
    them, so that readers need not know; else columns come as they stand, and a group's scales from what its columns
    have become. Raises QuantizeError for an H that cannot be inverted.
    """
    order = torch.arange(len(gram), device=gram.device)
    if act_order:
        order = torch.argsort(gram.diagonal(), descending=True, stable=True)
    factor = _factor(gram[order][:, order], damping)
    todo = weight[:, order].clone()
    todo[:, gram.diagonal()[order] == 0] = 0.0
    in_dim = weight.shape[1]
    size = grid.size(in_dim)
    loudness = gram.diagonal().unflatten(0, (-1, size))
    scale, zero = grid.fit_weighted(weight.unflatten(1, (-1, size)), loudness)
    codes = torch.empty_like(todo)
    group_of = (order // size).tolist()
    for begin in range(0, in_dim, BLOCK):
        end = min(begin + BLOCK, in_dim)
        block, corner = todo[:, begin:end], factor[begin:end, begin:end]
        errors = torch.empty_like(block)
        for i in range(end - begin):
            column, group = block[:, i], group_of[begin + i]
            if not act_order and size < in_dim and (begin + i) % size == 0:
                scale[:, group], zero[:, group] = grid.fit_weighted(block[:, i : i + size], loudness[group])
            code = grid.encode(column, scale[:, group], zero[:, group])
            codes[:, begin + i] = code
            errors[:, i] = (column - (code - zero[:, group]) * scale[:, group]) / corner[i, i]
            block[:, i + 1 :].addr_(errors[:, i], corner[i, i + 1 :], alpha=-1.0)
        todo[:, end:].addmm_(errors, factor[begin:end, end:], alpha=-1.0)
    return Rounded(codes[:, torch.argsort(order)].to(torch.uint8), scale, zero)


def _factor(h: Tensor, damping: float) -> Tensor:
    """The upper Cholesky factor of the inverse of H, which is damped as much as it takes; overwrites H."""
    diagonal = h.diagonal()
    diagonal.masked_fill_(diagonal == 0, 1.0)
    mean = float(diagonal.mean())
    for _ in range(4):
        diagonal.add_(damping * mean)
        lower, failed = torch.linalg.cholesky_ex(h)
        if not failed:
            upper, failed = torch.linalg.cholesky_ex(torch.cholesky_inverse(lower), upper=True)
            if not failed:
                return upper
        damping *= 10
    raise QuantizeError(
        "The products of a layer's inputs with each other cannot be inverted.",
        remedy="Use more tokens of a more varied text, or --method awq.",
    )
