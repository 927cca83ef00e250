"""The operations between matrix products as fused Triton kernels: `fusion: true` on CUDA."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from octavo.engine.attention.base import AttentionStep, AttnSpec
from octavo.engine.attention.triton_backend import Rope, TritonBackend
from octavo.engine.model import rounded_rows, tens_of_rows
from octavo.engine.model.few_rows import FewRows
from octavo.engine.model.ops import Ops
from octavo.engine.model.parameters import Weights
from octavo.engine.quant.base import WeightRef
from octavo.engine.quant.plain import PlainFormat
from octavo.kernels import activation, linear_parts, rms_norm, rope


class TritonOps(Ops):
    """Norm with the residual addition, rotary with the KV write, gated activation: one launch each; with few rows, each
    product with what stands around it. What `linear_add` leaves to be added may be parts, float32 [P, T, H]."""

    name = "triton"

    def __init__(self) -> None:
        self._few = FewRows()

    def bind(self, weights: Weights, attn_specs: Sequence[AttnSpec], rope_tables: Sequence[Tensor]) -> None:
        self._few.bind(weights)

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
            return rope.rope_write(
                q, k, v, cos_sin, positions, kv.k, kv.v, slots, q_weight, k_weight, eps, scales=kv.scales
            )  # fmt: skip
        # Another backend may keep its cache otherwise: rotate k into pages of one token, then hand it over.
        rotated = torch.empty((k.shape[0], k.shape[1], 1, k.shape[2]), dtype=k.dtype, device=k.device)
        copied = torch.empty((v.shape[0], v.shape[1], 1, v.shape[2]), dtype=v.dtype, device=v.device)
        slots = torch.arange(k.shape[0], device=k.device)
        out = rope.rope_write(q, k, v, cos_sin, positions, rotated, copied, slots, q_weight, k_weight, eps)
        step.write(layer, rotated.squeeze(2), copied.squeeze(2))
        return out

    def rope_attend(
        self,
        qkv: Tensor,
        q_weight: Tensor | None,
        k_weight: Tensor | None,
        eps: float,
        cos_sin: Tensor,
        positions: Tensor,
        step: AttentionStep,
        layer: int,
        spec: AttnSpec,
    ) -> Tensor:
        backend = step.backend
        # the backend's kernels rotate by the layout's positions, and decode rows there see no other row's new keys
        fused = isinstance(backend, TritonBackend) and positions.data_ptr() == step.layout.q_pos.data_ptr()
        if not isinstance(backend, TritonBackend) or not fused or step.layout.shared_writes:
            return super().rope_attend(qkv, q_weight, k_weight, eps, cos_sin, positions, step, layer, spec)
        return backend.rope_attend(step.plan, spec, step.layers[layer], qkv, Rope(cos_sin, q_weight, k_weight, eps))

    def gated(self, gate_up: Tensor, act: str) -> Tensor:
        return activation.gated(gate_up, act)

    def norm(self, delta: Tensor | None, hidden: Tensor, weight: Tensor | None, eps: float) -> tuple[Tensor, Tensor]:
        if delta is None or delta.ndim == hidden.ndim:
            return super().norm(delta, hidden, weight, eps)
        if weight is not None:
            return linear_parts.add_parts_norm(delta, hidden, weight, eps)
        hidden = (hidden.float() + delta.sum(0)).to(hidden.dtype)
        return hidden, hidden

    def norm_linear(
        self, delta: Tensor | None, hidden: Tensor, weight: Tensor | None, eps: float, ref: WeightRef
    ) -> tuple[Tensor, Tensor]:
        if delta is None and self._few.takes(hidden, ref):
            return self._few.norm_linear(hidden, weight, eps, ref, None), hidden
        product = rounded_rows.product_of(delta, hidden, weight, ref)
        if product is not None and weight is not None:
            return rounded_rows.norm_linear(product, delta, hidden, weight, eps, ref)
        x, hidden = self.norm(delta, hidden, weight, eps)
        return tens_of_rows.linear(x, ref) if tens_of_rows.takes(x, ref) else ref(x), hidden

    def norm_gated(
        self, delta: Tensor | None, hidden: Tensor, weight: Tensor | None, eps: float, ref: WeightRef, act: str
    ) -> tuple[Tensor, Tensor]:
        if delta is None and self._few.takes(hidden, ref):
            return self._few.norm_linear(hidden, weight, eps, ref, act), hidden
        product = rounded_rows.product_of(delta, hidden, weight, ref)
        if product is not None and weight is not None:
            return rounded_rows.norm_gated(product, delta, hidden, weight, eps, ref, act)
        x, hidden = self.norm(delta, hidden, weight, eps)
        if act in tens_of_rows.FUSED_ACTIVATIONS and tens_of_rows.takes(x, ref):
            return tens_of_rows.gated(x, ref), hidden
        return self.gated(ref(x), act), hidden

    def linear_add(self, x: Tensor, ref: WeightRef, hidden: Tensor) -> tuple[Tensor | None, Tensor]:
        if self._few.takes(x, ref):
            self._few.linear_add(x, ref, hidden)
            return None, hidden
        parts = tens_of_rows.parts(x, ref) if tens_of_rows.takes(x, ref) and hidden.is_contiguous() else None
        return (ref(x) if parts is None else parts), hidden

    def head(self, ref: WeightRef, hidden: Tensor) -> Tensor:
        if self._few.takes(hidden, ref):
            return self._few.scores(ref, hidden)
        if tens_of_rows.takes(hidden, ref):
            return tens_of_rows.linear(hidden, ref, torch.float32)
        if isinstance(ref.format, PlainFormat) and hidden.is_cuda and hidden.itemsize == 2:
            packed = ref.acquire()
            scores = torch.mm(hidden, packed.weight.t(), out_dtype=torch.float32)  # not rounded to 16 bit on the way
            if packed.bias is not None:
                scores.add_(packed.bias)
            ref.release()
            return scores
        return super().head(ref, hidden)

    def greedy(self, ref: WeightRef, hidden: Tensor) -> tuple[Tensor, Tensor] | None:
        return self._few.greedy(ref, hidden) if self._few.takes(hidden, ref) else None
