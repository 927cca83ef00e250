"""Mixture of experts: which experts run for a token, tokens sorted so that each expert reads one run of rows."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from octavo.engine.model.spec import ExpertSpec


@dataclass(frozen=True, slots=True)
class Routing:
    """T tokens, K experts a token, N = T * K rows sorted by expert. Nothing here waits for the device."""

    order: Tensor  # int64 [N], the sorted place of each (token, choice)
    ends: Tensor  # int32 [experts], one past each expert's last row
    weights: Tensor  # float32 [T, K]

    def gather(self, x: Tensor) -> Tensor:
        """x [T, H] repeated for each choice and sorted by expert: [N, H]."""
        return x.index_select(0, self.order // self.weights.shape[1])

    def combine(self, y: Tensor) -> Tensor:
        """The experts' rows [N, H], weighted and summed for each token in float32: [T, H]. The order of summation is
        that of the choices, whatever else is in the batch."""
        unsorted = torch.empty_like(y).index_copy_(0, self.order, y)
        by_token = unsorted.unflatten(0, self.weights.shape).float()
        return torch.bmm(self.weights[:, None], by_token)[:, 0].to(y.dtype)


def route(x: Tensor, router: Tensor, spec: ExpertSpec) -> Routing:
    """The `per_token` likeliest experts for each token of x [T, H]: softmax over all, then the top ones."""
    scores = F.linear(x, router).float().softmax(-1)
    weights, chosen = scores.topk(spec.per_token, dim=-1)
    if spec.normalize:
        weights = weights / weights.sum(-1, keepdim=True)
    by_expert, order = chosen.flatten().sort(stable=True)
    experts = torch.arange(spec.count, device=x.device)
    return Routing(order, torch.searchsorted(by_expert, experts, right=True).to(torch.int32), weights)
