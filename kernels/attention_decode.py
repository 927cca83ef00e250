"""Split-KV attention of one query token a row over paged keys and values (Flash-Decoding), in one launch.

The grid (entries, KV heads x head tiles) has one program a head for each entry of a schedule that cuts rows into runs
of whole tiles (attention_schedule.py). The query heads of a KV head form the rows of one tensor-core tile, so every key
is read from memory once. Where dots would not reach tensor cores (float32, devices before 8.0) a program takes one
query head and multiplies and adds on vectors. A row that is one run is written at once. Else each run leaves a partial
result, and whichever of a row's programs ends last weighs them (attention_merge.py) and sets the counter of arrivals
back to zero for the next launch.

NEW: the newest key and value come from the step's projection, not from the pages; the row's last run rotates them,
attends to them and stores them, every program rotates its own queries. EARLY: a program starts while the projection
still runs (dependent launch), reads its entry, asks for its first keys and values, which are older than the step, and
waits only then; with a shared prefix, whose kernel has waited for the projection, it runs beside that kernel and waits
for its results where they are weighed. KV: pages hold 8-bit codes (words of two for dots, else bytes) and scales beside
them; the newest key and value are rounded like all others before anything attends to them.

Bound by the bytes of the keys and values read at many rows (4.0 of a copy's 4.3 TB/s on an H200, 64 rows of 2,176
tokens at 8 x 128), by the chain of dependent loads at few.
"""

# mypy: disallow-untyped-defs=False, check-untyped-defs=False, allow-untyped-calls=True

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from octavo.kernels.attention_codes import attend_pages
from octavo.kernels.attention_merge import LSE_COPIES, merge_runs
from octavo.kernels.attention_rope import load_rotated
from octavo.kernels.attention_schedule import ENTRY_FIELDS, split_length
from octavo.kernels.attention_tile import aligned, prefetch_rows, softcapped, tile_offsets, tile_pages
from octavo.kernels.kv_codes import decode, pairs, rounded


