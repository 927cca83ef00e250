"""Attention of rows with any number of query tokens (prompt chunks, draft verification) over paged keys and values.

Grid (query tiles, KV heads x head tiles). A tile holds BLOCK_M rows of (query token, query head of one KV head), so
that short pieces and grouped heads fill it too. Tiles of all rows are numbered through: row r owns the numbers from
q_start[r] // tokens + r on, a bound that needs no host knowledge of the lengths; a program finds its row by counting,
and numbers nobody owns return at once. Tiles are taken from the last to the first because late ones see more keys.
Keys before the tile's first query need no mask and may run in a loop of their own. Bound by tensor-core rate for long
chunks, by the bytes of keys and values for short ones; 410 TFLOP/s on an H200 at head size 128 (torch's own attention
over dense keys: 615).
"""

# mypy: disallow-untyped-defs=False, check-untyped-defs=False, allow-untyped-calls=True

import triton
import triton.language as tl

from octavo.kernels.attention_codes import attend_pages
from octavo.kernels.attention_tile import tile_pages


@triton.jit
def find_row(q_start_ptr, number, first_row, num_rows, TOKENS: tl.constexpr):
    """The row in [first_row, num_rows) that owns tile `number`, counted from q_start, 128 rows at a time."""
    origin = tl.load(q_start_ptr + first_row)
    owners = 0
    for at in range(first_row, num_rows, 128):
        row = at + tl.arange(0, 128)
        starts = tl.load(q_start_ptr + row, mask=row < num_rows, other=0)
        first_tile = (starts - origin) // TOKENS + (row - first_row)
        owners += tl.sum(((row < num_rows) & (first_tile <= number)).to(tl.int32), 0)
    return first_row + owners - 1


