"""GPTQ (Frantar et al. 2023, "GPTQ: Accurate Post-Training Quantization for Generative Pre-trained Transformers").

Columns are rounded one after the other, and each one's error is made up for by those still to come, as the inverse of
H = X^T X says (the paper's algorithm 1: Cholesky form, lazy updates by blocks).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from octavo.engine.quant.calibrate.errors import QuantizeError
from octavo.engine.quant.calibrate.grid import Grid, Rounded

Order = Literal["none", "static", "group"]

BLOCK = 128  # columns whose errors reach the columns behind them in one product; a multiple of every group size
DAMPING = 0.01  # share of the mean of H's diagonal that is added to it (section 3.3, step 3)


@dataclass(frozen=True, slots=True)
class _Columns:
    """The order in which columns are rounded, and the inverse's upper Cholesky factor in that order."""

    order: Tensor
    factor: Tensor


def gptq(weight: Tensor, gram: Tensor, grid: Grid, order: Order = "static", damping: float = DAMPING) -> Rounded:
    """Rounds float32 [out, in] given X^T X [in, in] of its inputs.

    `order`: "none" as columns stand; "static" the loudest inputs first, groups and their scales as plain rounding has
    them; "group" the loudest first, neighbours in that order form the groups. Raises QuantizeError for an H that
    cannot be inverted.
    """
    columns = _prepare(gram, order, damping)
    todo = weight[:, columns.order].clone()
    todo[:, gram.diagonal()[columns.order] == 0] = 0.0
    rows, in_dim = weight.shape
    size = grid.size(in_dim)
    scale = torch.empty((rows, in_dim // size), device=weight.device)
    zero = torch.empty_like(scale)
    group_of = torch.arange(in_dim, device=weight.device) // size
    ahead = order == "static" or size == in_dim  # scales are known before the first column is rounded
    if order == "static":
        group_of = group_of[columns.order]
    if ahead:
        scale, zero = grid.fit(weight.unflatten(1, (-1, size)))
    codes = torch.empty_like(todo)
    at = group_of.tolist()
    for begin in range(0, in_dim, BLOCK):
        end = min(begin + BLOCK, in_dim)
        block, factor = todo[:, begin:end], columns.factor[begin:end, begin:end]
        errors = torch.empty_like(block)
        for i in range(end - begin):
            column, group = block[:, i], at[begin + i]
            if not ahead and (begin + i) % size == 0:
                scale[:, group], zero[:, group] = grid.fit(block[:, i : i + size])
            code = grid.encode(column, scale[:, group], zero[:, group])
            codes[:, begin + i] = code
            errors[:, i] = (column - (code - zero[:, group]) * scale[:, group]) / factor[i, i]
            block[:, i + 1 :].addr_(errors[:, i], factor[i, i + 1 :], alpha=-1.0)
        todo[:, end:].addmm_(errors, columns.factor[begin:end, end:], alpha=-1.0)
    back = torch.argsort(columns.order)
    in_place = codes[:, back].to(torch.uint8)
    apart = order == "group" and size < in_dim
    return Rounded(in_place, scale, zero, group_of[back].int() if apart else None)


def _prepare(gram: Tensor, order: Order, damping: float) -> _Columns:
    diagonal = gram.diagonal()
    columns = torch.arange(len(gram), device=gram.device)
    if order != "none":
        columns = torch.argsort(diagonal, descending=True, stable=True)
    h = gram[columns][:, columns]
    h.diagonal().masked_fill_(h.diagonal() == 0, 1.0)
    mean = float(h.diagonal().mean())
    for _ in range(4):
        h.diagonal().add_(damping * mean)
        lower, failed = torch.linalg.cholesky_ex(h)
        if not failed:
            upper, failed = torch.linalg.cholesky_ex(torch.cholesky_inverse(lower), upper=True)
            if not failed:
                return _Columns(columns, upper)
        damping *= 10
    raise QuantizeError(
        "The products of a layer's inputs with each other cannot be inverted.",
        remedy="Use more tokens of a more varied text, or --method awq.",
    )