@triton.jit(
    do_not_specialize=["rows", "prefix_splits", "table_stride", "k_new_token_stride", "v_new_token_stride"],
    do_not_specialize_on_alignment=["table_ptr", "slots_ptr", "schedule_ptr", "counter_ptr"],
)
def decode_kernel(
    q_ptr,
    k_ptr,
    v_ptr,
    k_scale_ptr,
    v_scale_ptr,
    out_ptr,
    lse_ptr,
    partial_ptr,
    partial_lse_ptr,
    prefix_ptr,
    prefix_lse_ptr,
    counter_ptr,
    schedule_ptr,
    table_ptr,
    k_new_ptr,
    v_new_ptr,
    cos_sin_ptr,
    slots_ptr,
    q_weight_ptr,
    k_weight_ptr,
    eps,
    rows,
    prefix_splits,
    table_stride,
    q_token_stride,
    q_head_stride,
    k_page_stride,
    k_head_stride,
    k_slot_stride,
    v_page_stride,
    v_head_stride,
    v_slot_stride,
    k_new_token_stride,
    k_new_head_stride,
    v_new_token_stride,
    v_new_head_stride,
    scale,
    softcap,
    Q_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    DIM: tl.constexpr,
    V_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_V: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_G: tl.constexpr,
    UNROLL: tl.constexpr,
    PAGE_SIZE: tl.constexpr,
    SOFTCAP: tl.constexpr,
    SHARED: tl.constexpr,
    PREFIX_N: tl.constexpr,
    PREFIX_MIN_TILES: tl.constexpr,
    LSE: tl.constexpr,
    DOT: tl.constexpr,
    PRECISION: tl.constexpr,
    NEW: tl.constexpr,
    HALF: tl.constexpr,
    NORM: tl.constexpr,
    ROUND_FIRST: tl.constexpr,
    EARLY: tl.constexpr,
    KV: tl.constexpr,
    WIDE: tl.constexpr,
):
    """out [R, Hq, Dv], lse [R, Hq] natural; counter int32 [R, programs a row].

    partial float32 [entries, Hq, Dv] and base-2 [entries, Hq, LSE_COPIES]; prefix the same of [prefix_splits, R, ...].
    """
    entry = schedule_ptr + tl.program_id(0) * ENTRY_FIELDS
    row = tl.load(entry).to(tl.int64)
    if row < 0:
        return
    lo = tl.load(entry + 1)
    hi = tl.load(entry + 2)
    first = tl.load(entry + 3)
    run = tl.load(entry + 4)
    runs = tl.load(entry + 5)
    base = tl.load(entry + 6).to(tl.int64)
    position = tl.load(entry + 7)

    HEAD_TILES: tl.constexpr = (GROUP + BLOCK_M - 1) // BLOCK_M
    kv_head = (tl.program_id(1) // HEAD_TILES).to(tl.int64)
    head_tile = tl.program_id(1) % HEAD_TILES
    in_group = head_tile * BLOCK_M + tl.arange(0, BLOCK_M)
    head_mask = in_group < GROUP
    head = kv_head * GROUP + in_group
    col_d = tl.arange(0, BLOCK_D)
    col_v = tl.arange(0, BLOCK_V)
    k_base = k_ptr + kv_head * k_head_stride
    v_base = v_ptr + kv_head * v_head_stride
    SCALE_STRIDE: tl.constexpr = Q_HEADS // GROUP * PAGE_SIZE
    k_scale_base = k_scale_ptr + kv_head * PAGE_SIZE
    v_scale_base = v_scale_ptr + kv_head * PAGE_SIZE
    table_ptr += row * table_stride
    page = tile_pages(table_ptr, lo, first, hi, PAGE_SIZE, BLOCK_N)
    # With a shared prefix it is launched when all of the prefix's programs have waited for the projection, and runs
    # beside them: only what weighs their results waits for them.
    BESIDE: tl.constexpr = EARLY and SHARED
    if EARLY:  # cached keys and values are older than the step, and so is the schedule: no need to wait for the queries
        if lo < hi:
            offset = tile_offsets(lo, PAGE_SIZE, BLOCK_N)
            SIZE: tl.constexpr = 1 if KV else k_ptr.dtype.element_ty.primitive_bitwidth // 8
            if DIM * SIZE % 16 == 0 and V_DIM * SIZE % 16 == 0:
                prefetch_rows(k_base + page * k_page_stride + offset * k_slot_stride, DIM * SIZE)
                prefetch_rows(v_base + page * v_page_stride + offset * v_slot_stride, V_DIM * SIZE)
            if KV:  # the 16 bytes that a scale is in
                scale_at = page * SCALE_STRIDE + offset
                prefetch_rows(aligned(k_scale_base + scale_at), 16)
                prefetch_rows(aligned(v_scale_base + scale_at), 16)
        if not BESIDE:
            gdc_wait()
        gdc_launch_dependents()

    q_heads = q_ptr + row * q_token_stride + head * q_head_stride
    if NEW:
        at = tl.maximum(position, 0) + tl.zeros([1], tl.int32)
        newest = (run == runs - 1) & (position >= 0)
        lone = tl.zeros([1], tl.int64)
        k_head = k_new_ptr + row * k_new_token_stride + kv_head * k_new_head_stride + lone
        q = load_rotated(
            q_heads, head_mask, at, cos_sin_ptr, q_weight_ptr, eps, DIM, BLOCK_D, HALF, NORM, ROUND_FIRST, BESIDE
        )  # fmt: skip
        k_new = load_rotated(
            k_head, lone + newest.to(tl.int64) > 0, at, cos_sin_ptr, k_weight_ptr, eps,
            DIM, BLOCK_D, HALF, NORM, ROUND_FIRST, BESIDE,
        )  # fmt: skip
        v_new = tl.load(
            v_new_ptr + row * v_new_token_stride + kv_head * v_new_head_stride + col_v[None, :],
            mask=(col_v < tl.where(newest, V_DIM, 0))[None, :],
            other=0.0,
            cache_modifier=".cg" if BESIDE else "",
        )
        slot = tl.load(slots_ptr + row)
        stores = newest & (head_tile == 0)
        k_slot = k_base + slot // PAGE_SIZE * k_page_stride + slot % PAGE_SIZE * k_slot_stride
        v_slot = v_base + slot // PAGE_SIZE * v_page_stride + slot % PAGE_SIZE * v_slot_stride
        if KV:
            k_new, k_codes, k_scale = rounded(k_new, KV)
            v_new, v_codes, v_scale = rounded(v_new, KV)
            UNIT: tl.constexpr = 2 if DOT else 1
            if DOT:
                k_codes = pairs(k_codes)
                v_codes = pairs(v_codes)
            k_col = tl.arange(0, BLOCK_D // UNIT)
            v_col = tl.arange(0, BLOCK_V // UNIT)
            tl.store(k_slot + k_col[None, :], k_codes, mask=(k_col < tl.where(stores, DIM // UNIT, 0))[None, :])
            tl.store(v_slot + v_col[None, :], v_codes, mask=(v_col < tl.where(stores, V_DIM // UNIT, 0))[None, :])
            at_scale = slot // PAGE_SIZE * SCALE_STRIDE + slot % PAGE_SIZE + lone
            tl.store(k_scale_base + at_scale, k_scale, mask=lone + stores.to(tl.int64) > 0)
            tl.store(v_scale_base + at_scale, v_scale, mask=lone + stores.to(tl.int64) > 0)
        else:
            k_new = k_new.to(k_ptr.dtype.element_ty)
            v_new = v_new.to(v_ptr.dtype.element_ty)
            tl.store(k_slot + col_d[None, :], k_new, mask=(col_d < tl.where(stores, DIM, 0))[None, :])
            tl.store(v_slot + col_v[None, :], v_new, mask=(col_v < tl.where(stores, V_DIM, 0))[None, :])
        own_score = tl.sum(q.to(tl.float32) * k_new.to(tl.float32), 1)
        if SOFTCAP:
            own_score = softcapped(own_score, scale, softcap)
        else:
            own_score = own_score * (scale * 1.4426950408889634)
        peak = tl.where(newest, own_score, float("-inf"))
        total = tl.where(newest, 1.0, 0.0) + tl.zeros([BLOCK_M], tl.float32)
        acc = v_new.to(tl.float32) + tl.zeros([BLOCK_M, BLOCK_V], tl.float32)
    else:
        q_mask = head_mask[:, None] & (col_d < DIM)[None, :]
        q = tl.load(q_heads[:, None] + col_d[None, :], mask=q_mask, other=0.0, cache_modifier=".cg" if BESIDE else "")
        acc = tl.zeros([BLOCK_M, BLOCK_V], tl.float32)
        peak = tl.full([BLOCK_M], float("-inf"), tl.float32)
        total = tl.zeros([BLOCK_M], tl.float32)

    if DOT:
        row_first = tl.zeros([BLOCK_M], tl.int32) + first
        row_last = tl.zeros([BLOCK_M], tl.int32) + (hi - 1)
        acc, peak, total = attend_pages(
            acc, peak, total, q, k_base, v_base, k_scale_base, v_scale_base, table_ptr, page,
            lo, hi, first, hi, row_first, row_last,
            k_page_stride, k_slot_stride, v_page_stride, v_slot_stride, SCALE_STRIDE, scale, softcap,
            DIM, V_DIM, BLOCK_D, BLOCK_V, BLOCK_N, PAGE_SIZE, SOFTCAP, True, PRECISION, KV, WIDE,
        )  # fmt: skip
    else:
        tl.static_assert(BLOCK_M == 1)
        vector = q.to(tl.float32)  # [1, BLOCK_D]
        for at_key in range(lo, hi, BLOCK_N):
            at_key = tl.multiple_of(at_key, BLOCK_N)
            cols = at_key + tl.arange(0, BLOCK_N)
            seen = (cols >= first) & (cols < hi)
            offset = tile_offsets(at_key, PAGE_SIZE, BLOCK_N)
            k_tile = k_base + (page * k_page_stride + offset * k_slot_stride)[:, None] + col_d[None, :]
            v_tile = v_base + (page * v_page_stride + offset * v_slot_stride)[:, None] + col_v[None, :]
            k = tl.load(k_tile, mask=seen[:, None] & (col_d < DIM)[None, :], other=0)
            v = tl.load(v_tile, mask=seen[:, None] & (col_v < V_DIM)[None, :], other=0)
            if KV:
                scales_at = page * SCALE_STRIDE + offset
                scores = tl.sum(decode(k, KV) * vector, 1) * tl.load(k_scale_base + scales_at, mask=seen, other=0.0)
                values = decode(v, KV) * tl.load(v_scale_base + scales_at, mask=seen, other=0.0)[:, None]
            else:
                scores = tl.sum(k.to(tl.float32) * vector, 1)
                values = v.to(tl.float32)
            page = tile_pages(table_ptr, at_key + BLOCK_N, first, hi, PAGE_SIZE, BLOCK_N)
            if SOFTCAP:
                scores = softcapped(scores, scale, softcap)
            else:
                scores = scores * (scale * 1.4426950408889634)
            scores = tl.where(seen, scores, float("-inf"))
            new_peak = tl.maximum(peak, tl.max(scores, 0))
            weights = tl.exp2(scores - new_peak)
            decay = tl.exp2(peak - new_peak)
            total = total * decay + tl.sum(weights, 0)
            acc = acc * decay[:, None] + tl.sum(weights[:, None] * values, 0)[None, :]
            peak = new_peak

    divisor = tl.where(total == 0.0, 1.0, total)
    values = acc / divisor[:, None]
    base2 = peak + tl.log2(divisor)  # without keys the peak is -inf, and so is the sum
    mask = head_mask[:, None] & (col_v < V_DIM)[None, :]
    prefix_runs = 0
    if SHARED:
        length = split_length(first, prefix_splits, PREFIX_N, PREFIX_MIN_TILES)
        prefix_runs = (first + length - 1) // length
    if runs + prefix_runs == 1:
        target = row * Q_HEADS + head
        tl.store(out_ptr + target[:, None] * V_DIM + col_v[None, :], values.to(out_ptr.dtype.element_ty), mask=mask)
        if LSE:
            tl.store(lse_ptr + target, base2 * 0.6931471805599453, mask=head_mask)
    else:
        target = (base + run) * Q_HEADS + head
        copies = tl.arange(0, LSE_COPIES)[None, :]
        tl.store(partial_lse_ptr + target[:, None] * LSE_COPIES + copies, base2[:, None], mask=head_mask[:, None])
        tl.store(partial_ptr + target[:, None] * V_DIM + col_v[None, :], values, mask=mask)
        tl.debug_barrier()  # the whole program's results are written before its arrival is counted
        counter = counter_ptr + row * tl.num_programs(1) + tl.program_id(1)
        arrived = tl.atomic_add(counter, 1, sem="acq_rel")
        if arrived == runs - 1:
            tl.store(counter, 0)
            if BESIDE:
                gdc_wait()
            merge_runs(
                out_ptr, lse_ptr, partial_ptr, partial_lse_ptr, prefix_ptr, prefix_lse_ptr,
                row, base, runs, rows * Q_HEADS, prefix_runs, kv_head * GROUP, head_tile * BLOCK_M,
                Q_HEADS, GROUP, V_DIM, BLOCK_V, BLOCK_M, BLOCK_G, UNROLL, SHARED, LSE,
            )  # fmt: skip
