"""CUDA graphs for steps that check guesses, which feed themselves as those for decoding do.

Every row has a place for its newest token and one for each guess behind it, a decode row of its own each: keys are
written before any is read, so that each sees exactly those before it. A replay takes the row on by as many tokens as
were guessed right and one more (kernels/checks.py), so several can follow each other before the host sees any of them:
it then waits for results, plans and launches once for all of them.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from octavo.engine.attention.base import AttentionStep, Layout
from octavo.engine.run.graphs import STOP_IDS, GraphParts, bucket_of, patch_tables
from octavo.engine.run.step import PageTables
from octavo.engine.sample.sampler import Kind
from octavo.engine.schedule.plan import StepPlan
from octavo.engine.transfer import Stopwatch

if TYPE_CHECKING:
    from octavo.kernels.checks import CheckRows, Places

log = logging.getLogger(__name__)

MAX_CHECKS = 8  # replays that follow each other
MOST_GRAPHS = 32


def places_of(window: int, rows: int) -> int:
    """Captured number of places a row that serves so many guesses: multiples of three, and for a row alone, whose
    places cost next to nothing, no fewer than six."""
    return max(-(-(window + 1) // 3) * 3, 6 if rows == 1 else 3)


@dataclass(frozen=True, slots=True)
class Checked:
    """What a launched step leaves on the device, and since when it runs.

    `outputs` int64 [checks, rows, places] as kernels/checks.py says; or, where rows want more than the graph can do,
    `logits` float32 [rows, places, vocab] to draw from, and `positions` int64 [rows, places] of the tokens to be drawn.
    """

    outputs: Tensor | None
    logits: Tensor | None
    positions: Tensor | None
    stopwatch: Stopwatch


@dataclass(slots=True)
class _State:
    """One bucket's rows on the device: views of one int64 packet, whose counterpart on the host is pinned."""

    size: int
    rows: CheckRows
    places: Places
    slots: tuple[Tensor, ...]
    tables: tuple[Tensor, ...]  # int32 [rows * places, pages], one a cache group
    layout: Layout
    packet: Tensor
    told: int  # where the part of the packet begins that only the host writes
    staged: list[tuple[Tensor, dict[str, NDArray[np.int64]]]]  # and by parts: one for each of two steps under way
    host_tables: list[NDArray[np.int32]]
    seen: list[tuple[int, int, int]] = field(default_factory=list)  # (row, epoch, pages_changed) of each row's tables
    turn: int = 0  # steps launched


@dataclass(slots=True)
class _Captured:
    graph: torch.cuda.CUDAGraph
    logits: Tensor | None  # of the kind "any", which draws outside
    keep: object