@triton.jit
def find_tile(q_start_ptr, number, first_row, num_rows, TOKENS: tl.constexpr):
    """Of tile `number`: (its row, its first query, which may lie beyond the row, the end of the row's queries)."""
    row = find_row(q_start_ptr, number, first_row, num_rows, TOKENS)
    origin = tl.load(q_start_ptr + first_row)
    q_begin = tl.load(q_start_ptr + row)
    q_end = tl.load(q_start_ptr + row + 1)
    return row, q_begin + (number - ((q_begin - origin) // TOKENS + row - first_row)) * TOKENS, q_end


@triton.jit
def lanes(begin, end, head_tile, BLOCK_M: tl.constexpr, HEADS: tl.constexpr, GROUP: tl.constexpr):
    """Of a tile's rows [BLOCK_M]: (query from `begin` on, head in its group, whether both exist); neighbours are the
    HEADS heads of one query."""
    lane = tl.arange(0, BLOCK_M)
    query = begin + lane // HEADS
    in_group = head_tile * HEADS + lane % HEADS
    return query, in_group, (query < end) & (lane < BLOCK_M // HEADS * HEADS) & (in_group < GROUP)


@triton.jit(
    do_not_specialize=["first_row", "num_rows", "table_stride"],
    do_not_specialize_on_alignment=["table_ptr", "kv_len_ptr", "q_pos_ptr", "q_start_ptr"],
)
def prefill_kernel(
    q_ptr,
    k_ptr,
    v_ptr,
    k_scale_ptr,
    v_scale_ptr,
    out_ptr,
    lse_ptr,
    table_ptr,
    q_start_ptr,
    kv_len_ptr,
    q_pos_ptr,
    first_row,
    num_rows,
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
    HEADS: tl.constexpr,
    DIM: tl.constexpr,
    V_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_V: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    PAGE_SIZE: tl.constexpr,
    WINDOW: tl.constexpr,
    SOFTCAP: tl.constexpr,
    CAUSAL: tl.constexpr,
    LSE: tl.constexpr,
    PEEL: tl.constexpr,
    PRECISION: tl.constexpr,
    KV: tl.constexpr,
    WIDE: tl.constexpr,
):
    """HEADS query heads of a group and BLOCK_M // HEADS tokens share a tile. out [T, Hq, Dv], lse [T, Hq] natural.

    PEEL: keys that every query of the tile sees take a loop without masks.
    """
    TOKENS: tl.constexpr = BLOCK_M // HEADS
    HEAD_TILES: tl.constexpr = (GROUP + HEADS - 1) // HEADS
    number = tl.num_programs(0) - 1 - tl.program_id(0)
    row, tile_begin, q_end = find_tile(q_start_ptr, number, first_row, num_rows, TOKENS)
    if tile_begin >= q_end:
        return

    kv_head = (tl.program_id(1) // HEAD_TILES).to(tl.int64)
    token, in_group, valid = lanes(tile_begin, q_end, tl.program_id(1) % HEAD_TILES, BLOCK_M, HEADS, GROUP)
    head = kv_head * GROUP + in_group
    token = token.to(tl.int64)

    kv_len = tl.load(kv_len_ptr + row)
    position = tl.load(q_pos_ptr + token, mask=valid, other=0).to(tl.int32)
    row_last = tl.zeros([BLOCK_M], tl.int32) + (kv_len - 1)
    if CAUSAL:
        row_last = tl.minimum(row_last, position)
    end_key = tl.max(tl.where(valid, row_last, -1), 0) + 1
    row_first = tl.zeros([BLOCK_M], tl.int32)
    first_key = 0
    if WINDOW:
        row_first = tl.maximum(position - window + 1, 0)
        first_key = tl.min(tl.where(valid, row_first, end_key), 0)

    col_d = tl.arange(0, BLOCK_D)
    col_v = tl.arange(0, BLOCK_V)
    q_tile = q_ptr + token[:, None] * q_token_stride + head[:, None] * q_head_stride + col_d[None, :]
    q = tl.load(q_tile, mask=valid[:, None] & (col_d < DIM)[None, :], other=0.0)
    k_base = k_ptr + kv_head * k_head_stride
    v_base = v_ptr + kv_head * v_head_stride
    SCALE_STRIDE: tl.constexpr = Q_HEADS // GROUP * PAGE_SIZE
    k_scale_base = k_scale_ptr + kv_head * PAGE_SIZE
    v_scale_base = v_scale_ptr + kv_head * PAGE_SIZE
    table_ptr += row.to(tl.int64) * table_stride
    acc = tl.zeros([BLOCK_M, BLOCK_V], tl.float32)
    peak = tl.full([BLOCK_M], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    lo = first_key // BLOCK_N * BLOCK_N
    if PEEL:
        page = tile_pages(table_ptr, lo, first_key, end_key, PAGE_SIZE, BLOCK_N)
        common = (tl.min(tl.where(valid, row_last, end_key), 0) + 1) // BLOCK_N * BLOCK_N
        acc, peak, total = attend_pages(
            acc, peak, total, q, k_base, v_base, k_scale_base, v_scale_base, table_ptr, page,
            lo, common, first_key, end_key, row_first, row_last,
            k_page_stride, k_slot_stride, v_page_stride, v_slot_stride, SCALE_STRIDE, scale, softcap,
            DIM, V_DIM, BLOCK_D, BLOCK_V, BLOCK_N, PAGE_SIZE, SOFTCAP, False, PRECISION, KV, WIDE,
        )  # fmt: skip
        lo = common
    page = tile_pages(table_ptr, lo, first_key, end_key, PAGE_SIZE, BLOCK_N)
    acc, peak, total = attend_pages(
        acc, peak, total, q, k_base, v_base, k_scale_base, v_scale_base, table_ptr, page,
        lo, end_key, first_key, end_key, row_first, row_last,
        k_page_stride, k_slot_stride, v_page_stride, v_slot_stride, SCALE_STRIDE, scale, softcap,
        DIM, V_DIM, BLOCK_D, BLOCK_V, BLOCK_N, PAGE_SIZE, SOFTCAP, True, PRECISION, KV, WIDE,
    )  # fmt: skip

    divisor = tl.where(total == 0.0, 1.0, total)
    values = acc / divisor[:, None]
    target = token * Q_HEADS + head
    out_mask = valid[:, None] & (col_v < V_DIM)[None, :]
    tl.store(out_ptr + target[:, None] * V_DIM + col_v[None, :], values.to(out_ptr.dtype.element_ty), mask=out_mask)
    if LSE:
        tl.store(lse_ptr + target, (peak + tl.log2(divisor)) * 0.6931471805599453, mask=valid)
