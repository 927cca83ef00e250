"""A planned step as tensors, and what comes back from it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from octavo.engine.attention.base import Layout
from octavo.engine.request import TokenLogprob
from octavo.engine.schedule.plan import StepPlan

UNKNOWN = -1  # in place of a token id
NOT_FINITE = -2  # in place of a chosen one: the row's scores were NaN or infinite (the same in kernels/rows.py)


@dataclass(frozen=True, slots=True)
class StepResult:
    """Results in the order of the plan's rows. `tokens` is empty where nothing was sampled and may have several where
    a step was repeated; `finite` is False where, after those tokens, the row's hidden states or scores were NaN or
    infinite; `logprobs` has one entry a token or none; `prompt_logprobs` are the scored prompt tokens of this step."""

    tokens: tuple[tuple[int, ...], ...]
    finite: tuple[bool, ...]
    logprobs: tuple[tuple[TokenLogprob, ...], ...]
    prompt_logprobs: tuple[tuple[TokenLogprob, ...], ...]
    device_s: float | None = None  # how long the device was busy with it, repetitions included
    errors: Mapping[int, str] = field(default_factory=dict)  # why a row alone failed, where it was not its scores


@dataclass(frozen=True, slots=True)
class StepInputs:
    """Device tensors of one step: token_ids and positions int64 [T], and where they stand."""

    token_ids: Tensor
    positions: Tensor
    layout: Layout


class _Seen(NamedTuple):
    """What of a request was last copied into a row."""

    epoch: int = -1
    changed: int = 0
    replaced: int = 0
    lengths: tuple[int, ...] = ()


class PageTables:
    """Host copies of every row's page tables, one a cache group: int32 [rows, pages], rewritten only where changed."""

    def __init__(self, num_groups: int, num_rows: int, num_pages: int) -> None:
        self.tables = [np.zeros((num_rows, num_pages), dtype=np.int32) for _ in range(num_groups)]
        self._seen = [_Seen()] * num_rows

    def update(self, plan: StepPlan) -> None:
        """Brings the rows of a plan up to date."""
        for work in plan.rows:
            request = work.request
            assert request.row is not None
            seen = self._seen[request.row]
            if seen.epoch == request.epoch and seen.changed == request.pages_changed:
                continue
            grown = seen.epoch == request.epoch and seen.replaced == request.pages_replaced
            for group, (table, pages) in enumerate(zip(self.tables, request.pages, strict=True)):
                begin = seen.lengths[group] if grown else 0
                table[request.row, begin : len(pages)] = pages[begin:]
            lengths = tuple(map(len, request.pages))
            self._seen[request.row] = _Seen(request.epoch, request.pages_changed, request.pages_replaced, lengths)


