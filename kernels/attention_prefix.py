"""Attention of decode rows over pages they share, each page read once for all of them (cascade attention).

Rows whose tables begin with the same physical pages form a span. Grid (row tiles of all spans, KV heads x head tiles,
splits of the shared keys): a tile holds BLOCK_M rows of (batch row, query head of one KV head), every one of which
sees every shared key. The results are partial: float32 values and base-2 log-sum-exps, which the decode kernel weighs
in with those of a row's own keys (Juravsky et al. 2024, Hydragen; Ye et al. 2025, FlashInfer). Lengths and spans are
read on the device; without spans every program returns at once. EARLY: the decode kernel starts as soon as all programs
of this one have seen the queries, and works beside it.
"""

# mypy: disallow-untyped-defs=False, check-untyped-defs=False, allow-untyped-calls=True

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from octavo.kernels.attention_codes import attend_pages
from octavo.kernels.attention_merge import LSE_COPIES
from octavo.kernels.attention_prefill import find_row, lanes
from octavo.kernels.attention_rope import load_rotated
from octavo.kernels.attention_schedule import split_length
from octavo.kernels.attention_tile import tile_pages


@triton.jit(
    do_not_specialize=["rows", "spans", "splits", "table_stride"],
    do_not_specialize_on_alignment=["table_ptr", "order_ptr", "starts_ptr", "shared_ptr", "q_pos_ptr"],
)
def prefix_kernel(
    q_ptr,
    k_ptr,
    v_ptr,
    k_scale_ptr,
    v_scale_ptr,
    partial_ptr,
    partial_lse_ptr,
    table_ptr,
    order_ptr,
    starts_ptr,
    shared_ptr,
    q_pos_ptr,
    cos_sin_ptr,
    q_weight_ptr,
    eps,
    rows,
    spans,
    splits,
    table_stride,
    q_token_stride,
    q_head_stride,
    k_page_stride,
    k_head_stride,
    k_slot_stride,
    v_page_stride,
    v_head_stride,
    v_slot_stride,
    scale,
    softcap,
    Q_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    HEADS: tl.constexpr,
    DIM: tl.constexpr,
    V_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_V: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    MIN_TILES: tl.constexpr,
    PAGE_SIZE: tl.constexpr,
    SOFTCAP: tl.constexpr,
    PRECISION: tl.constexpr,
    NEW: tl.constexpr,
    HALF: tl.constexpr,
    NORM: tl.constexpr,
    ROUND_FIRST: tl.constexpr,
    KV: tl.constexpr,
    WIDE: tl.constexpr,
    EARLY: tl.constexpr,
):
    """partial [splits, R, Hq, Dv], base-2 lse [splits, R, Hq, LSE_COPIES]; NEW: q is not rotated yet."""
    if EARLY:
        gdc_wait()
        gdc_launch_dependents()
    ROWS: tl.constexpr = BLOCK_M // HEADS
    HEAD_TILES: tl.constexpr = (GROUP + HEADS - 1) // HEADS
    number = tl.program_id(0)
    span = find_row(starts_ptr, number, 0, spans, ROWS)
    begin = tl.load(starts_ptr + span)
    end = tl.load(starts_ptr + span + 1)
    tile_begin = begin + (number - ((begin - tl.load(starts_ptr)) // ROWS + span)) * ROWS
    if tile_begin >= end:
        return
    first_row = tl.load(order_ptr + begin).to(tl.int64)
    shared = tl.load(shared_ptr + first_row)
    split = tl.program_id(2)
    length = split_length(shared, splits, BLOCK_N, MIN_TILES)
    lo = split * length
    if lo >= shared:
        return
    hi = tl.minimum(lo + length, shared)

    table_ptr += first_row * table_stride
    page = tile_pages(table_ptr, lo, 0, hi, PAGE_SIZE, BLOCK_N)

    kv_head = (tl.program_id(1) // HEAD_TILES).to(tl.int64)
    place, in_group, valid = lanes(tile_begin, end, tl.program_id(1) % HEAD_TILES, BLOCK_M, HEADS, GROUP)
    row = tl.load(order_ptr + place, mask=valid, other=0).to(tl.int64)
    head = kv_head * GROUP + in_group
    col_d = tl.arange(0, BLOCK_D)
    col_v = tl.arange(0, BLOCK_V)
    q_heads = q_ptr + row * q_token_stride + head * q_head_stride
    if NEW:
        position = tl.maximum(tl.load(q_pos_ptr + row, mask=valid, other=0), 0)
        q = load_rotated(
            q_heads, valid, position, cos_sin_ptr, q_weight_ptr, eps, DIM, BLOCK_D, HALF, NORM, ROUND_FIRST, False
        )  # fmt: skip
    else:
        q = tl.load(q_heads[:, None] + col_d[None, :], mask=valid[:, None] & (col_d < DIM)[None, :], other=0.0)

    k_base = k_ptr + kv_head * k_head_stride
    v_base = v_ptr + kv_head * v_head_stride
    SCALE_STRIDE: tl.constexpr = Q_HEADS // GROUP * PAGE_SIZE
    k_scale_base = k_scale_ptr + kv_head * PAGE_SIZE
    v_scale_base = v_scale_ptr + kv_head * PAGE_SIZE
    acc = tl.zeros([BLOCK_M, BLOCK_V], tl.float32)
    peak = tl.full([BLOCK_M], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    row_first = tl.zeros([BLOCK_M], tl.int32)
    row_last = tl.zeros([BLOCK_M], tl.int32) + (shared - 1)
    acc, peak, total = attend_pages(
        acc, peak, total, q, k_base, v_base, k_scale_base, v_scale_base, table_ptr, page,
        lo, hi, 0, hi, row_first, row_last,
        k_page_stride, k_slot_stride, v_page_stride, v_slot_stride, SCALE_STRIDE, scale, softcap,
        DIM, V_DIM, BLOCK_D, BLOCK_V, BLOCK_N, PAGE_SIZE, SOFTCAP, True, PRECISION, KV, WIDE,
    )  # fmt: skip
    target = (split.to(tl.int64) * rows + row) * Q_HEADS + head
    mask = valid[:, None] & (col_v < V_DIM)[None, :]
    copies = tl.arange(0, LSE_COPIES)[None, :]
    tl.store(
        partial_lse_ptr + target[:, None] * LSE_COPIES + copies, (peak + tl.log2(total))[:, None], mask=valid[:, None]
    )
    tl.store(partial_ptr + target[:, None] * V_DIM + col_v[None, :], acc / total[:, None], mask=mask)
