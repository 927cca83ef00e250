"""Temperature, min-p, top-k, top-p and the draw itself, over logits that are already biased and penalised.

Both ways keep exactly the same tokens. Each filter is a lower bound on the weight `exp((logit - best) / temperature)`,
so equal logits stand or fall together and the best token always stays. Order: min-p, top-k, top-p, each over what the
one before left.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from octavo.engine.sample import noise

SLICE = 1 << 22  # scores drawn from at once: sorting and hashing them takes some 200 MiB beside


@dataclass(frozen=True, slots=True)
class Filters:
    """One row's settings; temperature > 0, top_k 0 is off."""

    temperature: float
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0


def draw_numpy(logits: NDArray[np.float32], best: float, filters: Filters, key: tuple[int, int]) -> int:
    """One token of one row of float32 logits [V], whose largest is `best` (finite).

    For the CPU: after one pass for the weights, everything is done for the few tokens that may stay.
    """
    weights = logits - np.float32(best)
    weights /= np.float32(filters.temperature)
    np.exp(weights, out=weights)
    total, floor = None, max(noise.NEGLIGIBLE, filters.min_p)
    if filters.top_p < 1 and filters.top_k == 0 and filters.min_p == 0:
        # What lies below (1 - p) / V of the total is less than 1 - p of it altogether, so it cannot stay.
        total = float(weights.sum())
        floor = max(floor, (1 - filters.top_p) * total / len(weights))
    ids = np.flatnonzero(weights >= np.float32(floor))
    weights = weights.take(ids)
    if 0 < filters.top_k < len(ids):
        at = len(ids) - filters.top_k
        ids, weights = _at_least(ids, weights, np.partition(weights, at)[at])
    if filters.top_p < 1:
        if total is None:
            total = float(weights.sum())
        ordered = np.sort(weights)[::-1]
        last = int(np.searchsorted(np.cumsum(ordered, dtype=np.float64), filters.top_p * total))
        ids, weights = _at_least(ids, weights, ordered[min(last, len(ordered) - 1)])
    if len(ids) == 1:
        return int(ids[0])
    return int(ids[int(np.argmax(weights / noise.variates_numpy(*key, ids.astype(np.uint32))))])


def draw_torch(
    logits: Tensor,
    best: Tensor,
    temperature: Tensor,
    top_k: Tensor,
    top_p: Tensor,
    min_p: Tensor,
    keys: Tensor,
    *,
    any_top_k: bool,
    any_top_p: bool,
) -> Tensor:
    """int64 [N] from float32 logits [N, V] and one setting a row, of fixed shapes and without a sync, on any device.

    `best` float32 [N] is each row's largest logit; keys int64 [N, 2]. `any_*`: some row uses the filter.
    """
    size = max(1, SLICE // logits.shape[-1])
    if len(logits) > size:
        parts = (part.split(size) for part in (logits, best, temperature, top_k, top_p, min_p, keys))
        return torch.cat([draw_torch(*rows, any_top_k=any_top_k, any_top_p=any_top_p) for rows in zip(*parts)])
    weights = ((logits - best[:, None]) / temperature[:, None]).exp_()
    weights = torch.where(weights >= min_p.clamp(min=noise.NEGLIGIBLE)[:, None], weights, 0)
    if any_top_k or any_top_p:
        ordered = weights.sort(dim=-1, descending=True).values
        if any_top_k:
            at = torch.where(top_k > 0, top_k, logits.shape[-1]).clamp(max=logits.shape[-1]) - 1
            bound = ordered.gather(1, at[:, None])
            weights = torch.where(weights >= bound, weights, 0)
            ordered = torch.where(ordered >= bound, ordered, 0)
        if any_top_p:
            sums = ordered.cumsum(-1, dtype=torch.float64)
            last = (sums < top_p[:, None] * sums[:, -1:]).sum(-1, keepdim=True).clamp_(max=logits.shape[-1] - 1)
            bound = torch.where(top_p[:, None] < 1, ordered.gather(1, last), 0)
            weights = torch.where(weights >= bound, weights, 0)
    ids = torch.arange(logits.shape[-1], device=logits.device)
    return (weights / noise.variates(keys, ids)).argmax(-1)


def _at_least(
    ids: NDArray[np.int64], weights: NDArray[np.float32], bound: float
) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    keep = np.flatnonzero(weights >= np.float32(bound))  # taking by index never mispredicts, a boolean index does
    return ids.take(keep), weights.take(keep)
