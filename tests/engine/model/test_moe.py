"""Routing: each token's experts and weights by the formula, whatever else is in the batch."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch

from octavo.engine.model.moe import route
from octavo.engine.model.spec import ExpertSpec


def by_hand(x: torch.Tensor, router: torch.Tensor, spec: ExpertSpec, experts: torch.Tensor) -> torch.Tensor:
    rows = []
    for row in x:
        scores = (router @ row).softmax(0)
        chosen = sorted(range(spec.count), key=lambda e: -float(scores[e]))[: spec.per_token]
        total = sum(float(scores[e]) for e in chosen) if spec.normalize else 1.0
        rows.append(sum(float(scores[e]) / total * (experts[e] @ row) for e in chosen))
    return torch.stack(rows)


@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize("tokens", [1, 2, 33])
def test_tokens_go_through_their_likeliest_experts(tokens: int, normalize: bool) -> None:
    generator = torch.Generator().manual_seed(tokens)
    x, router, experts = (torch.randn(s, generator=generator) for s in ((tokens, 8), (5, 8), (5, 8, 8)))
    spec = ExpertSpec(count=5, per_token=2, intermediate_size=8, normalize=normalize)
    routing = route(x, router, spec)
    gathered = routing.gather(x)
    ends = [0, *routing.ends.tolist()]
    assert ends[-1] == tokens * 2 == gathered.shape[0]
    computed = torch.cat([gathered[a:b] @ experts[e].T for e, (a, b) in enumerate(pairwise(ends))])
    torch.testing.assert_close(routing.combine(computed), by_hand(x, router, spec, experts), atol=1e-5, rtol=1e-5)


def test_an_expert_nobody_chose_has_no_rows() -> None:
    router = torch.tensor([[1.0, 0.0], [0.5, 0.0], [-5.0, 0.0]])
    routing = route(torch.tensor([[2.0, 0.0], [3.0, 0.0]]), router, ExpertSpec(3, 1, 4, True))
    assert routing.ends.tolist() == [2, 2, 2]
    assert routing.ends.dtype == torch.int32
    assert torch.equal(routing.weights, torch.ones(2, 1))
