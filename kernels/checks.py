"""The rows of a step that checks guesses and feeds itself: what each row computes next, and how far it gets.

`spread` runs before the model and `settle` after the sampler, both as one program over all rows of a captured step. A
row checks its newest token and up to `window` guesses that stand behind it, each in a place of its own; what is drawn
after a token is certain as long as everything before it was guessed right. Guesses stand at positions of the text, so
that after a wrong one the next launch goes on with those behind it, without the host. A row is open while its position
lies below its cap, as in kernels/rows.py. Bound by launch latency.

Shapes: B rows of the step with W places each, G guesses at most, S stop ids, N ring slots, R + 1 rows the engine has.
"""

# mypy: disallow-untyped-defs=False, check-untyped-defs=False, allow-untyped-calls=True

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from octavo.kernels.rows import CLOSED, NOT_FINITE


@dataclass(frozen=True, slots=True)
class CheckRows:
    """Tensors of the device that say what every row checks; int64, dense.

    last [R + 1] newest token of each of the engine's rows; rows, positions, caps, windows [B]; firsts [B] the position
    of a row's first guess and counts [B] how many there are; guesses [B, G]; stops [B, S], S a power of two (unused:
    -1); ring [N, B, W] gets the outputs of launch number `turn` [1] at slot turn % N.
    """

    last: Tensor
    rows: Tensor
    positions: Tensor
    caps: Tensor
    windows: Tensor
    firsts: Tensor
    counts: Tensor
    guesses: Tensor
    stops: Tensor
    ring: Tensor
    turn: Tensor

    @property
    def places(self) -> int:
        """W."""
        return self.ring.shape[2]


@dataclass(frozen=True, slots=True)
class Places:
    """What the model gets, row by row: token_ids, positions, rows int64 [B * W] and kv_len int32 [B * W], 0 for a place
    that takes no part."""

    token_ids: Tensor
    positions: Tensor
    rows: Tensor
    kv_len: Tensor


