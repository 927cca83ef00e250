"""The small operations between matrix products, behind one interface, so that `fusion` is a choice of implementation.

TextbookOps is fusion off: every operation by itself in plain torch. Fused implementations compute the same values.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

from octavo.engine.attention.base import AttentionStep, AttnSpec
from octavo.engine.quant.base import WeightRef

if TYPE_CHECKING:
    from octavo.engine.model.parameters import Weights
    from octavo.engine.model.spec import ModelSpec


class Ops(ABC):
    """Norms, rotary, gated activation. T tokens, H hidden size, D head size, I intermediate size."""

    name: str
    float32_norms: bool = False  # wants all norm weights in float32
    interleaved_rope: bool = False  # wants a head's channel i + rot_dim/2 right after i, in q, k and their norms

    @abstractmethod
    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """x [..., H] * rsqrt(mean(x^2) + eps) * weight [H]; statistics in float32, result in x's dtype.

        A float32 weight with 16-bit x multiplies in float32 before the cast (Gemma); else after it (Llama).
        """

    @abstractmethod
    def add_rms_norm(self, x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        """(rms_norm(x + residual), x + residual); may overwrite both inputs."""

    @abstractmethod
    def rope_write(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        cos_sin: Tensor,
        positions: Tensor,
        step: AttentionStep,
        layer: int,
    ) -> Tensor:
        """Rotates q [T, Hq, D] and k [T, Hkv, D] (views of a merged projection are fine), writes k and v into the pages
        and returns the rotated q. `cos_sin` is float32 [max_positions, rot_dim]: rot_dim/2 cosines, then rot_dim/2
        sines (scaling factor included); the first rot_dim channels of a head are rotated, half-split as in Hugging
        Face's Llama (channel i pairs with i + rot_dim/2)."""

    def reads_rows(self, spec: ModelSpec, dtype: torch.dtype) -> bool:
        """Whether weights of such a model are best left in rows, since `forward` reads them so."""
        return False

    def bind(self, weights: Weights, attn_specs: Sequence[AttnSpec], rope_tables: Sequence[Tensor]) -> None:  # noqa: B027
        """Called once, when a model's weights are in place; what `forward` and `head` may rely on."""

    def forward(self, hidden: Tensor, positions: Tensor, step: AttentionStep) -> Tensor | None:
        """All layers and the last norm for embeddings [T, H] in one call: [T, H]; None: piece by piece, please."""
        return None

    def head(self, ref: WeightRef, hidden: Tensor) -> Tensor:
        """Scores in float32 [T, vocabulary]."""
        return ref(hidden).float()

    def greedy(self, ref: WeightRef, hidden: Tensor) -> tuple[Tensor, Tensor] | None:
        """Each row's highest score, float32 [T], and its lowest id, int64 [T], without the scores being written, NaN
        where a row holds one; None where there is no kernel for it: choose among the scores of `head`."""
        return None

    def rope_table(self, cos_sin: Tensor, positions: Tensor) -> Tensor:
        """Called once a step and table, before any layer: what `rope_write` gets as `cos_sin`. Here the table itself;
        an implementation may gather the step's rows once for all layers."""
        return cos_sin

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
        """`rope_write` after RMS norms of every head of q and k by weights [D], if given."""
        if q_weight is not None:
            q = self.rms_norm(q, q_weight, eps)
        if k_weight is not None:
            k = self.rms_norm(k, k_weight, eps)
        return self.rope_write(q, k, v, cos_sin, positions, step, layer)

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
        """`norm_rope_write` of a merged projection [T, Hq + 2 Hkv, D]."""
        q, k, v = split_heads(qkv, q_heads)
        return self.norm_rope_write(q, k, v, q_weight, k_weight, eps, cos_sin, positions, step, layer)

    @abstractmethod
    def gated(self, gate_up: Tensor, act: str) -> Tensor:
        """act(gate) * up for gate_up [T, 2I] = gate | up; `act` is silu, gelu or gelu_pytorch_tanh. Returns [T, I]."""

    # -- pieces of a layer that span a matrix product; an implementation may do each in one launch --------------------

    def norm(self, delta: Tensor | None, hidden: Tensor, weight: Tensor | None, eps: float) -> tuple[Tensor, Tensor]:
        """(normed sum, sum) of the residual stream [T, H] and what was last added to it (None: nothing); without a
        weight the sum twice. May overwrite both inputs."""
        if weight is None:
            hidden = hidden if delta is None else hidden + delta
            return hidden, hidden
        if delta is None:
            return self.rms_norm(hidden, weight, eps), hidden
        return self.add_rms_norm(delta, hidden, weight, eps)

    def norm_linear(
        self, delta: Tensor | None, hidden: Tensor, weight: Tensor | None, eps: float, ref: WeightRef
    ) -> tuple[Tensor, Tensor]:
        """(linear of the normed sum [T, out], sum [T, H]); see `norm`."""
        x, hidden = self.norm(delta, hidden, weight, eps)
        return ref(x), hidden

    def norm_gated(
        self, delta: Tensor | None, hidden: Tensor, weight: Tensor | None, eps: float, ref: WeightRef, act: str
    ) -> tuple[Tensor, Tensor]:
        """(gated activation of the merged gate and up projection of the normed sum [T, I], sum [T, H])."""
        x, hidden = self.norm(delta, hidden, weight, eps)
        return self.gated(ref(x), act), hidden

    def linear_add(self, x: Tensor, ref: WeightRef, hidden: Tensor) -> tuple[Tensor | None, Tensor]:
        """A linear whose result joins the residual stream: (delta, hidden), or (None, hidden + delta) if it was added
        in the same launch. May overwrite `hidden`."""
        return ref(x), hidden

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
        """`qkv_rope_write` of a merged projection [T, Hq + 2 Hkv, D], then attention: [T, Hq, D]."""
        q = self.qkv_rope_write(qkv, spec.q_heads, q_weight, k_weight, eps, cos_sin, positions, step, layer)
        return step.attend(layer, spec, q)


