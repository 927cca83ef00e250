"""CUDA graphs for decoding: one a bucket of rows and a way of choosing tokens, captured on first use, from one pool.

A replayed step costs one launch instead of some two hundred, and it feeds itself: the graph reads each row's newest
token, position and pages from the device and leaves the next ones there (kernels/rows.py). The host writes only what
changed: new rows, new pages. Places beyond the batch are closed rows with no keys that write to the trash page.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from octavo.engine.attention.base import AttentionBackend, AttentionStep, Cascade, Layout
from octavo.engine.memory.kv_cache import KVCache
from octavo.engine.model.base import CausalModel
from octavo.engine.run.sharing import shared_spans, span_arrays
from octavo.engine.run.step import PageTables
from octavo.engine.sample.sampler import Kind, Sampler
from octavo.engine.schedule.plan import StepPlan
from octavo.engine.transfer import Stopwatch, upload

log = logging.getLogger(__name__)

T = TypeVar("T")
MAX_REPEATS = 16
RING = 4 * MAX_REPEATS  # outputs of so many steps stay on the device
OWN_GRAPHS = 16  # rows; a step of more may run in a larger graph for a while
STOP_IDS = 8  # end tokens a row knows on the device; the host checks all of them anyway
WHOLE_TABLE = 2048  # more changed pages than this are not worth naming one by one


def bucket_of(num_rows: int, max_rows: int) -> int:
    """The captured size that serves so many rows: 1, 2, 4, 8, then multiples of 8 up to 64, of 32 beyond."""
    if num_rows <= 8:
        size = 1 << (num_rows - 1).bit_length()
    else:
        step = 8 if num_rows <= 64 else 32
        size = -(-num_rows // step) * step
    return min(size, max(max_rows, num_rows))


@dataclass(slots=True)
class _State:
    """One bucket's rows on the device, and what the host knows of them."""

    size: int
    rows: Tensor  # int64 [B], views of one buffer, as are the next three
    positions: Tensor
    caps: Tensor
    stops: Tensor  # int64 [B, STOP_IDS]
    packet: Tensor  # that buffer
    token_ids: Tensor
    kv_len: Tensor
    slots: tuple[Tensor, ...]
    tables: tuple[Tensor, ...]  # int32 [B, P], one a cache group
    ring: Tensor  # int64 [RING, B]
    turn: Tensor
    layout: Layout
    spans: list[Tensor | None]  # int32 [2 B + S + 1], one a cache group whose rows may share pages: a Cascade in one
    members: tuple[tuple[int, int], ...] = ()  # (row, epoch) of each place
    next_positions: list[int] = field(default_factory=list)
    pages_seen: list[int] = field(default_factory=list)
    host_tables: list[NDArray[np.int32]] = field(default_factory=list)
    host_spans: list[NDArray[np.int32] | None] = field(default_factory=list)
    host_turn: int = 0


@dataclass(slots=True)
class _Captured:
    graph: torch.cuda.CUDAGraph
    logits: Tensor | None  # of the kind "any", which samples outside
    keep: object  # the plan and intermediates must live as long as the graph


class GraphPool:
    """Captures graphs that share one pool of memory: they are replayed one after the other, on one stream."""

    def __init__(self) -> None:
        self._pool = torch.cuda.graph_pool_handle()
        self._stream = torch.cuda.Stream()

    def capture(self, run: Callable[[], T]) -> tuple[torch.cuda.CUDAGraph, T]:
        """A graph of what `run` launches, and what it returned, which must live as long as the graph."""
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            for _ in range(2):  # compiles kernels and fills the libraries' workspaces before the capture
                run()
        self._stream.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.stream(self._stream):
            # A capture that hears of other threads would break when a loader copies meanwhile.
            graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
            try:
                kept = run()
            finally:
                graph.capture_end()
        torch.cuda.current_stream().wait_stream(self._stream)
        return graph, kept


@dataclass(frozen=True, slots=True)
class GraphParts:
    """What captured steps are made of. `last_tokens` int64 [rows + 1]: each row's newest token."""

    model: CausalModel
    backend: AttentionBackend
    cache: KVCache
    sampler: Sampler
    last_tokens: Tensor
    pool: GraphPool
    max_rows: int
    context_length: int


