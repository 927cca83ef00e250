"""The rows of a decode step that feeds itself: what each row computes next, and what it does with the token it drew.

`prepare` runs before the model and `advance` after the sampler, both as one program over all rows of a captured step
(at most a few hundred); `patch` brings page tables up to date. With them a graph can be replayed again and again
without the host: every launch reads what the one before wrote. A row is open while its position lies below its cap. A
closed one is a no-op: no keys, its write goes to the trash page, its position stays, and its output is CLOSED. Bound by
launch latency.

Shapes: B rows of the step, R + 1 rows the engine has (the last is a dummy), P logical pages, S stop ids, N ring slots.
"""

# mypy: disallow-untyped-defs=False, check-untyped-defs=False, allow-untyped-calls=True

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

CLOSED = -1  # output of a row that did nothing
NOT_FINITE = -2  # output of a row whose scores were NaN or infinite; it is closed then
PATCH_BLOCK = 256


def prepare_reference(
    last: Tensor, rows: Tensor, positions: Tensor, caps: Tensor, table: Tensor, page_size: int
) -> tuple[Tensor, Tensor, Tensor]:
    """(token ids int64 [B], kv_len int32 [B], write slots int64 [B]) of a step.

    last int64 [R + 1] newest token of each of the engine's rows; rows, positions, caps int64 [B]; table int32 [B, P].
    """
    is_open = positions < caps
    pages = table.gather(1, (positions // page_size).clamp(max=table.shape[1] - 1)[:, None]).squeeze(1).long()
    slots = torch.where(is_open, pages, 0) * page_size + positions % page_size
    return last[rows], torch.where(is_open, positions + 1, 0).int(), slots


def advance_reference(
    ids: Tensor,
    best: Tensor,
    last: Tensor,
    rows: Tensor,
    positions: Tensor,
    caps: Tensor,
    stops: Tensor,
    ring: Tensor,
    turn: Tensor,
) -> None:
    """Takes the drawn ids int64 [B] whose scores were `best` float32 [B], changing all the rest in place.

    stops int64 [B, S], S a power of two (unused: -1), close their row; ring int64 [N, B] gets the outputs at slot
    turn % N; turn int64 [1].
    """
    is_open = positions < caps
    finite = torch.isfinite(best)
    ring[int(turn) % ring.shape[0]] = torch.where(is_open, torch.where(finite, ids, NOT_FINITE), CLOSED)
    taken = is_open & finite
    last[rows[taken]] = ids[taken]
    ended = is_open & (~finite | (stops == ids[:, None]).any(1))
    caps.masked_fill_(ended, 0)
    positions += is_open
    turn += 1


def prepare(
    last: Tensor,
    rows: Tensor,
    positions: Tensor,
    caps: Tensor,
    table: Tensor,
    page_size: int,
    token_ids: Tensor,
    kv_len: Tensor,
    slots: Tensor,
) -> None:
    """As `prepare_reference`, into token_ids, kv_len and slots."""
    size = rows.shape[0]
    _prepare_kernel[(1,)](
        last, rows, positions, caps, table, token_ids, kv_len, slots, size, table.stride(0), table.shape[1], page_size,
        BLOCK=triton.next_power_of_2(size), num_warps=4,
    )  # fmt: skip


def advance(
    ids: Tensor,
    best: Tensor,
    last: Tensor,
    rows: Tensor,
    positions: Tensor,
    caps: Tensor,
    stops: Tensor,
    ring: Tensor,
    turn: Tensor,
) -> None:
    """As `advance_reference`."""
    size = rows.shape[0]
    _advance_kernel[(1,)](
        ids, best, last, rows, positions, caps, stops, ring, turn, size, ring.shape[0],
        STOPS=stops.shape[1], BLOCK=triton.next_power_of_2(size), num_warps=4,
    )  # fmt: skip


def patch(table: Tensor, changes: Tensor) -> None:
    """Writes changes int32 [2, N] = (places in the flattened table, values) into a table int32 of any shape."""
    count = changes.shape[1]
    if count:
        _patch_kernel[(triton.cdiv(count, PATCH_BLOCK),)](table, changes, count, BLOCK=PATCH_BLOCK, num_warps=4)


@triton.jit(do_not_specialize=["size", "pages"])
def _prepare_kernel(
    last_ptr,
    rows_ptr,
    positions_ptr,
    caps_ptr,
    table_ptr,
    ids_ptr,
    kv_len_ptr,
    slots_ptr,
    size,
    table_stride,
    pages,
    PAGE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """One program over all `size` rows, at most BLOCK; shapes as in `prepare_reference`."""
    place = tl.arange(0, BLOCK)
    inside = place < size
    position = tl.load(positions_ptr + place, mask=inside, other=0)
    is_open = inside & (position < tl.load(caps_ptr + place, mask=inside, other=0))
    page_index = tl.minimum(position // PAGE, pages - 1)
    page = tl.load(table_ptr + place.to(tl.int64) * table_stride + page_index, mask=is_open, other=0).to(tl.int64)
    row = tl.load(rows_ptr + place, mask=inside, other=0)
    tl.store(ids_ptr + place, tl.load(last_ptr + row, mask=inside, other=0), mask=inside)
    tl.store(kv_len_ptr + place, tl.where(is_open, position + 1, 0).to(tl.int32), mask=inside)
    tl.store(slots_ptr + place, page * PAGE + position % PAGE, mask=inside)


@triton.jit(do_not_specialize=["size"])
def _advance_kernel(
    ids_ptr,
    best_ptr,
    last_ptr,
    rows_ptr,
    positions_ptr,
    caps_ptr,
    stops_ptr,
    ring_ptr,
    turn_ptr,
    size,
    RING: tl.constexpr,
    STOPS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """One program over all `size` rows, at most BLOCK; shapes as in `advance_reference`."""
    place = tl.arange(0, BLOCK)
    inside = place < size
    turn = tl.load(turn_ptr)
    token = tl.load(ids_ptr + place, mask=inside, other=0)
    best = tl.load(best_ptr + place, mask=inside, other=0.0)
    position = tl.load(positions_ptr + place, mask=inside, other=0)
    cap = tl.load(caps_ptr + place, mask=inside, other=0)
    is_open = inside & (position < cap)
    finite = (best - best) == 0.0
    output = tl.where(is_open, tl.where(finite, token, -2), -1)
    tl.store(ring_ptr + (turn % RING) * size + place, output, mask=inside)
    row = tl.load(rows_ptr + place, mask=inside, other=0)
    tl.store(last_ptr + row, token, mask=is_open & finite)
    stop = tl.load(stops_ptr + place[:, None] * STOPS + tl.arange(0, STOPS)[None, :], mask=inside[:, None], other=-1)
    stopped = tl.max((stop == token[:, None]).to(tl.int32), 1) > 0
    tl.store(caps_ptr + place, tl.where(is_open & (stopped | (finite == 0)), 0, cap), mask=inside)
    tl.store(positions_ptr + place, position + is_open.to(tl.int64), mask=inside)
    tl.store(turn_ptr, turn + 1)


@triton.jit(do_not_specialize=["count"])
def _patch_kernel(table_ptr, changes_ptr, count, BLOCK: tl.constexpr):
    """Grid (blocks of BLOCK changes): changes int32 [2, count] = (places, values)."""
    index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = index < count
    place = tl.load(changes_ptr + index, mask=inside, other=0).to(tl.int64)
    tl.store(table_ptr + place, tl.load(changes_ptr + count + index, mask=inside, other=0), mask=inside)