def make_inputs(plan: StepPlan, tables: PageTables, page_size: int, device: torch.device) -> StepInputs:
    """Lays a plan's tokens out as one flat batch; one copy to the device for each integer width.

    A token that a step under way is still choosing is UNKNOWN: the device has it, the host does not. In a plan with
    guesses every token is laid out as a decode row of its own: keys are written before any is read, so each sees
    exactly those before it.
    """
    tables.update(plan)
    if plan.num_decode_rows == len(plan.rows):
        return _decode_inputs(plan, tables, page_size, device)
    rows = np.array([work.request.row for work in plan.rows], dtype=np.int64)
    q_lens = np.array([work.count for work in plan.rows], dtype=np.int64)
    begins = np.array([work.begin for work in plan.rows], dtype=np.int64)
    num_tokens, num_rows, decodes = int(q_lens.sum()), len(rows), plan.num_decode_rows
    q_start = np.zeros(num_rows + 1, dtype=np.int32)
    np.cumsum(q_lens, out=q_start[1:])
    kv_lens = begins + q_lens

    ids = np.empty(num_tokens, dtype=np.int64)
    for index, work in enumerate(plan.rows[:decodes]):
        known = work.request.tokens
        ids[index] = known[work.begin] if work.begin < len(known) else UNKNOWN
    for index, work in enumerate(plan.rows[decodes:], decodes):
        known = work.request.tokens[work.begin : work.begin + work.certain]
        ids[q_start[index] : q_start[index + 1]] = (*known, *work.draft)
    row_of = np.repeat(rows, q_lens)
    positions = np.arange(num_tokens) + np.repeat(begins - q_start[:-1], q_lens)
    if plan.num_guesses:
        rows, kv_lens, decodes = row_of, positions + 1, num_tokens
        num_rows, q_lens, q_start = num_tokens, np.ones_like(row_of), np.arange(num_tokens + 1, dtype=np.int32)

    num_pages = -(-int(kv_lens.max()) // page_size)
    slots = [table[row_of, positions // page_size].astype(np.int64) * page_size for table in tables.tables]
    offsets = positions % page_size
    wide = _to_device([ids, positions, *(slot + offsets for slot in slots)], device)
    narrow = _to_device(
        [q_start, kv_lens.astype(np.int32), *(table[rows, :num_pages].ravel() for table in tables.tables)], device
    )
    layout = Layout(
        q_start=narrow[0],
        q_pos=wide[1],
        kv_len=narrow[1],
        tables=tuple(table.view(num_rows, num_pages) for table in narrow[2:]),
        write_slots=tuple(wide[2:]),
        page_size=page_size,
        num_rows=num_rows,
        num_tokens=num_tokens,
        num_decode_rows=decodes,
        max_q=int(q_lens.max()),
        max_kv=int(kv_lens.max()),
        shared_writes=plan.num_guesses > 0,
        q_lens=tuple(q_lens.tolist()),
        kv_lens=tuple(kv_lens.tolist()),
    )
    return StepInputs(wide[0], wide[1], layout)


def _decode_inputs(plan: StepPlan, tables: PageTables, page_size: int, device: torch.device) -> StepInputs:
    """A step in which every row has one token, as `make_inputs` lays it out: between the short steps of a CPU every
    call counts."""
    count, begins = len(plan.rows), [work.begin for work in plan.rows]
    rows, kv_lens = [work.row for work in plan.rows], [begin + 1 for begin in begins]
    known = [work.request.tokens for work in plan.rows]
    ids = [tokens[at] if at < len(tokens) else UNKNOWN for tokens, at in zip(known, begins, strict=True)]
    longest = max(kv_lens)
    num_pages = -(-longest // page_size)
    positions = np.array(begins, dtype=np.int64)
    pages, offsets = np.divmod(positions, page_size)
    slots = [table[rows, pages] * np.int64(page_size) + offsets for table in tables.tables]
    wide = _to_device([np.array(ids, dtype=np.int64), positions, *slots], device)
    starts, ends = np.arange(count + 1, dtype=np.int32), np.array(kv_lens, dtype=np.int32)
    narrow = _to_device([starts, ends, *(table[rows, :num_pages].ravel() for table in tables.tables)], device)
    layout = Layout(
        q_start=narrow[0],
        q_pos=wide[1],
        kv_len=narrow[1],
        tables=tuple(table.view(count, num_pages) for table in narrow[2:]),
        write_slots=tuple(wide[2:]),
        page_size=page_size,
        num_rows=count,
        num_tokens=count,
        num_decode_rows=count,
        max_q=1,
        max_kv=longest,
        q_lens=(1,) * count,
        kv_lens=tuple(kv_lens),
    )
    return StepInputs(wide[0], wide[1], layout)


def _to_device(arrays: Sequence[np.ndarray], device: torch.device) -> list[Tensor]:
    """Several arrays of one dtype as tensors on the device, with a single copy."""
    if device.type == "cpu":
        return [torch.from_numpy(np.ascontiguousarray(array)) for array in arrays]
    # Each part starts at a multiple of 16 bytes, as tensors of their own would: kernels load several values at once.
    grain = 16 // arrays[0].itemsize
    begins = np.cumsum([0, *(-(-len(array) // grain) * grain for array in arrays)])
    packed = torch.empty(int(begins[-1]), dtype=torch.from_numpy(arrays[0]).dtype, pin_memory=True)
    view = packed.numpy()
    for begin, array in zip(begins, arrays, strict=False):
        view[begin : begin + len(array)] = array
    moved = packed.to(device, non_blocking=True)
    return [moved[begin : begin + len(array)] for begin, array in zip(begins, arrays, strict=False)]
