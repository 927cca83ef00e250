"""The operations between matrix products on the CPU: as few calls as torch allows, since a call costs about 2 us."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from octavo.engine.attention.base import AttentionStep
from octavo.engine.model.ops import Ops, activation, rotate


class CpuOps(Ops):
    """Fusion on the CPU. Same values as TextbookOps up to the rounding of 16-bit intermediates."""

    name = "cpu"

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        if weight.dtype == x.dtype:
            return F.rms_norm(x, weight.shape, weight, eps)
        return F.rms_norm(x.float(), weight.shape, weight, eps).to(x.dtype)

    def add_rms_norm(self, x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        total = residual.add_(x)
        return self.rms_norm(total, weight, eps), total

    def rope_table(self, cos_sin: Tensor, positions: Tensor) -> Tensor:
        return cos_sin.index_select(0, positions)

    def rope_write(
        self, q: Tensor, k: Tensor, v: Tensor, cos_sin: Tensor, positions: Tensor, step: AttentionStep, layer: int
    ) -> Tensor:
        cos, sin = (part.unsqueeze(1) for part in cos_sin.chunk(2, dim=-1))
        step.write(layer, rotate(k, cos, sin), v)
        return rotate(q, cos, sin)

    def gated(self, gate_up: Tensor, act: str) -> Tensor:
        gate, up = gate_up.chunk(2, dim=-1)
        return activation(act, gate).mul_(up)
