"""The one decoder all families of engine/model/families.py run through, driven by a ModelSpec.

The residual stream is kept apart from what the last block added to it, so that the addition and the next norm are one
operation wherever the ops have one.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from octavo.engine.attention.base import AttentionStep, AttnSpec, CacheGroup, Plane
from octavo.engine.model.base import CausalModel
from octavo.engine.model.moe import route
from octavo.engine.model.ops import Ops, activation
from octavo.engine.model.parameters import LayerWeights, Weights
from octavo.engine.model.spec import LayerSpec, ModelSpec
from octavo.engine.quant.base import WeightRef


class Decoder(CausalModel):
    """A causal transformer over a flat batch. T tokens of a step, H hidden size; weights are reached by handles."""

    def __init__(
        self,
        spec: ModelSpec,
        weights: Weights,
        ops: Ops,
        rope_tables: Sequence[Tensor],
        *,
        name: str,
        device: torch.device,
        dtype: torch.dtype,
        context_length: int,
    ) -> None:
        self.spec = spec
        self.weights = weights
        self.ops = ops
        self.name = name
        self.architecture = spec.architecture
        self.vocab_size = spec.vocab_size
        self.max_positions = spec.max_positions
        self.device = device
        self.dtype = dtype
        self.notices = spec.notices
        self.weight_bytes = weights.size_bytes
        self.capturable = not weights.waits_for_experts
        self.attn_specs = tuple(attn_spec(spec, layer, context_length) for layer in spec.layers)
        self.cache_groups = cache_groups(self.attn_specs)
        self._rope_tables = tuple(rope_tables)
        ops.bind(weights, self.attn_specs, self._rope_tables)
        # transformers multiplies by the scale rounded to the compute dtype (Gemma)
        self._embed_scale = torch.tensor(spec.embed_scale, dtype=dtype).item()

    def forward(
        self,
        token_ids: Tensor,
        positions: Tensor,
        step: AttentionStep,
        *,
        first_layer: int = 0,
        last_layer: int | None = None,
        hidden: Tensor | None = None,
    ) -> Tensor:
        ops, weights = self.ops, self.weights
        total = len(weights.layers)
        last = total if last_layer is None else last_layer
        if hidden is None:
            hidden = weights.embed.rows(token_ids)
            if self._embed_scale != 1.0:
                hidden.mul_(self._embed_scale)
            if first_layer == 0 and last == total:
                result = ops.forward(hidden, positions, step)
                if result is not None:
                    return result
        else:
            hidden = hidden.clone()  # the stream is added to in place
        tables = [ops.rope_table(table, positions) for table in self._rope_tables]
        delta: Tensor | None = None
        for index in range(first_layer, last):
            layer = weights.layers[index]
            attended, hidden = self._attend(index, delta, hidden, tables, positions, step)
            delta, hidden = self._add(attended, layer.o, layer.attn_post_norm, hidden)
            if layer.router is not None:
                x, hidden = ops.norm(delta, hidden, layer.mlp_norm, self.spec.norm_eps)
                delta = self._scaled(self._experts(layer, x), layer.mlp_post_norm)
            else:
                inner, hidden = self._gated(layer, delta, hidden)
                delta, hidden = self._add(inner, layer.down, layer.mlp_post_norm, hidden)
        if last < total:
            return ops.norm(delta, hidden, None, self.spec.norm_eps)[0]
        return ops.norm(delta, hidden, weights.norm, self.spec.norm_eps)[0]

    def final_norm(self, hidden: Tensor) -> Tensor:
        """The norm before the head, for hidden states [N, H] that an inner layer left."""
        return self.ops.norm(None, hidden, self.weights.norm, self.spec.norm_eps)[0]

    def logits(self, hidden: Tensor) -> Tensor:
        scores = self.ops.head(self.weights.head, hidden)
        if self.spec.logit_divisor != 1.0:
            scores.div_(self.spec.logit_divisor)
        if self.spec.final_softcap is not None:
            scores.div_(self.spec.final_softcap).tanh_().mul_(self.spec.final_softcap)
        return scores

    def greedy(self, hidden: Tensor) -> tuple[Tensor, Tensor] | None:
        found = self.ops.greedy(self.weights.head, hidden)
        if found is None or self.spec.logit_divisor <= 0.0:
            return None
        best, ids = found
        if self.spec.logit_divisor != 1.0:
            best.div_(self.spec.logit_divisor)
        if self.spec.final_softcap is not None:
            best.div_(self.spec.final_softcap).tanh_().mul_(self.spec.final_softcap)
        return best, ids

    def _attend(
        self,
        index: int,
        delta: Tensor | None,
        hidden: Tensor,
        tables: Sequence[Tensor],
        positions: Tensor,
        step: AttentionStep,
    ) -> tuple[Tensor, Tensor]:
        """(attended values [T, Hq D], residual stream [T, H])."""
        spec, ops, layer = self.spec, self.ops, self.weights.layers[index]
        rope, eps, attn = spec.layers[index].rope, spec.norm_eps, self.attn_specs[index]
        per_head = spec.qk_norm == "head"
        q_norm, k_norm = (layer.q_norm, layer.k_norm) if per_head else (None, None)
        if len(layer.qkv) == 1 and rope is not None and spec.qk_norm != "full":
            merged, hidden = ops.norm_linear(delta, hidden, layer.attn_norm, eps, layer.qkv[0])
            qkv = merged.view(merged.shape[0], -1, spec.head_size)
            out = ops.rope_attend(qkv, q_norm, k_norm, eps, tables[rope], positions, step, index, attn)
            return out.flatten(1), hidden
        x, hidden = ops.norm(delta, hidden, layer.attn_norm, eps)
        q, k, v = self._heads(layer, x)
        if rope is not None:
            q = ops.norm_rope_write(q, k, v, q_norm, k_norm, eps, tables[rope], positions, step, index)
        else:
            if q_norm is not None and k_norm is not None:
                q, k = ops.rms_norm(q, q_norm, eps), ops.rms_norm(k, k_norm, eps)
            step.write(index, k, v)
            q = q.contiguous()
        return step.attend(index, attn, q).flatten(1), hidden

    def _heads(self, layer: LayerWeights, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """q [T, Hq, D], k and v [T, Hkv, D]; norms over all heads at once are applied here, before they are split."""
        spec = self.spec
        if len(layer.qkv) == 1:
            q, k, v = layer.qkv[0](x).split((spec.q_size, spec.kv_size, spec.kv_size), dim=-1)
        else:
            q, k, v = (ref(x) for ref in layer.qkv)
        if spec.qk_norm == "full" and layer.q_norm is not None and layer.k_norm is not None:
            q = self.ops.rms_norm(q, layer.q_norm, spec.norm_eps)
            k = self.ops.rms_norm(k, layer.k_norm, spec.norm_eps)
        return (
            q.unflatten(-1, (spec.q_heads, spec.head_size)),
            k.unflatten(-1, (spec.kv_heads, spec.head_size)),
            v.unflatten(-1, (spec.kv_heads, spec.head_size)),
        )

    def _gated(self, layer: LayerWeights, delta: Tensor | None, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """(gated inner activations [T, I], residual stream [T, H])."""
        spec, ops = self.spec, self.ops
        if len(layer.gate_up) == 1:
            return ops.norm_gated(delta, hidden, layer.mlp_norm, spec.norm_eps, layer.gate_up[0], spec.activation)
        x, hidden = ops.norm(delta, hidden, layer.mlp_norm, spec.norm_eps)
        gate, up = layer.gate_up
        return activation(spec.activation, gate(x)) * up(x), hidden

    def _experts(self, layer: LayerWeights, x: Tensor) -> Tensor:
        assert self.spec.experts is not None
        assert layer.router is not None
        routing = route(x, layer.router, self.spec.experts)
        inner = self.ops.gated(layer.gate_up[0].grouped(routing.gather(x), routing.ends), self.spec.activation)
        return routing.combine(layer.down.grouped(inner, routing.ends))

    def _add(self, x: Tensor, ref: WeightRef, post_norm: Tensor | None, hidden: Tensor) -> tuple[Tensor | None, Tensor]:
        """A block's last linear: (what is still to be added to the residual stream, the stream)."""
        if post_norm is None and self.spec.residual_scale == 1.0:
            return self.ops.linear_add(x, ref, hidden)
        return self._scaled(ref(x), post_norm), hidden

    def _scaled(self, out: Tensor, post_norm: Tensor | None) -> Tensor:
        """What a block adds to the residual stream, from what it computed."""
        if post_norm is not None:
            out = self.ops.rms_norm(out, post_norm, self.spec.norm_eps)
        if self.spec.residual_scale != 1.0:
            out = out.mul_(self.spec.residual_scale)
        return out


def attn_spec(spec: ModelSpec, layer: LayerSpec, context_length: int) -> AttnSpec:
    """How a layer attends; a window that holds the whole context is none."""
    window = layer.window if layer.window is not None and layer.window < context_length else None
    return AttnSpec(
        q_heads=spec.q_heads,
        kv_heads=spec.kv_heads,
        qk_dim=spec.head_size,
        v_dim=spec.head_size,
        scale=spec.attn_scale,
        softcap=spec.attn_softcap,
        window=window,
    )


def cache_groups(specs: Sequence[AttnSpec]) -> tuple[CacheGroup, ...]:
    """Layers that cache alike, in order of their first layer."""
    kinds: dict[tuple[int | None, int, int, int], list[int]] = {}
    for index, spec in enumerate(specs):
        kinds.setdefault((spec.window, spec.kv_heads, spec.qk_dim, spec.v_dim), []).append(index)
    return tuple(
        CacheGroup(
            name="full" if window is None else f"window-{window}",
            layers=tuple(layers),
            planes=(Plane("k", heads, qk_dim), Plane("v", heads, v_dim)),
            window=window,
        )
        for (window, heads, qk_dim, v_dim), layers in kinds.items()
    )
