"""Split-KV attention of one query token a row over paged keys and values (Flash-Decoding), and its merge.

Grid (splits, KV heads x head tiles, rows). A row's keys are cut into at most `splits` runs of whole tiles, so that few
rows still fill the device; the number comes from bounds the host knows, the cut from the row's length in device
memory, and programs without a run return at once: the launch fits into a captured graph. The query heads of a KV head
form the rows of one tensor-core tile, so every key is read from memory once. Where dots would not reach tensor cores
(float32, devices before 8.0) a program takes one query head and multiplies and adds on vectors. Partial results are
float32 (values, base-2 log-sum-exp) and the merge kernel, grid (rows, query heads), weighs them. Bound by the bytes of
the keys and values read: on an H200 (copy 4.3 TB/s) 4.4 TB/s with 64 rows of 8,192 tokens at 8 x 128, 1.9 with one.
"""

# mypy: disallow-untyped-defs=False, check-untyped-defs=False, allow-untyped-calls=True

import triton
import triton.language as tl

from octavo.kernels.attention_tile import attend_tiles, softcapped, tile_offsets, tile_pages


@triton.jit
def visible_keys(kv_len_ptr, q_pos_ptr, row, window, WINDOW: tl.constexpr, CAUSAL: tl.constexpr):
    """(first, end): the keys a decode row attends to; first == end if none."""
    end = tl.load(kv_len_ptr + row)
    position = tl.load(q_pos_ptr + row).to(tl.int32)
    if CAUSAL:
        end = tl.minimum(end, position + 1)
    first = 0
    if WINDOW:
        first = tl.maximum(position - window + 1, 0)
    return tl.minimum(first, end), end


