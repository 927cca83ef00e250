"""CUDA graphs for decoding: one a bucket of rows, captured on first use, all from one memory pool.

A replayed step costs one launch instead of some three hundred. Everything a step depends on is read from fixed
device buffers; rows beyond the batch are dummies with no keys that write to the trash page.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

import torch
from torch import Tensor

from octavo.engine.attention.base import AttentionBackend, AttentionStep, Layout
from octavo.engine.memory.kv_cache import KVCache
from octavo.engine.model.base import CausalModel
from octavo.engine.run.step import StepInputs

log = logging.getLogger(__name__)


def bucket_of(num_rows: int, max_rows: int) -> int:
    """The captured size that serves so many rows: 1, 2, 4, 8, then multiples of 8 up to 64, of 32 beyond."""
    if num_rows <= 8:
        size = 1 << (num_rows - 1).bit_length()
    else:
        step = 8 if num_rows <= 64 else 32
        size = -(-num_rows // step) * step
    return min(size, max(max_rows, num_rows))


@dataclass(slots=True)
class _Captured:
    graph: torch.cuda.CUDAGraph
    inputs: StepInputs
    logits: Tensor
    keep: tuple[object, ...]  # plan and hidden states must live as long as the graph


class DecodeGraphs:
    """Runs pure decode steps from graphs; `run` returns None where a step must run eagerly."""

    def __init__(
        self, model: CausalModel, backend: AttentionBackend, cache: KVCache, max_rows: int, context_length: int
    ) -> None:
        self._model, self._backend, self._cache = model, backend, cache
        self._max_rows, self._context_length = max_rows, context_length
        self._captured: dict[int, _Captured | None] = {}  # None: capture failed, runs eagerly
        self._pool = torch.cuda.graph_pool_handle()

    def run(self, inputs: StepInputs) -> Tensor | None:
        """Scores float32 [rows, vocab] of a step whose rows all have one token, or None."""
        rows = inputs.layout.num_rows
        bucket = bucket_of(rows, self._max_rows)
        if bucket not in self._captured:
            self._captured[bucket] = self._capture(bucket)
        captured = self._captured[bucket]
        if captured is None:
            return None
        _fill(captured.inputs, inputs)
        captured.graph.replay()
        return captured.logits[:rows]

    def _capture(self, bucket: int) -> _Captured | None:
        inputs = self._dummy_inputs(bucket)
        try:
            side = torch.cuda.Stream()
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):  # compiles kernels and fills the libraries' workspaces before the capture
                for _ in range(2):
                    self._forward(inputs)
            torch.cuda.current_stream().wait_stream(side)
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
                plan, hidden, logits = self._forward(inputs)
        except torch.cuda.OutOfMemoryError:
            log.warning("no memory to capture a graph for %d rows; such steps run without one", bucket)
            torch.cuda.empty_cache()
            return None
        return _Captured(graph, inputs, logits, (plan, hidden))

    def _forward(self, inputs: StepInputs) -> tuple[object, Tensor, Tensor]:
        plan = self._backend.plan(inputs.layout, self._cache.groups)
        step = AttentionStep(self._backend, plan, self._cache.layers)
        hidden = self._model.forward(inputs.token_ids, inputs.positions, step)
        return plan, hidden, self._model.logits(hidden)

    def _dummy_inputs(self, rows: int) -> StepInputs:
        device, size = self._model.device, self._cache.page_size
        pages = -(-self._context_length // size)
        wide = [torch.zeros(rows, dtype=torch.int64, device=device) for _ in range(2 + len(self._cache.groups))]
        layout = Layout(
            q_start=torch.arange(rows + 1, dtype=torch.int32, device=device),
            q_pos=wide[1],
            kv_len=torch.zeros(rows, dtype=torch.int32, device=device),
            tables=tuple(torch.zeros((rows, pages), dtype=torch.int32, device=device) for _ in self._cache.groups),
            write_slots=tuple(wide[2:]),
            page_size=size,
            num_rows=rows,
            num_tokens=rows,
            num_decode_rows=rows,
            max_q=1,
            max_kv=self._context_length,
        )
        return StepInputs(wide[0], wide[1], layout)


def _fill(static: StepInputs, step: StepInputs) -> None:
    """Copies a step into a graph's buffers; rows beyond it become dummies."""
    rows = step.layout.num_rows
    pairs = [
        (static.token_ids, step.token_ids),
        (static.positions, step.positions),
        (static.layout.kv_len, step.layout.kv_len),
        *zip(static.layout.write_slots, step.layout.write_slots, strict=True),
    ]
    for buffer, values in pairs:
        buffer[:rows].copy_(values)
        if rows < buffer.shape[0]:
            buffer[rows:].zero_()
    for buffer, values in zip(static.layout.tables, step.layout.tables, strict=True):
        buffer[:rows, : values.shape[1]].copy_(values)