def spread_reference(state: CheckRows, table: Tensor, page_size: int) -> tuple[Places, Tensor]:
    """The places of a launch and their write slots int64 [B * W]; table int32 [B * W, P]. A slot of the trash page is
    that of a place that takes no part."""
    place = torch.arange(state.places, device=table.device)
    positions = state.positions[:, None] + place
    at = positions - state.firsts[:, None]
    guessed = (place > 0) & (place <= state.windows[:, None]) & (at >= 0) & (at < state.counts[:, None])
    takes_part = ((place == 0) | guessed) & (positions < state.caps[:, None])
    guesses = state.guesses.gather(1, at.clamp(0, state.guesses.shape[1] - 1))
    ids = torch.where(guessed, guesses, state.last[state.rows][:, None].expand_as(guesses))
    flat, on = positions.reshape(-1), takes_part.reshape(-1)
    pages = table.gather(1, (flat // page_size).clamp(max=table.shape[1] - 1)[:, None]).squeeze(1).long()
    slots = torch.where(on, pages, 0) * page_size + flat % page_size
    rows = state.rows[:, None].expand_as(positions).reshape(-1)
    return Places(ids.reshape(-1), flat, rows, torch.where(on, flat + 1, 0).int()), slots


def settle_reference(state: CheckRows, places: Places, ids: Tensor, best: Tensor) -> None:
    """Takes the ids int64 [B * W] drawn after every place, whose scores were `best` float32 [B * W], as far as they are
    certain, changing all of `state` but its guesses in place."""
    out = state.ring[int(state.turn) % state.ring.shape[0]]
    for row in range(state.rows.shape[0]):
        alive = True
        for place in range(state.places):
            at = row * state.places + place
            alive = alive and bool(places.kv_len[at] > 0)
            if not alive:
                out[row, place] = CLOSED
                continue
            token, finite = int(ids[at]), bool(torch.isfinite(best[at]))
            out[row, place] = token if finite else NOT_FINITE
            if finite:
                state.last[state.rows[row]] = token
                state.positions[row] += 1
            if not finite or token in state.stops[row].tolist():
                state.caps[row], alive = 0, False
            elif place + 1 < state.places:
                alive = int(places.token_ids[at + 1]) == token
    state.turn.add_(1)


def spread(state: CheckRows, table: Tensor, page_size: int, places: Places, slots: Tensor) -> None:
    """As `spread_reference`, into `places` and `slots`."""
    size = places.token_ids.shape[0]
    _spread_kernel[(1,)](
        state.last, state.rows, state.positions, state.caps, state.windows, state.firsts, state.counts, state.guesses,
        table, places.token_ids, places.positions, places.rows, places.kv_len, slots,
        size, state.guesses.stride(0), table.stride(0), table.shape[1],
        PLACES=state.places, PAGE=page_size, BLOCK=triton.next_power_of_2(size), num_warps=4,
    )  # fmt: skip


def settle(state: CheckRows, places: Places, ids: Tensor, best: Tensor) -> None:
    """As `settle_reference`."""
    size = state.rows.shape[0]
    _settle_kernel[(1,)](
        ids, best, places.token_ids, places.kv_len,
        state.last, state.rows, state.positions, state.caps, state.stops, state.ring, state.turn, size,
        RING=state.ring.shape[0], PLACES=state.places, STOPS=state.stops.shape[1],
        BLOCK=triton.next_power_of_2(size), num_warps=4,
    )  # fmt: skip


@triton.jit(do_not_specialize=["size", "pages", "table_stride", "guess_stride"])
def _spread_kernel(
    last_ptr,
    rows_ptr,
    positions_ptr,
    caps_ptr,
    windows_ptr,
    firsts_ptr,
    counts_ptr,
    guesses_ptr,
    table_ptr,
    ids_ptr,
    place_positions_ptr,
    place_rows_ptr,
    kv_len_ptr,
    slots_ptr,
    size,
    guess_stride,
    table_stride,
    pages,
    PLACES: tl.constexpr,
    PAGE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """One program over all `size` = B * PLACES places, at most BLOCK; shapes as in CheckRows and Places."""
    index = tl.arange(0, BLOCK)
    inside = index < size
    of, place = index // PLACES, index % PLACES
    position = tl.load(positions_ptr + of, mask=inside, other=0) + place
    at = position - tl.load(firsts_ptr + of, mask=inside, other=0)
    window = tl.load(windows_ptr + of, mask=inside, other=0)
    count = tl.load(counts_ptr + of, mask=inside, other=0)
    guessed = inside & (place > 0) & (place <= window) & (at >= 0) & (at < count)
    takes_part = inside & ((place == 0) | guessed) & (position < tl.load(caps_ptr + of, mask=inside, other=0))
    row = tl.load(rows_ptr + of, mask=inside, other=0)
    newest = tl.load(last_ptr + row, mask=inside, other=0)
    guess = tl.load(guesses_ptr + of.to(tl.int64) * guess_stride + at, mask=guessed, other=0)
    page_index = tl.minimum(position // PAGE, pages - 1)
    page = tl.load(table_ptr + index.to(tl.int64) * table_stride + page_index, mask=takes_part, other=0).to(tl.int64)
    tl.store(ids_ptr + index, tl.where(guessed, guess, newest), mask=inside)
    tl.store(place_positions_ptr + index, position, mask=inside)
    tl.store(place_rows_ptr + index, row, mask=inside)
    tl.store(kv_len_ptr + index, tl.where(takes_part, position + 1, 0).to(tl.int32), mask=inside)
    tl.store(slots_ptr + index, page * PAGE + position % PAGE, mask=inside)


@triton.jit(do_not_specialize=["size"])
def _settle_kernel(
    ids_ptr,
    best_ptr,
    guessed_ptr,
    kv_len_ptr,
    last_ptr,
    rows_ptr,
    positions_ptr,
    caps_ptr,
    stops_ptr,
    ring_ptr,
    turn_ptr,
    size,
    RING: tl.constexpr,
    PLACES: tl.constexpr,
    STOPS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """One program over all `size` rows, at most BLOCK, each of which walks its PLACES until one is uncertain."""
    row = tl.arange(0, BLOCK)
    inside = row < size
    turn = tl.load(turn_ptr)
    out_ptr = ring_ptr + (turn % RING) * size * PLACES
    stops = tl.load(stops_ptr + row[:, None] * STOPS + tl.arange(0, STOPS)[None, :], mask=inside[:, None], other=-1)
    taken = tl.zeros([BLOCK], dtype=tl.int64)
    newest = tl.zeros([BLOCK], dtype=tl.int64)
    ended = row < 0
    alive = inside
    for place in range(PLACES):
        at = row * PLACES + place
        alive = alive & (tl.load(kv_len_ptr + at, mask=inside, other=0) > 0)
        token = tl.load(ids_ptr + at, mask=alive, other=0)
        best = tl.load(best_ptr + at, mask=alive, other=0.0)
        finite = (best - best) == 0.0
        tl.store(out_ptr + at, tl.where(alive, tl.where(finite, token, -2), -1), mask=inside)
        sound = alive & finite
        newest = tl.where(sound, token, newest)
        taken += sound.to(tl.int64)
        stopped = tl.max((stops == token[:, None]).to(tl.int32), 1) > 0
        ended = ended | (alive & (stopped | (finite == 0)))
        follows = tl.load(guessed_ptr + at + 1, mask=sound & (place + 1 < PLACES), other=-1)
        alive = sound & (stopped == 0) & (follows == token)
    tl.store(last_ptr + tl.load(rows_ptr + row, mask=inside, other=0), newest, mask=inside & (taken > 0))
    tl.store(positions_ptr + row, tl.load(positions_ptr + row, mask=inside, other=0) + taken, mask=inside)
    cap = tl.load(caps_ptr + row, mask=inside, other=0)
    tl.store(caps_ptr + row, tl.where(ended, 0, cap), mask=inside)
    tl.store(turn_ptr, turn + 1)