class Outputs:
    """The tokens a launched step leaves on the device, and since when it runs.

    If they are still to be chosen, `scores` and then `choose` are called for each repetition, in order.
    """

    def __init__(
        self,
        graphs: DecodeGraphs,
        state: _State,
        captured: _Captured,
        rows: int,
        repeats: int,
        stopwatch: Stopwatch,
    ) -> None:
        self.stopwatch = stopwatch
        self._graphs, self._state, self._captured = graphs, state, captured
        self._rows, self._repeats = rows, repeats
        self._first = state.host_turn
        state.host_turn += repeats

    def tokens(self) -> Tensor:
        """int64 [repeats, rows]; kernels/rows.py says what negative ones mean."""
        return _ring_part(self._state.ring, self._first, self._repeats)[:, : self._rows]

    def scores(self, turn: int) -> tuple[Tensor, Tensor]:
        """(float32 [rows, vocab], positions int64 [rows] of the tokens to be chosen) of the next repetition."""
        if turn:
            self._captured.graph.replay()
        assert self._captured.logits is not None
        return self._captured.logits[: self._rows], self._state.positions[: self._rows] + 1

    def choose(self, ids: Tensor, finite: Tensor) -> None:
        """Hands over the chosen ids int64 [rows]; `finite` bool [rows] says whether their scores were numbers."""
        state = self._state
        chosen = ids.new_zeros(state.size)
        best = torch.zeros(state.size, device=ids.device)
        chosen[: self._rows] = ids
        best[: self._rows] = torch.where(finite, 0.0, float("nan"))
        self._graphs.advance(state, chosen, best)


