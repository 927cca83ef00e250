"""CUDA graphs for steps that read prompts: one a bucket of tokens and rows, captured while the engine is idle.

Launching the some two hundred kernels of such a step costs the host more than the device needs for a few hundred
tokens of a small model. Decode rows come first, each with one token, then the prompts' rows; places and tokens beyond
the batch are closed rows and tokens of no row, whose keys go to the trash page. Every length is read on the device.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from octavo.engine.attention.base import AttentionStep, Layout
from octavo.engine.run.graphs import STOP_IDS, GraphParts, bucket_of
from octavo.engine.run.step import UNKNOWN, PageTables
from octavo.engine.sample.sampler import Kind
from octavo.engine.schedule.plan import StepPlan
from octavo.engine.transfer import Stopwatch, upload

log = logging.getLogger(__name__)

HOST_BOUND_BYTES = 40 << 40  # tokens x bytes of weights: beyond it the device takes longer than the host's launches
MOST_GRAPHS = 96


def token_bucket(count: int) -> int:
    """Captured number of prompt tokens that serves `count`: at most a quarter more beyond 64."""
    if count <= 64:
        return max(16, 1 << (count - 1).bit_length())
    step = 1 << ((count - 1).bit_length() - 3)
    return -(-count // step) * step


def decode_bucket(count: int, tokens: int, max_rows: int) -> int:
    """Captured number of decode places beside so many prompt tokens: few sizes, and no more closed places than an
    eighth of the tokens, beside which they cost little."""
    if not count:
        return 0
    step = 1 << max(0, (tokens // 8).bit_length() - 1)
    return max(bucket_of(count, max_rows), min(-(-count // step) * step, max_rows))


def prompt_bucket(count: int, tokens: int) -> int:
    """Captured number of prompt places: places nobody fills cost nothing where there are many tokens."""
    return 1 << (max(count, tokens // 512, 1) - 1).bit_length()


@dataclass(frozen=True, slots=True)
class Bucket:
    """Sizes a graph is captured for: decode places, prompt places, prompt tokens."""

    decodes: int
    prompts: int
    tokens: int

    @property
    def rows(self) -> int:
        return self.decodes + self.prompts

    @property
    def all_tokens(self) -> int:
        return self.decodes + self.tokens


@dataclass(frozen=True, slots=True)
class MixedOutputs:
    """What a launched step leaves on the device, by place, and since when it runs. `columns` are the places of the
    plan's rows.

    `tokens` int64 [1, places] as kernels/rows.py says, or `logits` float32 [places, vocab] to be chosen from; `finite`
    bool [places].
    """

    tokens: Tensor | None
    logits: Tensor | None
    finite: Tensor
    columns: list[int]
    stopwatch: Stopwatch


class _Buffers:
    """A bucket's inputs on the device: one int64 packet, cut into parts, and the page tables."""

    def __init__(self, bucket: Bucket, groups: int, pages: int, dummy_row: int, device: torch.device) -> None:
        sizes = {
            "ids": bucket.all_tokens,
            "positions": bucket.all_tokens,
            **{f"slots{group}": bucket.all_tokens for group in range(groups)},
            "q_start": bucket.rows + 1,
            "kv_len": bucket.rows,
            "rows": bucket.rows,
            "picked": bucket.rows,
            "last_positions": bucket.rows,
            "caps": bucket.rows,
            "stops": bucket.rows * STOP_IDS,
        }
        self.spans: dict[str, slice] = {}
        begin = 0
        for name, size in sizes.items():
            self.spans[name] = slice(begin, begin + size)
            begin += -(-size // 2) * 2  # parts start at 16 bytes, as tensors of their own would
        self.packet = torch.zeros(begin, dtype=torch.int64, device=device)
        self.parts = {name: self.packet[span] for name, span in self.spans.items()}
        self.parts["rows"].fill_(dummy_row)
        self.parts["q_start"][: bucket.decodes + 1] = torch.arange(bucket.decodes + 1, device=device)
        self.parts["q_start"][bucket.decodes :] = bucket.decodes
        self.q_start = torch.zeros(bucket.rows + 1, dtype=torch.int32, device=device)
        self.kv_len = torch.zeros(bucket.rows, dtype=torch.int32, device=device)
        self.token_ids = torch.zeros(bucket.all_tokens, dtype=torch.int64, device=device)
        self.tables = tuple(torch.zeros((bucket.rows, pages), dtype=torch.int32, device=device) for _ in range(groups))
        self.ring = torch.zeros((1, bucket.rows), dtype=torch.int64, device=device)
        self.turn = torch.zeros(1, dtype=torch.int64, device=device)


@dataclass(slots=True)
class _Captured:
    graph: torch.cuda.CUDAGraph
    logits: Tensor | None
    ids: Tensor
    finite: Tensor
    keep: object


class MixedGraphs:
    """Runs steps with prompt tokens from graphs; `launch` returns None where a step must run eagerly."""

    def __init__(self, parts: GraphParts) -> None:
        from octavo.kernels import rows as row_kernels

        self._kernels = row_kernels
        self._model, self._backend, self._cache = parts.model, parts.backend, parts.cache
        self._sampler, self._last_tokens, self._pool = parts.sampler, parts.last_tokens, parts.pool
        self._max_rows, self._context_length = parts.max_rows, parts.context_length
        self._buffers: dict[Bucket, _Buffers] = {}
        self._captured: dict[tuple[Bucket, Kind], _Captured | None] = {}  # None: to be captured, or failed
        self._wanted: list[tuple[Bucket, Kind]] = []
        self._most_tokens = HOST_BOUND_BYTES // max(1, parts.model.weight_bytes)

    def launch(self, plan: StepPlan, tables: PageTables, kind: Kind) -> MixedOutputs | None:
        """Starts a step that has prompt rows. `tables` are up to date with the plan."""
        prompts = len(plan.rows) - plan.num_decode_rows
        prompt_tokens = plan.num_tokens - plan.num_decode_rows
        if prompt_tokens > self._most_tokens:
            return None
        tokens = token_bucket(max(1, prompt_tokens))
        decodes = decode_bucket(plan.num_decode_rows, tokens, self._max_rows)
        bucket = Bucket(decodes, prompt_bucket(prompts, tokens), tokens)
        captured = self._find(bucket, kind)
        if captured is None:
            return None
        buffers = self._buffers[bucket]
        self._fill(buffers, bucket, plan, tables)
        stopwatch = Stopwatch(self._model.device)
        captured.graph.replay()
        shift = bucket.decodes - plan.num_decode_rows
        columns = [at if at < plan.num_decode_rows else at + shift for at in range(len(plan.rows))]
        drawn = buffers.ring if captured.logits is None else None
        return MixedOutputs(drawn, captured.logits, captured.finite, columns, stopwatch)

    def _find(self, bucket: Bucket, kind: Kind) -> _Captured | None:
        key = (bucket, kind)
        if key not in self._captured:
            self.want(bucket, kind)
            return None
        return self._captured[key]

    def want(self, bucket: Bucket, kind: Kind) -> None:
        """Has a graph captured when there is time: a capture takes as long as several steps without one."""
        if len(self._captured) < MOST_GRAPHS and bucket.tokens <= self._most_tokens:
            self._captured.setdefault((bucket, kind), None)
            self._wanted.append((bucket, kind))

    def prepare_next(self) -> bool:
        """Captures one of the graphs that are wanted; False if there is none."""
        if not self._wanted:
            return False
        bucket, kind = self._wanted.pop(0)
        self._captured[bucket, kind] = self._capture(bucket, kind)
        return True

    def _fill(self, buffers: _Buffers, bucket: Bucket, plan: StepPlan, tables: PageTables) -> None:
        decodes, count = plan.num_decode_rows, len(plan.rows)
        packet = np.zeros(buffers.packet.shape[0], dtype=np.int64)
        part = {name: packet[span] for name, span in buffers.spans.items()}
        shift = bucket.decodes - decodes
        places = np.array([at if at < decodes else at + shift for at in range(count)], dtype=np.int64)
        rows = np.array([work.row for work in plan.rows], dtype=np.int64)
        begins = np.array([work.begin for work in plan.rows], dtype=np.int64)
        counts = np.array([work.count for work in plan.rows], dtype=np.int64)
        starts = np.arange(count, dtype=np.int64)
        starts[decodes:] = bucket.decodes + np.concatenate(([0], np.cumsum(counts[decodes:])))[:-1]
        end = bucket.decodes + int(counts[decodes:].sum())
        for work, start in zip(plan.rows, starts, strict=True):
            known = work.request.tokens[work.begin : work.begin + work.count]
            part["ids"][start : start + work.count] = known if known else UNKNOWN
        at = np.concatenate([np.arange(start, start + size) for start, size in zip(starts, counts, strict=True)])
        positions = at + np.repeat(begins - starts, counts)
        part["positions"][at] = positions
        size, row_of = self._cache.page_size, np.repeat(rows, counts)
        for group, table in enumerate(tables.tables):
            part[f"slots{group}"][at] = table[row_of, positions // size].astype(np.int64) * size + positions % size
        part["q_start"][: bucket.decodes] = np.arange(bucket.decodes)
        part["q_start"][bucket.decodes :] = end
        part["q_start"][places[decodes:]] = starts[decodes:]
        part["kv_len"][places] = begins + counts
        part["rows"][:] = self._max_rows
        part["rows"][places] = rows
        part["picked"][places] = starts + counts - 1
        part["last_positions"][places] = begins + counts - 1
        part["caps"][places] = [work.request.limit - 1 if work.samples else 0 for work in plan.rows]
        stops = part["stops"].reshape(bucket.rows, STOP_IDS)
        stops[:] = -1
        for place, work in zip(places, plan.rows, strict=True):
            ends = list(work.request.end_ids)[:STOP_IDS]
            stops[place, : len(ends)] = ends
        buffers.packet.copy_(upload(packet, torch.int64, buffers.packet.device))
        self._fill_tables(buffers, bucket, tables, places, rows, int((begins + counts).max()))

    def _fill_tables(
        self,
        buffers: _Buffers,
        bucket: Bucket,
        tables: PageTables,
        places: NDArray[np.int64],
        rows: NDArray[np.int64],
        longest: int,
    ) -> None:
        used = -(-longest // self._cache.page_size)
        for device_table, table in zip(buffers.tables, tables.tables, strict=True):
            wanted = np.zeros((bucket.rows, used), dtype=np.int32)
            wanted[places] = table[rows, :used]
            device_table[:, :used].copy_(upload(wanted, torch.int32, device_table.device))

    def _capture(self, bucket: Bucket, kind: Kind) -> _Captured | None:
        try:
            if bucket not in self._buffers:
                pages = -(-self._context_length // self._cache.page_size)
                groups = len(self._cache.groups)
                self._buffers[bucket] = _Buffers(bucket, groups, pages, self._max_rows, self._model.device)
            buffers = self._buffers[bucket]
            buffers.parts["caps"].zero_()
            buffers.parts["kv_len"].zero_()
            for group in range(len(self._cache.groups)):
                buffers.parts[f"slots{group}"].zero_()  # what the capture writes goes to the trash page
            graph, (logits, ids, finite, keep) = self._pool.capture(lambda: self._step(buffers, bucket, kind))
        except torch.cuda.OutOfMemoryError:
            log.warning("no memory to capture a graph for %d prompt tokens; such steps run without one", bucket.tokens)
            torch.cuda.empty_cache()
            self._most_tokens = bucket.tokens // 2
            return None
        return _Captured(graph, logits if kind == "any" else None, ids, finite, (logits, keep))

    def _step(self, buffers: _Buffers, bucket: Bucket, kind: Kind) -> tuple[Tensor, Tensor, Tensor, object]:
        """One whole step on a bucket's buffers: (logits, ids, finite, what else must live as long as the graph)."""
        part = buffers.parts
        buffers.q_start.copy_(part["q_start"])
        buffers.kv_len.copy_(part["kv_len"])
        buffers.token_ids.copy_(part["ids"])
        if bucket.decodes:
            known = buffers.token_ids[: bucket.decodes]
            known.copy_(torch.where(known == UNKNOWN, self._last_tokens[part["rows"][: bucket.decodes]], known))
        layout = Layout(
            q_start=buffers.q_start,
            q_pos=part["positions"],
            kv_len=buffers.kv_len,
            tables=buffers.tables,
            write_slots=tuple(part[f"slots{group}"] for group in range(len(buffers.tables))),
            page_size=self._cache.page_size,
            num_rows=bucket.rows,
            num_tokens=bucket.all_tokens,
            num_decode_rows=bucket.decodes,
            max_q=bucket.tokens,
            max_kv=self._context_length,
        )
        plan = self._backend.plan(layout, self._cache.groups)
        step = AttentionStep(self._backend, plan, self._cache.layers)
        hidden = self._model.forward(buffers.token_ids, part["positions"], step)
        picked = hidden[part["picked"]]
        logits = self._model.logits(picked)
        if kind == "any":
            return logits, part["picked"], torch.isfinite(logits.sum(-1)), (plan, hidden)
        ids, best = self._sampler.choose(logits, part["rows"], part["last_positions"] + 1, kind)
        finite = torch.isfinite(best)
        self._kernels.advance(
            ids, best, self._last_tokens, part["rows"], part["last_positions"], part["caps"],
            part["stops"].view(bucket.rows, STOP_IDS), buffers.ring, buffers.turn,
        )  # fmt: skip
        return logits, ids, finite, (plan, hidden)
