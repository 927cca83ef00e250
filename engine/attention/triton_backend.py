"""Paged attention on CUDA with Octavo's own Triton kernels.

Decode rows run split over their keys, longer pieces through the varlen kernel; a mixed step is one launch of each.
Grids come from the layout's host-known bounds and lengths stay in device memory, so a step may be captured into a CUDA
graph. Where the host knows the lengths and pieces are long, keys and values are laid out densely first. On devices
before compute capability 8.0 Triton's dot misses the tensor cores: there only decoding is done here, and longer pieces
go to plain torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from octavo.engine.attention.base import AttentionBackend, AttnSpec, CacheGroup, LayerKV, Layout, Plan
from octavo.engine.attention.torch_backend import TorchBackend
from octavo.kernels import decode_attention, dense_attention, paged_attention, rope
from octavo.kernels.attention_rope import NewTokens
from octavo.kernels.decode_attention import DecodeWork, SharedPrefixes
from octavo.kernels.dense_attention import DenseKV
from octavo.kernels.device import device_traits
from octavo.kernels.paged_attention import AttentionShape

OLDEST_CAPABILITY = 75  # what the kernels are compiled and checked for
NATIVE_BF16_CAPABILITY = 80
DENSE_BYTES = 256 << 20  # most memory for one layer's dense copy of cached keys and values
DENSE_READS = 256  # a copied key must be read by so many queries before the copy pays


@dataclass(frozen=True, slots=True)
class Rope:
    """How a layer rotates: `cos_sin` float32 [positions, rot_dim], and the norms of its heads [D], both or none."""

    cos_sin: Tensor
    q_weight: Tensor | None = None
    k_weight: Tensor | None = None
    eps: float = 0.0


class TritonBackend(AttentionBackend):
    """float16, bfloat16 and float32, head sizes up to 256. The engine's thread must have made the device current.

    All steps of a backend run on one stream at a time: they share counters that every launch leaves at zero.
    """

    name = "triton"
    capturable = True

    def __init__(self) -> None:
        self.fallback = TorchBackend()
        self._counters: list[Tensor] = []  # the last one is the largest; captured graphs may hold earlier ones

    def supports(self, spec: AttnSpec, dtype: torch.dtype, device: torch.device) -> str | None:
        if device.type != "cuda":
            return f"The Triton kernels run on CUDA devices, not on {device.type}."
        if dtype not in (torch.float16, torch.bfloat16, torch.float32):
            return f"The Triton attention kernels do not compute in {str(dtype).removeprefix('torch.')}."
        if spec.q_heads % spec.kv_heads:
            return f"{spec.q_heads} query heads cannot be grouped over {spec.kv_heads} KV heads."
        if max(spec.qk_dim, spec.v_dim) > paged_attention.MAX_HEAD_SIZE:
            widest = max(spec.qk_dim, spec.v_dim)
            return f"The Triton attention kernels hold head sizes up to {paged_attention.MAX_HEAD_SIZE}, not {widest}."
        capability = device_traits(device).capability
        if capability < OLDEST_CAPABILITY:
            return f"The Triton kernels need compute capability 7.5, this GPU has {capability / 10:.1f}."
        if dtype == torch.bfloat16 and capability < NATIVE_BF16_CAPABILITY:
            return f"A GPU of compute capability {capability / 10:.1f} has no bfloat16; float16 works."
        return None

    def plan(self, layout: Layout, groups: Sequence[CacheGroup]) -> TritonPlan:
        return TritonPlan(layout, groups, self)

    def write(self, plan: Plan, kv: LayerKV, k: Tensor, v: Tensor) -> None:
        rope.write_kv(k, v, kv.k, kv.v, plan.layout.write_slots[kv.group], kv.scales)

    def attend(
        self, plan: Plan, spec: AttnSpec, kv: LayerKV, q: Tensor, out: Tensor, lse: Tensor | None = None
    ) -> None:
        assert isinstance(plan, TritonPlan)
        shape = attention_shape(spec)
        self._decode(plan, shape, kv, q, out, lse)
        self._pieces(plan, spec, shape, kv, q, out, lse)

    def rope_attend(self, plan: Plan, spec: AttnSpec, kv: LayerKV, qkv: Tensor, turn: Rope) -> Tensor:
        """Rotates, writes and attends a merged projection [T, Hq + 2 Hkv, D]: [T, Hq, D]. May overwrite `qkv`.

        Decode rows do all of it in one launch; positions are the layout's.
        """
        assert isinstance(plan, TritonPlan)
        layout, shape, dim = plan.layout, attention_shape(spec), spec.qk_dim
        out = torch.empty((qkv.shape[0], spec.q_heads, dim), dtype=qkv.dtype, device=qkv.device)
        q, k, v = qkv.split((spec.q_heads, spec.kv_heads, spec.kv_heads), dim=1)
        slots = layout.write_slots[kv.group]
        new = NewTokens(k, v, turn.cos_sin, slots, turn.q_weight, turn.k_weight, turn.eps)
        self._decode(plan, shape, kv, q, out, None, new)
        rest = slice(layout.num_decode_rows, None)
        if layout.num_rows > layout.num_decode_rows:
            rotated = torch.empty_like(out)
            fresh = plan.fresh(shape, kv, qkv)
            rope.rope_write(
                q[rest], k[rest], v[rest], turn.cos_sin, layout.q_pos[rest], kv.k, kv.v, slots[rest],
                turn.q_weight, turn.k_weight, turn.eps, out=rotated[rest], keep=fresh is not None, scales=kv.scales,
            )  # fmt: skip
            self._pieces(plan, spec, shape, kv, rotated, out, None, fresh)
        return out

    def _decode(
        self,
        plan: TritonPlan,
        shape: AttentionShape,
        kv: LayerKV,
        q: Tensor,
        out: Tensor,
        lse: Tensor | None,
        new: NewTokens | None = None,
    ) -> None:
        layout = plan.layout
        if layout.num_decode_rows:
            work = plan.decode_work(shape, kv, q, new is not None)
            decode_attention.decode_attention(
                q, kv.k, kv.v, layout.tables[kv.group], out, lse, shape, work, layout.q_pos, new, kv.scales
            )  # fmt: skip

    def _pieces(
        self,
        plan: TritonPlan,
        spec: AttnSpec,
        shape: AttentionShape,
        kv: LayerKV,
        q: Tensor,
        out: Tensor,
        lse: Tensor | None,
        fresh: DenseKV | None = None,
    ) -> None:
        """The rows after the decode rows; `fresh`: all their keys and values, where they are dense already."""
        layout = plan.layout
        first = layout.num_decode_rows
        if layout.num_rows == first:
            return
        traits = device_traits(q.device)
        if not traits.tensor_cores:
            rest = slice(first, None)
            self.fallback.attend(
                plan.prefill_rows(), spec, kv, q[rest], out[rest], None if lse is None else lse[rest]
            )  # fmt: skip
            return
        dense = fresh or plan.gathered(shape, kv, q)
        if dense is not None:
            dense_attention.dense_attention(
                q, dense, layout.q_start, layout.q_pos, layout.kv_len, out, lse, shape, traits,
                first_row=first, num_rows=layout.num_rows, num_tokens=layout.num_tokens - first,
            )  # fmt: skip
            return
        paged_attention.prefill_attention(
            q, kv.k, kv.v, layout.tables[kv.group], layout.q_start, layout.q_pos, layout.kv_len, out, lse, shape,
            first_row=first, num_rows=layout.num_rows, num_tokens=layout.num_tokens - first, max_q=layout.max_q,
            scales=kv.scales,
        )  # fmt: skip

    def counters(self, count: int, device: torch.device) -> Tensor:
        """At least `count` int32 zeros, the same ones until more are asked for."""
        if not self._counters or self._counters[-1].shape[0] < count:
            self._counters.append(torch.zeros(max(count, 4096), dtype=torch.int32, device=device))
        return self._counters[-1]


class TritonPlan(Plan):
    """One step's schedules and scratch, each made when a layer first asks and shared by all layers of its shape."""

    def __init__(self, layout: Layout, groups: Sequence[CacheGroup], backend: TritonBackend) -> None:
        self.layout = layout
        self._groups = groups
        self._backend = backend
        self._work: dict[tuple[AttentionShape, int, torch.dtype, bool], DecodeWork] = {}
        self._starts: Tensor | None = None
        self._prefill_rows: Plan | None = None

    def decode_work(self, shape: AttentionShape, kv: LayerKV, q: Tensor, new: bool) -> DecodeWork:
        """How the decode rows' keys are cut for layers of this shape and cache group."""
        group = kv.group
        key = (shape, group, q.dtype, new)
        if key not in self._work:
            layout = self.layout
            rows = layout.num_decode_rows
            needed = decode_attention.counters_needed(shape, rows, q.dtype, device_traits(q.device))
            cascade = layout.cascades[group] if layout.cascades else None
            shared = None if cascade is None else SharedPrefixes(cascade.order, cascade.starts, cascade.shared)
            self._work[key] = decode_attention.decode_work(
                shape, q.dtype, layout.q_pos, layout.kv_len,
                rows=rows, new=new, counters=self._backend.counters(needed, q.device), prefixes=shared,
                quantized=kv.scales is not None,
            )  # fmt: skip
        return self._work[key]

    def fresh(self, shape: AttentionShape, kv: LayerKV, qkv: Tensor) -> DenseKV | None:
        """The merged projection as keys and values of the pieces, if they have no others and the kernel takes them."""
        rest = slice(self.layout.num_decode_rows, None)
        lines = qkv.view(qkv.shape[0], -1) if qkv.stride()[1:] == (shape.dim, 1) else None
        if (
            lines is None
            or not self._dense_fits(shape, kv, qkv)
            or self.layout.q_lens[rest] != self.layout.kv_lens[rest]
            or lines.data_ptr() % 16
            or lines.stride(0) * lines.element_size() % 16
        ):
            return None
        first = shape.q_heads * shape.dim
        return DenseKV(lines, self.layout.q_start, first, first + shape.kv_heads * shape.dim)

    def gathered(self, shape: AttentionShape, kv: LayerKV, q: Tensor) -> DenseKV | None:
        """A dense copy of the pieces' cached keys and values, if it pays."""
        layout = self.layout
        first = layout.num_decode_rows
        if not self._dense_fits(shape, kv, q):
            return None
        lines = sum(layout.kv_lens[first:])
        reads = sum(new * cached for new, cached in zip(layout.q_lens[first:], layout.kv_lens[first:], strict=True))
        size = lines * shape.kv_heads * (shape.dim + shape.v_dim) * q.element_size()
        if reads < DENSE_READS * lines or size > DENSE_BYTES:
            return None
        if self._starts is None:
            self._starts = torch.zeros(layout.num_rows + 1, dtype=torch.int32, device=q.device)
            torch.cumsum(layout.kv_len[first:], 0, dtype=torch.int32, out=self._starts[first + 1 :])
        return dense_attention.gather_pages(
            kv.k, kv.v, layout.tables[kv.group], layout.kv_len, self._starts, lines, first,
            dtype=q.dtype, scales=kv.scales,
        )  # fmt: skip

    def _dense_fits(self, shape: AttentionShape, kv: LayerKV, q: Tensor) -> bool:
        """Whether the dense kernel computes this layer, and the host knows the lengths it needs."""
        return (
            bool(self.layout.q_lens)
            and (kv.k.dtype == q.dtype or kv.scales is not None)
            and dense_attention.dense_supported(shape, q.dtype, device_traits(q.device))
        )

    def prefill_rows(self) -> Plan:
        """The torch backend's plan of the rows after the decode rows, whose tokens begin at num_decode_rows."""
        if self._prefill_rows is None:
            layout, first = self.layout, self.layout.num_decode_rows
            self._prefill_rows = self._backend.fallback.plan(
                replace(
                    layout,
                    q_start=layout.q_start[first:] - first,
                    q_pos=layout.q_pos[first:],
                    kv_len=layout.kv_len[first:],
                    tables=tuple(table[first:] for table in layout.tables),
                    write_slots=tuple(slots[first:] for slots in layout.write_slots),
                    num_rows=layout.num_rows - first,
                    num_tokens=layout.num_tokens - first,
                    num_decode_rows=0,
                    q_lens=layout.q_lens[first:],
                    kv_lens=layout.kv_lens[first:],
                    cascades=(),
                ),
                self._groups,
            )
        return self._prefill_rows


def attention_shape(spec: AttnSpec) -> AttentionShape:
    """A layer's attention as the kernels name it."""
    return AttentionShape(
        spec.q_heads, spec.kv_heads, spec.qk_dim, spec.v_dim, spec.scale, spec.softcap, spec.window, spec.causal
    )