@triton.jit
def split_length(first, end, num_splits, BLOCK_N: tl.constexpr, MIN_TILES: tl.constexpr):
    """(start, keys a split): runs begin at `start`, a tile's edge, and hold whole tiles."""
    start = first // BLOCK_N * BLOCK_N
    tiles = (end - start + BLOCK_N - 1) // BLOCK_N
    return start, tl.maximum((tiles + num_splits - 1) // num_splits, MIN_TILES) * BLOCK_N


@triton.jit(
    do_not_specialize=["num_splits", "table_stride"],
    do_not_specialize_on_alignment=["table_ptr", "kv_len_ptr", "q_pos_ptr"],
)
def decode_kernel(
    q_ptr,
    k_ptr,
    v_ptr,
    out_ptr,
    lse_ptr,
    table_ptr,
    kv_len_ptr,
    q_pos_ptr,
    num_splits,
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
    window,
    Q_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    DIM: tl.constexpr,
    V_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_V: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    MIN_TILES: tl.constexpr,
    PAGE_SIZE: tl.constexpr,
    WINDOW: tl.constexpr,
    SOFTCAP: tl.constexpr,
    CAUSAL: tl.constexpr,
    SPLIT: tl.constexpr,
    LSE: tl.constexpr,
    DOT: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """SPLIT: out is float32 [rows, Hq, splits, Dv], lse base-2 [rows, Hq, splits]; else [rows, Hq, Dv], natural lse."""
    split = tl.program_id(0)
    row = tl.program_id(2).to(tl.int64)
    HEAD_TILES: tl.constexpr = (GROUP + BLOCK_M - 1) // BLOCK_M
    kv_head = (tl.program_id(1) // HEAD_TILES).to(tl.int64)
    in_group = tl.program_id(1) % HEAD_TILES * BLOCK_M + tl.arange(0, BLOCK_M)
    head_mask = in_group < GROUP
    head = kv_head * GROUP + in_group

    first, end = visible_keys(kv_len_ptr, q_pos_ptr, row, window, WINDOW, CAUSAL)
    start, length = split_length(first, end, num_splits, BLOCK_N, MIN_TILES)
    lo = start + split * length
    if SPLIT:  # noqa: SIM102 - only the outer test is decided at compile time
        if lo >= end:
            return
    hi = tl.minimum(lo + length, end)

    col_d = tl.arange(0, BLOCK_D)
    col_v = tl.arange(0, BLOCK_V)
    q_tile = q_ptr + row * q_token_stride + head[:, None] * q_head_stride + col_d[None, :]
    q = tl.load(q_tile, mask=head_mask[:, None] & (col_d < DIM)[None, :], other=0.0)
    k_base = k_ptr + kv_head * k_head_stride
    v_base = v_ptr + kv_head * v_head_stride
    table_ptr += row * table_stride
    if DOT:
        acc = tl.zeros([BLOCK_M, BLOCK_V], tl.float32)
        peak = tl.full([BLOCK_M], float("-inf"), tl.float32)
        total = tl.zeros([BLOCK_M], tl.float32)
        row_first = tl.zeros([BLOCK_M], tl.int32) + first
        row_last = tl.zeros([BLOCK_M], tl.int32) + (end - 1)
        acc, peak, total = attend_tiles(
            acc, peak, total, q, k_base, v_base, table_ptr, lo, hi, first, end, row_first, row_last,
            k_page_stride, k_slot_stride, v_page_stride, v_slot_stride, scale, softcap,
            DIM, V_DIM, BLOCK_D, BLOCK_V, BLOCK_N, PAGE_SIZE, SOFTCAP, True, PRECISION,
        )  # fmt: skip
    else:
        tl.static_assert(BLOCK_M == 1)
        vector = q.to(tl.float32)  # [1, BLOCK_D]
        acc = tl.zeros([1, BLOCK_V], tl.float32)
        peak = tl.full([1], float("-inf"), tl.float32)
        total = tl.zeros([1], tl.float32)
        for at in range(lo, hi, BLOCK_N):
            at = tl.multiple_of(at, BLOCK_N)
            cols = at + tl.arange(0, BLOCK_N)
            seen = (cols >= first) & (cols < end)
            page = tile_pages(table_ptr, at, first, end, PAGE_SIZE, BLOCK_N)
            offset = tile_offsets(at, PAGE_SIZE, BLOCK_N)
            k_tile = k_base + (page * k_page_stride + offset * k_slot_stride)[:, None] + col_d[None, :]
            v_tile = v_base + (page * v_page_stride + offset * v_slot_stride)[:, None] + col_v[None, :]
            k = tl.load(k_tile, mask=seen[:, None] & (col_d < DIM)[None, :], other=0.0)
            v = tl.load(v_tile, mask=seen[:, None] & (col_v < V_DIM)[None, :], other=0.0)
            scores = tl.sum(k.to(tl.float32) * vector, 1)
            if SOFTCAP:
                scores = softcapped(scores, scale, softcap)
            else:
                scores = scores * (scale * 1.4426950408889634)
            scores = tl.where(seen, scores, float("-inf"))
            new_peak = tl.maximum(peak, tl.max(scores, 0))
            weights = tl.exp2(scores - new_peak)
            decay = tl.exp2(peak - new_peak)
            total = total * decay + tl.sum(weights, 0)
            acc = acc * decay[:, None] + tl.sum(weights[:, None] * v.to(tl.float32), 0)[None, :]
            peak = new_peak

    divisor = tl.where(total == 0.0, 1.0, total)
    values = acc / divisor[:, None]
    base2 = peak + tl.log2(divisor)  # without keys the peak is -inf, and so is the sum
    out_mask = head_mask[:, None] & (col_v < V_DIM)[None, :]
    target = row * Q_HEADS + head
    if SPLIT:
        target = target * num_splits + split
        tl.store(lse_ptr + target, base2, mask=head_mask)
    elif LSE:
        tl.store(lse_ptr + target, base2 * 0.6931471805599453, mask=head_mask)
    tl.store(out_ptr + target[:, None] * V_DIM + col_v[None, :], values.to(out_ptr.dtype.element_ty), mask=out_mask)


@triton.jit(do_not_specialize=["num_splits"], do_not_specialize_on_alignment=["kv_len_ptr", "q_pos_ptr"])
def merge_kernel(
    partial_ptr,
    partial_lse_ptr,
    out_ptr,
    lse_ptr,
    kv_len_ptr,
    q_pos_ptr,
    num_splits,
    window,
    Q_HEADS: tl.constexpr,
    V_DIM: tl.constexpr,
    BLOCK_V: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_S: tl.constexpr,
    MIN_TILES: tl.constexpr,
    WINDOW: tl.constexpr,
    CAUSAL: tl.constexpr,
    LSE: tl.constexpr,
):
    """Weighs a row's partial results by exp2(lse); only the runs that `decode_kernel` filled are read."""
    row = tl.program_id(0).to(tl.int64)
    target = row * Q_HEADS + tl.program_id(1)
    first, end = visible_keys(kv_len_ptr, q_pos_ptr, row, window, WINDOW, CAUSAL)
    start, length = split_length(first, end, num_splits, BLOCK_N, MIN_TILES)
    used = (end - start + length - 1) // length
    col_v = tl.arange(0, BLOCK_V)
    acc = tl.zeros([BLOCK_V], tl.float32)
    peak = float("-inf")
    total = 0.0
    for at in range(0, used, BLOCK_S):
        run = at + tl.arange(0, BLOCK_S)
        source = target * num_splits + run
        base2 = tl.load(partial_lse_ptr + source, mask=run < used, other=float("-inf"))
        mask = (run < used)[:, None] & (col_v < V_DIM)[None, :]
        values = tl.load(partial_ptr + source[:, None] * V_DIM + col_v[None, :], mask=mask, other=0.0)
        new_peak = tl.maximum(peak, tl.max(base2, 0))
        weights = tl.exp2(base2 - new_peak)
        decay = tl.exp2(peak - new_peak)
        total = total * decay + tl.sum(weights, 0)
        acc = acc * decay + tl.sum(weights[:, None] * values, 0)
        peak = new_peak
    divisor = tl.where(total == 0.0, 1.0, total)
    values = acc / divisor
    tl.store(out_ptr + target * V_DIM + col_v, values.to(out_ptr.dtype.element_ty), mask=col_v < V_DIM)
    if LSE:
        tl.store(lse_ptr + target, (peak + tl.log2(divisor)) * 0.6931471805599453)