def activation(name: str, x: Tensor) -> Tensor:
    """The gate's activation by the name checkpoints use."""
    if name in ("silu", "swish"):
        return F.silu(x)
    if name in ("gelu_pytorch_tanh", "gelu_new", "gelu_fast"):
        return F.gelu(x, approximate="tanh")
    if name == "gelu":
        return F.gelu(x)
    if name == "relu":
        return F.relu(x)
    raise ValueError(f"unknown activation {name}")


class TextbookOps(Ops):
    """Plain torch, one operation after the other: the reference and `fusion: false`."""

    name = "textbook"

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        x32 = x.float()
        normed = x32 * torch.rsqrt(x32.pow(2).mean(-1, keepdim=True) + eps)
        if weight.dtype == torch.float32:
            return (normed * weight).to(x.dtype)
        return weight * normed.to(x.dtype)

    def add_rms_norm(self, x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        total = x + residual
        return self.rms_norm(total, weight, eps), total

    def rope_write(
        self, q: Tensor, k: Tensor, v: Tensor, cos_sin: Tensor, positions: Tensor, step: AttentionStep, layer: int
    ) -> Tensor:
        table = cos_sin[positions]
        cos, sin = (part.unsqueeze(1) for part in table.chunk(2, dim=-1))
        step.write(layer, rotate(k, cos, sin), v)
        return rotate(q, cos, sin)

    def gated(self, gate_up: Tensor, act: str) -> Tensor:
        gate, up = gate_up.chunk(2, dim=-1)
        return activation(act, gate) * up


def split_heads(qkv: Tensor, q_heads: int) -> tuple[Tensor, Tensor, Tensor]:
    """Views q [T, Hq, D], k and v [T, Hkv, D] of a merged projection [T, Hq + 2 Hkv, D]."""
    kv_heads = (qkv.shape[1] - q_heads) // 2
    q, k, v = qkv.split((q_heads, kv_heads, kv_heads), dim=1)
    return q, k, v


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Half-split rotation of the first 2 * cos.shape[-1] channels of x [T, heads, D]; computed in float32."""
    half = cos.shape[-1]
    a, b, rest = x[..., :half].float(), x[..., half : 2 * half].float(), x[..., 2 * half :]
    turned = torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1).to(x.dtype)
    return torch.cat((turned, rest), dim=-1) if rest.shape[-1] else turned
