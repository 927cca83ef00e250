"""A product whose input several programs share: each hands in its sums, and the last to come adds them up.

Adding is in the order of the parts, whoever comes last, so results have the same bits every time. The tickets that tell
who is last are 0 before and after a launch.
"""

# mypy: disallow-untyped-defs=False, check-untyped-defs=False, allow-untyped-calls=True

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def summed_by_last(y, u, partial_ptr, tickets_ptr, LINES: tl.constexpr, SPLIT: tl.constexpr):
    """Sums y [rows, outputs] (and u, if LINES is 2) of this block's programs along the third axis of the grid, and
    whether this program is the last of them: others get their own back.

    partial float32 [blocks, SPLIT, LINES, rows, outputs]; tickets int32 [blocks], all 0.
    """
    ROWS: tl.constexpr = y.shape[0]
    OUTPUTS: tl.constexpr = y.shape[1]
    TILE: tl.constexpr = ROWS * OUTPUTS
    block = tl.program_id(1) * tl.num_programs(0) + tl.program_id(0)
    # transposed: neighbours of a thread's sums are of neighbouring rows
    place = tl.arange(0, ROWS)[:, None] + tl.arange(0, OUTPUTS)[None, :] * ROWS
    here = partial_ptr + block.to(tl.int64) * (SPLIT * LINES * TILE) + place
    mine = here + tl.program_id(2) * (LINES * TILE)
    tl.store(mine, y)
    if LINES == 2:
        tl.store(mine + TILE, u)
    tl.debug_barrier()
    last = tl.atomic_add(tickets_ptr + block, 1, sem="acq_rel") == SPLIT - 1
    if last:
        tl.debug_barrier()
        y = tl.load(here, cache_modifier=".cg")
        if LINES == 2:
            u = tl.load(here + TILE, cache_modifier=".cg")
        # not all at once: their registers would keep other programs from the multiprocessor
        for part in tl.range(1, tl.num_programs(2), num_stages=1):
            y += tl.load(here + part * (LINES * TILE), cache_modifier=".cg")
            if LINES == 2:
                u += tl.load(here + part * (LINES * TILE) + TILE, cache_modifier=".cg")
        tl.store(tickets_ptr + block, 0)
    return y, u, last
