"""The operations between matrix products on the CPU: few calls, since each costs 1 to 2 us, and float32 inside.

Measured with AVX-512, one thread, hidden size 576, for 1 and 512 tokens: torch's rms_norm 15 and 950 us, this one 10
and 200; rotary in halves 15 and 1800 us, as one complex product 8 and 270. torch is slow at mixed 16-bit types.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence

import torch
from torch import Tensor

from octavo.engine.attention.base import AttentionStep, AttnSpec
from octavo.engine.model.compiled import CompiledDecode, why_not_compiled
from octavo.engine.model.ops import Ops, activation
from octavo.engine.model.parameters import Weights
from octavo.engine.model.spec import ModelSpec
from octavo.engine.quant.base import WeightRef

log = logging.getLogger(__name__)


class CpuOps(Ops):
    """Fusion on the CPU. Same values as TextbookOps up to the rounding of 16-bit intermediates.

    `rope_table` gives complex rows [T, 1, rot_dim / 2], which `rope_write` multiplies with pairs of adjacent channels.
    """

    name = "cpu"
    float32_norms = True
    interleaved_rope = True

    def __init__(self) -> None:
        self._constants: dict[tuple[int, float], tuple[Tensor, Tensor]] = {}
        self.compiled: CompiledDecode | None = None

    def reads_rows(self, spec: ModelSpec, dtype: torch.dtype) -> bool:
        reason = why_not_compiled(spec, dtype)
        log.info("decode steps: %s", "compiled kernels" if reason is None else f"one by one ({reason})")
        return reason is None

    def bind(self, weights: Weights, attn_specs: Sequence[AttnSpec], rope_tables: Sequence[Tensor]) -> None:
        if why_not_compiled(weights.spec, weights.dtype) is None and CompiledDecode.serves(weights):
            self.compiled = CompiledDecode(weights.spec, weights, attn_specs, rope_tables)

    def forward(self, hidden: Tensor, positions: Tensor, step: AttentionStep) -> Tensor | None:
        return None if self.compiled is None else self.compiled.forward(hidden, positions, step)

    def head(self, ref: WeightRef, hidden: Tensor) -> Tensor:
        scores = None if self.compiled is None else self.compiled.head(hidden)
        return super().head(ref, hidden) if scores is None else scores

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        root, floor = self._norm_constants(x.shape[-1], eps)
        wide = x.float()
        # sqrt(sum(x^2) + H eps), so that sqrt(H) over it is the usual factor
        length = torch.linalg.vector_norm(wide, dim=-1, keepdim=True).hypot_(floor)
        factor = root / length
        normed = wide * factor if wide is x else wide.mul_(factor)
        return normed.mul_(weight).to(x.dtype)

    def add_rms_norm(self, x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        total = residual.add_(x)
        return self.rms_norm(total, weight, eps), total

    def rope_table(self, cos_sin: Tensor, positions: Tensor) -> Tensor:
        cos, sin = cos_sin.index_select(0, positions).chunk(2, dim=-1)
        return torch.complex(cos, sin).unsqueeze(1)

    def rope_write(
        self, q: Tensor, k: Tensor, v: Tensor, cos_sin: Tensor, positions: Tensor, step: AttentionStep, layer: int
    ) -> Tensor:
        step.write(layer, _turn(k, cos_sin), v)
        return _turn(q, cos_sin)

    def qkv_rope_write(
        self,
        qkv: Tensor,
        q_heads: int,
        q_weight: Tensor | None,
        k_weight: Tensor | None,
        eps: float,
        cos_sin: Tensor,
        positions: Tensor,
        step: AttentionStep,
        layer: int,
    ) -> Tensor:
        if q_weight is not None or k_weight is not None:
            return super().qkv_rope_write(qkv, q_heads, q_weight, k_weight, eps, cos_sin, positions, step, layer)
        q_and_k = (qkv.shape[1] + q_heads) // 2
        turned = _turn(qkv[:, :q_and_k], cos_sin)
        step.write(layer, turned[:, q_heads:], qkv[:, q_and_k:])
        return turned[:, :q_heads]

    def gated(self, gate_up: Tensor, act: str) -> Tensor:
        gate, up = gate_up.chunk(2, dim=-1)
        return activation(act, gate).mul_(up)

    def _norm_constants(self, size: int, eps: float) -> tuple[Tensor, Tensor]:
        if (size, eps) not in self._constants:
            self._constants[size, eps] = torch.tensor(math.sqrt(size)), torch.tensor(math.sqrt(size * eps))
        return self._constants[size, eps]


def _turn(x: Tensor, turns: Tensor) -> Tensor:
    """x [T, heads, D] whose first rot_dim channels are pairs, times unit complex numbers [T, 1, rot_dim / 2]; a
    float32 x is changed in place."""
    wide = x.float()
    half = turns.shape[-1]
    pairs = wide if 2 * half == wide.shape[-1] else wide[..., : 2 * half]
    torch.view_as_complex(pairs.view(*pairs.shape[:-1], half, 2)).mul_(turns)
    return wide.to(x.dtype)