class DecodeGraphs:
    """Runs decode steps from graphs; `launch` returns None where a step must run eagerly. Every row's newest token is
    kept by whoever samples."""

    def __init__(self, parts: GraphParts) -> None:
        from octavo.kernels import rows as row_kernels

        self._kernels = row_kernels
        self._model, self._backend, self._cache = parts.model, parts.backend, parts.cache
        self._sampler, self._last_tokens, self._pool = parts.sampler, parts.last_tokens, parts.pool
        self._max_rows, self._context_length = parts.max_rows, parts.context_length
        self._states: dict[int, _State] = {}
        # by rows, kind, and whether some rows share pages; None: capture failed, runs eagerly
        self._captured: dict[tuple[int, Kind, bool], _Captured | None] = {}
        self._wanted: list[tuple[int, Kind, bool]] = []

    def launch(self, plan: StepPlan, tables: PageTables, kind: Kind) -> Outputs | None:
        """Starts a step of decode rows, as often as the plan says. `tables` are up to date with the plan."""
        exact = bucket_of(len(plan.rows), self._max_rows)
        size = self._ready_size(exact, kind)
        state = self._state(size)
        shares = self._bring_up(state, plan, tables)
        key = (size, kind, shares)
        if size != exact and (exact, kind, shares) not in self._wanted:
            self._wanted.append((exact, kind, shares))
        if key not in self._captured:
            self._captured[key] = self._capture(state, kind, shares)
            self._bring_up(state, plan, tables)
        captured = self._captured[key]
        if captured is None:
            return None
        stopwatch = Stopwatch(self._model.device)
        for _ in range(plan.repeats if captured.logits is None else 1):
            captured.graph.replay()
        state.next_positions = [work.begin + work.repeats for work in plan.rows]
        return Outputs(self, state, captured, len(plan.rows), plan.repeats, stopwatch)

    def prepare(self, rows: int, kind: Kind, shares: bool = False) -> None:
        """Captures the graph for so many rows before it is needed."""
        state = self._state(bucket_of(rows, self._max_rows))
        key = (state.size, kind, shares)
        if key not in self._captured:
            self._captured[key] = self._capture(state, kind, shares)

    def prepare_next(self) -> bool:
        """Captures one of the graphs that others stood in for; False if there is none."""
        if not self._wanted:
            return False
        self.prepare(*self._wanted.pop(0))
        return True

    def _ready_size(self, size: int, kind: Kind) -> int:
        """The bucket to run so many rows in now. Among many rows a larger one that is captured already stands in, since
        a capture takes as long as a hundred steps; a burst of chats meets every size on its way up. A few rows always
        get their own, whose results they then have every time."""
        if size <= OWN_GRAPHS or any((size, kind, shares) in self._captured for shares in (False, True)):
            return size
        larger = [key[0] for key, found in self._captured.items() if found and key[0] > size and key[1] == kind]
        return min(larger, default=bucket_of(min(2 * size, self._max_rows), self._max_rows))

    def _state(self, size: int) -> _State:
        if size not in self._states:
            self._states[size] = self._make_state(size)
        return self._states[size]

    # -- bringing a bucket's rows up to date --------------------------------------------------------------------------

    def _bring_up(self, state: _State, plan: StepPlan, tables: PageTables) -> bool:
        """Writes what changed; returns whether some rows share pages."""
        members = tuple((work.row, work.epoch) for work in plan.rows)
        regrouped = state.members != members
        if regrouped or state.next_positions != [work.begin for work in plan.rows]:
            self._write_rows(state, plan, members)
        pages = [work.request.pages_changed for work in plan.rows]
        if pages == state.pages_seen:
            return any(spans is not None for spans in state.host_spans)
        stale = [
            place
            for place, changed in enumerate(pages)
            if place >= len(state.pages_seen) or changed != state.pages_seen[place]
        ]
        rows = [members[place][0] for place in stale]
        for device_table, host_table, source in zip(state.tables, state.host_tables, tables.tables, strict=True):
            patch_tables(self._kernels.patch, device_table, host_table, stale, source[rows])
        state.pages_seen = pages
        if regrouped:  # rows that stay only grow by pages of their own
            self._write_spans(state, plan, tables)
        return any(spans is not None for spans in state.host_spans)

    def _write_spans(self, state: _State, plan: StepPlan, tables: PageTables) -> None:
        """Says which rows begin with the same pages."""
        rows = [work.row for work in plan.rows]
        cached = np.array([work.begin for work in plan.rows], dtype=np.int64)
        found: list[NDArray[np.int32] | None] = []
        for table, target, known in zip(tables.tables, state.spans, state.host_spans, strict=True):
            spans = []
            if target is not None:
                used = -(-int(cached.max()) // self._cache.page_size)
                whole = (cached // self._cache.page_size).tolist()
                spans = shared_spans(table[rows, :used], whole, max_spans=_spans_of(state.size))
            if target is None or not spans:
                found.append(None)
                continue
            sharing = span_arrays(spans, len(rows), self._cache.page_size, _spans_of(state.size))
            packed = np.zeros(target.shape[0], dtype=np.int32)
            packed[: len(rows)] = sharing.order
            packed[len(rows) : state.size] = np.arange(len(rows), state.size)
            packed[state.size : 2 * state.size][: len(rows)] = sharing.shared
            packed[2 * state.size :] = sharing.starts
            if known is None or not np.array_equal(known, packed):
                target.copy_(upload(packed, torch.int32, target.device))
            found.append(packed)
        state.host_spans = found

    def _write_rows(self, state: _State, plan: StepPlan, members: tuple[tuple[int, int], ...]) -> None:
        count, size = len(plan.rows), state.size
        packet = np.zeros((3 + STOP_IDS) * size, dtype=np.int64)
        packet[:size] = self._max_rows
        packet[:count] = [row for row, _ in members]
        packet[size : size + count] = [work.begin for work in plan.rows]
        packet[2 * size : 2 * size + count] = [work.request.limit - 1 for work in plan.rows]
        stops = packet[3 * size :].reshape(size, STOP_IDS)
        stops[:] = -1
        for place, work in enumerate(plan.rows):
            ends = list(work.request.end_ids)[:STOP_IDS]
            stops[place, : len(ends)] = ends
        state.packet.copy_(upload(packet, torch.int64, state.packet.device))
        if state.members != members:
            state.members, state.pages_seen = members, []

    # -- capturing ----------------------------------------------------------------------------------------------------

    def _capture(self, state: _State, kind: Kind, shares: bool) -> _Captured | None:
        try:
            state.caps.zero_()  # every row closed: what runs now changes nothing
            state.members = ()
            graph, (logits, keep) = self._pool.capture(lambda: self._step(state, kind, shares))
            state.turn.zero_()
            state.host_turn = 0
        except torch.cuda.OutOfMemoryError:
            log.warning("no memory to capture a graph for %d rows; such steps run without one", state.size)
            torch.cuda.empty_cache()
            return None
        return _Captured(graph, logits if kind == "any" else None, (logits, keep))

    def _step(self, state: _State, kind: Kind, shares: bool) -> tuple[Tensor | None, object]:
        """One whole step on the state's buffers."""
        page_size = self._cache.page_size
        for table, slots in zip(state.tables, state.slots, strict=True):
            self._kernels.prepare(
                self._last_tokens, state.rows, state.positions, state.caps, table, page_size,
                state.token_ids, state.kv_len, slots,
            )  # fmt: skip
        layout = state.layout
        if shares:
            cascades = tuple(None if spans is None else _cascade(spans, state.size) for spans in state.spans)
            layout = replace(layout, cascades=cascades)
        plan = self._backend.plan(layout, self._cache.groups)
        step = AttentionStep(self._backend, plan, self._cache.layers)
        hidden = self._model.forward(state.token_ids, state.positions, step)
        # a head with rows that no token has must not be chosen from as a whole
        exact = kind == "greedy" and self._sampler.vocab_size == self._model.vocab_size
        chosen = self._model.greedy(hidden) if exact else None
        if chosen is not None:
            best, ids = chosen
            self.advance(state, ids, best)
            return None, (plan, hidden)
        logits = self._model.logits(hidden)
        if kind != "any":
            ids, best = self._sampler.choose(logits, state.rows, state.positions + 1, kind)
            self.advance(state, ids, best)
        return logits, (plan, hidden)

    def advance(self, state: _State, ids: Tensor, best: Tensor) -> None:
        """The last part of a step: takes what was chosen for every place, int64 and float32 [B]."""
        self._kernels.advance(
            ids, best, self._last_tokens, state.rows, state.positions, state.caps, state.stops, state.ring, state.turn
        )

    def _make_state(self, size: int) -> _State:
        device, page_size = self._model.device, self._cache.page_size
        pages = -(-self._context_length // page_size)
        packet = torch.zeros((3 + STOP_IDS) * size, dtype=torch.int64, device=device)
        packet[:size] = self._max_rows
        rows, positions, caps = packet[: 3 * size].view(3, size).unbind()
        wide = [torch.zeros(size, dtype=torch.int64, device=device) for _ in range(1 + len(self._cache.groups))]
        kv_len = torch.zeros(size, dtype=torch.int32, device=device)
        tables = tuple(torch.zeros((size, pages), dtype=torch.int32, device=device) for _ in self._cache.groups)
        layout = Layout(
            q_start=torch.arange(size + 1, dtype=torch.int32, device=device),
            q_pos=positions,
            kv_len=kv_len,
            tables=tables,
            write_slots=tuple(wide[1:]),
            page_size=page_size,
            num_rows=size,
            num_tokens=size,
            num_decode_rows=size,
            max_q=1,
            max_kv=self._context_length,
        )
        return _State(
            size=size,
            rows=rows,
            positions=positions,
            caps=caps,
            stops=packet[3 * size :].view(size, STOP_IDS),
            packet=packet,
            token_ids=wide[0],
            kv_len=kv_len,
            slots=tuple(wide[1:]),
            tables=tables,
            ring=torch.zeros((RING, size), dtype=torch.int64, device=device),
            turn=torch.zeros(1, dtype=torch.int64, device=device),
            layout=layout,
            host_tables=[np.zeros((size, pages), dtype=np.int32) for _ in tables],
            spans=[
                None
                if size < 2 or group.window is not None
                else torch.zeros(2 * size + _spans_of(size) + 1, dtype=torch.int32, device=device)
                for group in self._cache.groups
            ],
            host_spans=[None] * len(tables),
        )


def patch_tables(
    patch: Callable[[Tensor, Tensor], None],
    device_table: Tensor,
    host_table: NDArray[np.int32],
    places: list[int],
    wanted: NDArray[np.int32],
) -> None:
    """Gives some places of a captured step's tables int32 [places, pages] the `wanted` pages, writing what changed."""
    at, columns = np.nonzero(host_table[places] != wanted)
    if not len(at):
        return
    host_table[places] = wanted
    if len(at) > WHOLE_TABLE:
        device_table.copy_(upload(host_table, torch.int32, device_table.device))
        return
    flat = np.asarray(places)[at] * host_table.shape[1] + columns
    changes = np.stack([flat.astype(np.int32), wanted[at, columns]])
    patch(device_table, upload(changes, torch.int32, device_table.device))


def _spans_of(size: int) -> int:
    """Groups of rows with a common beginning that a bucket can tell apart."""
    return max(1, min(8, size // 2))


def _cascade(spans: Tensor, size: int) -> Cascade:
    return Cascade(order=spans[:size], starts=spans[2 * size :], shared=spans[size : 2 * size])


def _ring_part(ring: Tensor, first: int, count: int) -> Tensor:
    """[count, B]: the outputs of `count` steps from the one numbered `first` on."""
    begin = first % RING
    if begin + count <= RING:
        return ring[begin : begin + count]
    return torch.cat((ring[begin:], ring[: begin + count - RING]))
