"""How decode rows are cut into runs of whole tiles of keys: one entry a program, made on the device once a step.

The rows' real lengths decide, not the longest row possible. How many entries there are depends on bounds the host
knows: rows + as many as fill the device; a captured graph therefore serves short and long contexts alike. Keys that
rows share are cut by themselves, into as many runs as the host says (`split_length`). One program a row, each of which
reads all lengths: bound by launch latency.
"""

# mypy: disallow-untyped-defs=False, check-untyped-defs=False, allow-untyped-calls=True

import triton
import triton.language as tl

# Fields of a schedule entry, int32 each: row (-1: nothing to do), keys lo .. hi, first key that may be read, number of
# the run, runs of the row, entry of its first run, position of the query (-1: a row without tokens).
ENTRY_FIELDS = tl.constexpr(8)


@triton.jit(
    do_not_specialize=["rows", "entries", "wanted_runs"],
    do_not_specialize_on_alignment=["schedule_ptr", "kv_len_ptr", "q_pos_ptr", "shared_ptr"],
)
def schedule_kernel(
    schedule_ptr,
    kv_len_ptr,
    q_pos_ptr,
    shared_ptr,
    rows,
    entries,
    wanted_runs,
    window,
    BLOCK_R: tl.constexpr,
    BLOCK_N: tl.constexpr,
    MIN_TILES: tl.constexpr,
    MAX_RUNS: tl.constexpr,
    WINDOW: tl.constexpr,
    CAUSAL: tl.constexpr,
    NEW: tl.constexpr,
    SHARED: tl.constexpr,
):
    """Grid (rows): each writes the entries of its row, the first also those that stay empty.

    kv_len int32 [rows], q_pos int64 [rows], shared int32 [rows]; schedule int32 [entries, ENTRY_FIELDS]. A run is as
    many tiles long as gives `wanted_runs` over all rows, at least MIN_TILES, and a row has at most MAX_RUNS, which one
    program must weigh; rows + wanted_runs entries always suffice. NEW: a row's newest key is not in the pages yet.
    """
    own = tl.program_id(0)
    row = tl.arange(0, BLOCK_R)
    valid = row < rows
    end = tl.load(kv_len_ptr + row, mask=valid, other=0)
    position = tl.load(q_pos_ptr + row, mask=valid, other=0).to(tl.int32)
    position = tl.where(end > 0, position, -1)
    if CAUSAL:
        end = tl.minimum(end, position + 1)
    if NEW:
        end = tl.minimum(end, tl.maximum(position, 0))
    first = tl.zeros([BLOCK_R], tl.int32)
    if WINDOW:
        first = tl.maximum(position - window + 1, 0)
    if SHARED:
        first = tl.load(shared_ptr + row, mask=valid, other=0)
    first = tl.minimum(first, end)
    start = first // BLOCK_N * BLOCK_N
    tiles = (end - start + BLOCK_N - 1) // BLOCK_N
    length = tl.maximum((tl.sum(tiles, 0) + wanted_runs - 1) // wanted_runs, MIN_TILES)
    length = tl.maximum(length, (tiles + MAX_RUNS - 1) // MAX_RUNS)
    runs = tl.maximum((tiles + length - 1) // length, 1)
    each = tl.maximum((tiles + runs - 1) // runs, 1)  # the same number of runs, evenly cut
    runs = tl.where(valid, tl.maximum((tiles + each - 1) // each, 1), 0)
    base = tl.sum(tl.where(row < own, runs, 0), 0)
    here = row == own
    own_runs = tl.sum(tl.where(here, runs, 0), 0)
    own_start = tl.sum(tl.where(here, start, 0), 0)
    own_first = tl.sum(tl.where(here, first, 0), 0)
    own_end = tl.sum(tl.where(here, end, 0), 0)
    own_keys = tl.sum(tl.where(here, each, 0), 0) * BLOCK_N
    own_position = tl.sum(tl.where(here, position, 0), 0)
    for at in range(0, own_runs, 32):
        run = at + tl.arange(0, 32)
        entry = schedule_ptr + (base + run) * ENTRY_FIELDS
        mask = run < own_runs
        lo = own_start + run * own_keys
        tl.store(entry, own + run * 0, mask=mask)
        tl.store(entry + 1, lo, mask=mask)
        tl.store(entry + 2, tl.minimum(lo + own_keys, own_end), mask=mask)
        tl.store(entry + 3, own_first + run * 0, mask=mask)
        tl.store(entry + 4, run, mask=mask)
        tl.store(entry + 5, own_runs + run * 0, mask=mask)
        tl.store(entry + 6, base + run * 0, mask=mask)
        tl.store(entry + 7, own_position + run * 0, mask=mask)
    if own == 0:
        for at in range(tl.sum(runs, 0), entries, 32):
            empty = at + tl.arange(0, 32)
            tl.store(schedule_ptr + empty * ENTRY_FIELDS, empty * 0 - 1, mask=empty < entries)


@triton.jit
def split_length(end, num_splits, BLOCK_N: tl.constexpr, MIN_TILES: tl.constexpr):
    """Keys of each of at most `num_splits` runs of whole tiles that cover keys 0 .. end."""
    tiles = (end + BLOCK_N - 1) // BLOCK_N
    return tl.maximum((tiles + num_splits - 1) // num_splits, MIN_TILES) * BLOCK_N