class CheckGraphs:
    """Runs steps with guesses from graphs; `launch` returns None where a step must run eagerly. By then the device must
    know the newest token of each of the plan's rows."""

    def __init__(self, parts: GraphParts) -> None:
        from octavo.kernels import checks, rows

        self._kernels, self._patch = checks, rows.patch
        self._model, self._backend, self._cache = parts.model, parts.backend, parts.cache
        self._sampler, self._last_tokens, self._pool = parts.sampler, parts.last_tokens, parts.pool
        self._max_rows, self._context_length = parts.max_rows, parts.context_length
        self._states: dict[tuple[int, int], _State] = {}
        self._captured: dict[tuple[int, int, Kind], _Captured | None] = {}  # None: capture failed
        self._last: tuple[StepPlan, tuple[int, int, Kind]] | None = None  # what was launched last, and from which graph

    def can_continue(self, plan: StepPlan) -> bool:
        """Whether a step may begin where this one, launched last, ends."""
        return self._last is not None and self._last[0] is plan

    def launch(self, plan: StepPlan, tables: PageTables, kind: Kind) -> Checked | None:
        """Starts a step with guesses, as often as the plan says. `tables` are up to date with it."""
        rows = bucket_of(len(plan.rows), self._max_rows)
        places = places_of(max(len(work.draft) for work in plan.rows), rows)
        key = (rows, places, kind)
        if plan.continues:
            assert self._last is not None
            key = rows, places, kind = self._last[1]
        self._last = None
        if key not in self._captured and len(self._captured) < MOST_GRAPHS:
            # at once: nothing else is under way, and checks without a graph are so slow that none would follow
            self._captured[key] = self._capture(rows, places, kind)
        captured = self._captured.get(key)
        if captured is None:
            return None
        state = self._states[rows, places]
        self._bring_up(state, plan, tables)
        stopwatch = Stopwatch(self._model.device)
        count = len(plan.rows)
        if captured.logits is not None:
            captured.graph.replay()
            logits = captured.logits.view(rows, places, -1)[:count]
            return Checked(None, logits, state.places.positions.view(rows, places)[:count] + 1, stopwatch)
        self._last = plan, key
        for _ in range(plan.repeats):
            captured.graph.replay()
        return Checked(state.rows.ring[: plan.repeats, :count], None, None, stopwatch)

    def _bring_up(self, state: _State, plan: StepPlan, tables: PageTables) -> None:
        """Writes what the rows are to check; of a step that continues, the device knows where each row is."""
        staged, parts = state.staged[state.turn % 2]  # the step before the last one is done
        state.turn += 1
        staged.zero_()
        parts["rows"][:] = self._max_rows
        parts["stops"][:] = -1
        for place, work in enumerate(plan.rows):
            guesses, request = (*work.draft, *work.beyond)[: parts["guesses"].shape[1]], work.request
            parts["rows"][place] = work.row
            parts["positions"][place] = work.begin
            parts["caps"][place] = request.limit - 1
            parts["windows"][place] = len(work.draft)
            parts["firsts"][place] = work.begin + 1
            parts["counts"][place] = len(guesses)
            parts["guesses"][place, : len(guesses)] = guesses
            ends = list(request.end_ids)[:STOP_IDS]
            parts["stops"][place, : len(ends)] = ends
        begin = state.told if plan.continues else 0
        state.packet[begin:].copy_(staged[begin:], non_blocking=True)
        seen = [(work.row, work.epoch, work.request.pages_changed) for work in plan.rows]
        stale = [at for at, known in enumerate(seen) if at >= len(state.seen) or state.seen[at] != known]
        state.seen = seen
        if not stale:
            return
        width = state.rows.places
        places = [at * width + place for at in stale for place in range(width)]
        rows = [seen[at][0] for at in stale for _ in range(width)]
        for device_table, host_table, table in zip(state.tables, state.host_tables, tables.tables, strict=True):
            patch_tables(self._patch, device_table, host_table, places, table[rows])

    def _capture(self, rows: int, places: int, kind: Kind) -> _Captured | None:
        try:
            if (rows, places) not in self._states:
                self._states[rows, places] = self._make_state(rows, places)
            state = self._states[rows, places]
            state.rows.caps.zero_()  # every row closed: what runs now changes nothing
            graph, (logits, keep) = self._pool.capture(lambda: self._step(state, kind))
        except torch.cuda.OutOfMemoryError:
            log.warning("no memory to capture a graph that checks guesses of %d rows; they are checked without", rows)
            torch.cuda.empty_cache()
            return None
        return _Captured(graph, logits if kind == "any" else None, (logits, keep))

    def _step(self, state: _State, kind: Kind) -> tuple[Tensor, object]:
        """One whole step on the state's buffers."""
        for table, slots in zip(state.tables, state.slots, strict=True):
            self._kernels.spread(state.rows, table, self._cache.page_size, state.places, slots)
        plan = self._backend.plan(state.layout, self._cache.groups)
        step = AttentionStep(self._backend, plan, self._cache.layers)
        hidden = self._model.forward(state.places.token_ids, state.places.positions, step)
        logits = self._model.logits(hidden)
        if kind != "any":
            ids, best = self._sampler.choose(logits, state.places.rows, state.places.positions + 1, kind)
            self._kernels.settle(state.rows, state.places, ids, best)
        return logits, (plan, hidden)

    def _make_state(self, rows: int, places: int) -> _State:
        device, size, most = self._model.device, rows * places, 2 * MAX_CHECKS * places
        shapes = {
            "rows": (rows,), "positions": (rows,), "caps": (rows,), "stops": (rows, STOP_IDS),
            "turn": (1,), "windows": (rows,), "firsts": (rows,), "counts": (rows,), "guesses": (rows, most),
        }  # fmt: skip
        lengths = {name: -(-int(np.prod(shape)) // 2) * 2 for name, shape in shapes.items()}  # from 16 bytes to 16
        begins = dict(zip(shapes, np.cumsum([0, *lengths.values()]).tolist(), strict=False))
        packet = torch.zeros(sum(lengths.values()), dtype=torch.int64, device=device)
        staged = [torch.zeros(packet.shape, dtype=torch.int64).pin_memory() for _ in range(2)]

        def part(whole: Tensor, name: str) -> Tensor:
            shape = shapes[name]
            return whole[begins[name] : begins[name] + int(np.prod(shape))].view(shape)

        on_device = {name: part(packet, name) for name in shapes}
        on_device["rows"].fill_(self._max_rows)
        wide = [torch.zeros(size, dtype=torch.int64, device=device) for _ in range(3 + len(self._cache.groups))]
        kv_len = torch.zeros(size, dtype=torch.int32, device=device)
        pages = -(-self._context_length // self._cache.page_size)
        tables = tuple(torch.zeros((size, pages), dtype=torch.int32, device=device) for _ in self._cache.groups)
        ring = torch.zeros((MAX_CHECKS, rows, places), dtype=torch.int64, device=device)
        layout = Layout(
            q_start=torch.arange(size + 1, dtype=torch.int32, device=device),
            q_pos=wide[1],
            kv_len=kv_len,
            tables=tables,
            write_slots=tuple(wide[3:]),
            page_size=self._cache.page_size,
            num_rows=size,
            num_tokens=size,
            num_decode_rows=size,
            max_q=1,
            max_kv=self._context_length,
            shared_writes=True,
        )
        return _State(
            size=size,
            rows=self._kernels.CheckRows(last=self._last_tokens, ring=ring, **on_device),
            places=self._kernels.Places(wide[0], wide[1], wide[2], kv_len),
            slots=tuple(wide[3:]),
            tables=tables,
            layout=layout,
            packet=packet,
            told=begins["turn"],
            staged=[(host, {name: part(host, name).numpy() for name in shapes}) for host in staged],
            host_tables=[np.zeros((size, pages), dtype=np.int32) for _ in tables],
        )
