"""Paged attention on CUDA with Octavo's own Triton kernels.

Decode rows run split over their keys, longer pieces through the varlen kernel; a mixed step is one launch of each.
Grids come from the layout's host-known bounds and lengths stay in device memory, so a step may be captured into a CUDA
graph. On devices before compute capability 8.0 Triton's dot misses the tensor cores: there only decoding is done here,
and longer pieces go to plain torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from octavo.engine.attention.base import AttentionBackend, AttnSpec, CacheGroup, LayerKV, Layout, Plan
from octavo.engine.attention.torch_backend import TorchBackend
from octavo.kernels import paged_attention, rope
from octavo.kernels.device import device_traits
from octavo.kernels.paged_attention import AttentionShape

OLDEST_CAPABILITY = 75  # what the kernels are compiled and checked for
NATIVE_BF16_CAPABILITY = 80


class TritonBackend(AttentionBackend):
    """float16, bfloat16 and float32, head sizes up to 256. The engine's thread must have made the device current."""

    name = "triton"
    capturable = True

    def __init__(self) -> None:
        self._torch = TorchBackend()

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
        return TritonPlan(layout, groups, self._torch)

    def write(self, plan: Plan, kv: LayerKV, k: Tensor, v: Tensor) -> None:
        rope.write_kv(k, v, kv.k, kv.v, plan.layout.write_slots[kv.group])

    def attend(
        self, plan: Plan, spec: AttnSpec, kv: LayerKV, q: Tensor, out: Tensor, lse: Tensor | None = None
    ) -> None:
        assert isinstance(plan, TritonPlan)
        layout = plan.layout
        shape = AttentionShape(
            spec.q_heads, spec.kv_heads, spec.qk_dim, spec.v_dim, spec.scale, spec.softcap, spec.window, spec.causal
        )
        table = layout.tables[kv.group]
        decode_rows = layout.num_decode_rows
        if decode_rows:
            splits, scratch = plan.splits(shape, q)
            paged_attention.decode_attention(
                q, kv.k, kv.v, table, layout.q_pos, layout.kv_len, out, lse, shape,
                rows=decode_rows, splits=splits, scratch=scratch,
            )  # fmt: skip
        if layout.num_rows == decode_rows:
            return
        if not device_traits(q.device).tensor_cores:
            rest = slice(decode_rows, None)
            self._torch.attend(
                plan.prefill_rows(), spec, kv, q[rest], out[rest], None if lse is None else lse[rest]
            )  # fmt: skip
            return
        paged_attention.prefill_attention(
            q, kv.k, kv.v, table, layout.q_start, layout.q_pos, layout.kv_len, out, lse, shape,
            first_row=decode_rows, num_rows=layout.num_rows, num_tokens=layout.num_tokens - decode_rows,
            max_q=layout.max_q,
        )  # fmt: skip


class TritonPlan(Plan):
    """One step's split counts and scratch, each made when a layer first asks and shared by all layers of its shape."""

    def __init__(self, layout: Layout, groups: Sequence[CacheGroup], fallback: TorchBackend) -> None:
        self.layout = layout
        self._groups = groups
        self._fallback = fallback
        self._splits: dict[tuple[AttentionShape, torch.dtype], tuple[int, Tensor | None]] = {}
        self._prefill_rows: Plan | None = None

    def splits(self, shape: AttentionShape, q: Tensor) -> tuple[int, Tensor | None]:
        """Into how many runs the decode rows' keys are cut, and the room for partial results (None for one run)."""
        key = (shape, q.dtype)
        if key not in self._splits:
            rows = self.layout.num_decode_rows
            count = paged_attention.split_count(shape, rows, self.layout.max_kv, q.dtype, device_traits(q.device))
            scratch = paged_attention.decode_scratch(shape, rows, count, q.device) if count > 1 else None
            self._splits[key] = (count, scratch)
        return self._splits[key]

    def prefill_rows(self) -> Plan:
        """The fallback's plan of the rows after the decode rows, whose tokens begin at num_decode_rows."""
        if self._prefill_rows is None:
            layout, first = self.layout, self.layout.num_decode_rows
            self._prefill_rows = self._fallback.plan(
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
                ),
                self._groups,
            )
        return self._prefill_rows
