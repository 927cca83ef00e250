"""The operations between matrix products as fused Triton kernels: `fusion: true` on CUDA."""

from __future__ import annotations

import torch
from torch import Tensor

from octavo.engine.attention.base import AttentionStep
from octavo.engine.attention.triton_backend import TritonBackend
from octavo.engine.model.ops import Ops
from octavo.kernels import activation, rms_norm, rope


class TritonOps(Ops):
    """Norm with the residual addition, rotary with the KV write, gated activation: one launch each."""

    name = "triton"

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        return rms_norm.rms_norm(x, weight, eps)

    def add_rms_norm(self, x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        return rms_norm.add_rms_norm(x, residual, weight, eps)

    def rope_write(
        self, q: Tensor, k: Tensor, v: Tensor, cos_sin: Tensor, positions: Tensor, step: AttentionStep, layer: int
    ) -> Tensor:
        return self.norm_rope_write(q, k, v, None, None, 0.0, cos_sin, positions, step, layer)

    def norm_rope_write(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        q_weight: Tensor | None,
        k_weight: Tensor | None,
        eps: float,
        cos_sin: Tensor,
        positions: Tensor,
        step: AttentionStep,
        layer: int,
    ) -> Tensor:
        """`rope_write` after RMS norms of every head of q and k by weights [D], in the same launch."""
        if isinstance(step.backend, TritonBackend):
            kv = step.layers[layer]
            slots = step.layout.write_slots[kv.group]
            return rope.rope_write(q, k, v, cos_sin, positions, kv.k, kv.v, slots, q_weight, k_weight, eps)
        # Another backend may keep its cache otherwise: rotate k into pages of one token, then hand it over.
        rotated = torch.empty((k.shape[0], k.shape[1], 1, k.shape[2]), dtype=k.dtype, device=k.device)
        copied = torch.empty((v.shape[0], v.shape[1], 1, v.shape[2]), dtype=v.dtype, device=v.device)
        slots = torch.arange(k.shape[0], device=k.device)
        out = rope.rope_write(q, k, v, cos_sin, positions, rotated, copied, slots, q_weight, k_weight, eps)
        step.write(layer, rotated.squeeze(2), copied.squeeze(2))
        return out

    def gated(self, gate_up: Tensor, act: str) -> Tensor:
        return activation.gated(gate_up, act)
