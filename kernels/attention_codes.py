"""The inner loop of attention over pages of 8-bit keys and values: `attend_tiles` with codes and scales.

Codes go to the dots as they are, so a tile's scales touch scores and weights (BLOCK_M x BLOCK_N), never the
BLOCK_N x D elements: a score is multiplied by its key's scale together with the softmax's own factor, a weight by its
value's scale before it is rounded for the second dot. How words of two codes become operands: kv_codes.py.
"""

# mypy: disallow-untyped-defs=False, check-untyped-defs=False, allow-untyped-calls=True

import triton
import triton.language as tl

from octavo.kernels.attention_tile import attend_tiles, softcapped, softmax_step, tile_offsets, tile_pages
from octavo.kernels.kv_codes import FP8, even_codes, odd_codes

# Where 2^120 goes, what FP8 codes lack: into queries and scores, weights and the result.
_QUERY_FACTOR = tl.constexpr(2.0**60)
_SCORE_FACTOR = tl.constexpr(2.0**60)
_WEIGHT_FACTOR = tl.constexpr(2.0**100)
_RESULT_FACTOR = tl.constexpr(2.0**20)


@triton.jit
def attend_words(
    acc,
    peak,
    total,
    q,
    k_base,
    v_base,
    k_scale_base,
    v_scale_base,
    table_ptr,
    page,
    lo,
    hi,
    first_key,
    end_key,
    row_first,
    row_last,
    k_page_stride,
    k_slot_stride,
    v_page_stride,
    v_slot_stride,
    scale_page_stride,
    scale,
    softcap,
    DIM: tl.constexpr,
    V_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_V: tl.constexpr,
    BLOCK_N: tl.constexpr,
    PAGE_SIZE: tl.constexpr,
    SOFTCAP: tl.constexpr,
    MASKED: tl.constexpr,
    PRECISION: tl.constexpr,
    KV: tl.constexpr,
    WIDE: tl.constexpr,
):
    """As `attend_tiles`, over planes of words [pages, Hkv, page_size, D // 2] and scales [pages, Hkv, page_size]."""
    BLOCK_M: tl.constexpr = q.shape[0]
    col_d = tl.arange(0, BLOCK_D // 2)
    col_v = tl.arange(0, BLOCK_V // 2)
    factor = scale * 1.4426950408889634
    if SOFTCAP:
        factor = 1.0
    if KV == FP8:
        q = q.to(tl.float32) * _QUERY_FACTOR
        factor = factor * _SCORE_FACTOR
        acc = acc * (1.0 / _RESULT_FACTOR)
    operand: tl.constexpr = tl.float32 if WIDE else tl.bfloat16
    q_even, q_odd = tl.split(tl.reshape(q.to(operand), [BLOCK_M, BLOCK_D // 2, 2]))
    acc_even, acc_odd = tl.split(tl.reshape(acc, [BLOCK_M, BLOCK_V // 2, 2]))
    for start in range(lo, hi, BLOCK_N):
        start = tl.multiple_of(start, BLOCK_N)
        cols = start + tl.arange(0, BLOCK_N)
        in_range = (cols >= first_key) & (cols < end_key)
        offset = tile_offsets(start, PAGE_SIZE, BLOCK_N)
        k_tile = k_base + (page * k_page_stride + offset * k_slot_stride)[:, None] + col_d[None, :]
        k_scales = k_scale_base + page * scale_page_stride + offset
        if MASKED:
            k = tl.load(k_tile, mask=in_range[:, None] & (col_d < DIM // 2)[None, :], other=0)
            k_scale = tl.load(k_scales, mask=in_range, other=0.0)
        else:
            k = tl.load(k_tile, mask=(col_d < DIM // 2)[None, :], other=0)
            k_scale = tl.load(k_scales)
        scores = tl.dot(q_even, tl.trans(even_codes(k, KV, WIDE)), input_precision=PRECISION)
        scores = tl.dot(q_odd, tl.trans(odd_codes(k, KV, WIDE)), scores, input_precision=PRECISION)
        scores = scores * (k_scale * factor)[None, :]
        if SOFTCAP:
            scores = softcapped(scores, scale, softcap)
        if MASKED:
            seen = (cols[None, :] >= row_first[:, None]) & (cols[None, :] <= row_last[:, None])
            scores = tl.where(seen, scores, float("-inf"))
        weights, decay, peak, total = softmax_step(scores, peak, total, MASKED)
        v_tile = v_base + (page * v_page_stride + offset * v_slot_stride)[:, None] + col_v[None, :]
        v_scales = v_scale_base + page * scale_page_stride + offset
        if MASKED:
            v = tl.load(v_tile, mask=in_range[:, None] & (col_v < V_DIM // 2)[None, :], other=0)
            v_scale = tl.load(v_scales, mask=in_range, other=0.0)
        else:
            v = tl.load(v_tile, mask=(col_v < V_DIM // 2)[None, :], other=0)
            v_scale = tl.load(v_scales)
        if KV == FP8:
            v_scale = v_scale * _WEIGHT_FACTOR
        # a tile ahead, so that the copies of keys and values never wait for the page table
        page = tile_pages(table_ptr, start + BLOCK_N, first_key, end_key, PAGE_SIZE, BLOCK_N)
        weighed = (weights * v_scale[None, :]).to(operand)
        acc_even = tl.dot(weighed, even_codes(v, KV, WIDE), acc_even * decay[:, None], input_precision=PRECISION)
        acc_odd = tl.dot(weighed, odd_codes(v, KV, WIDE), acc_odd * decay[:, None], input_precision=PRECISION)
    acc = tl.reshape(tl.join(acc_even, acc_odd), [BLOCK_M, BLOCK_V])
    if KV == FP8:
        acc = acc * _RESULT_FACTOR
    return acc, peak, total


@triton.jit
def attend_pages(
    acc,
    peak,
    total,
    q,
    k_base,
    v_base,
    k_scale_base,
    v_scale_base,
    table_ptr,
    page,
    lo,
    hi,
    first_key,
    end_key,
    row_first,
    row_last,
    k_page_stride,
    k_slot_stride,
    v_page_stride,
    v_slot_stride,
    scale_page_stride,
    scale,
    softcap,
    DIM: tl.constexpr,
    V_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_V: tl.constexpr,
    BLOCK_N: tl.constexpr,
    PAGE_SIZE: tl.constexpr,
    SOFTCAP: tl.constexpr,
    MASKED: tl.constexpr,
    PRECISION: tl.constexpr,
    KV: tl.constexpr,
    WIDE: tl.constexpr,
):
    """`attend_words` over pages of codes, `attend_tiles` over others, which have no scales."""
    if KV:
        acc, peak, total = attend_words(
            acc, peak, total, q, k_base, v_base, k_scale_base, v_scale_base, table_ptr, page,
            lo, hi, first_key, end_key, row_first, row_last,
            k_page_stride, k_slot_stride, v_page_stride, v_slot_stride, scale_page_stride, scale, softcap,
            DIM, V_DIM, BLOCK_D, BLOCK_V, BLOCK_N, PAGE_SIZE, SOFTCAP, MASKED, PRECISION, KV, WIDE,
        )  # fmt: skip
    else:
        acc, peak, total = attend_tiles(
            acc, peak, total, q, k_base, v_base, table_ptr, page, lo, hi, first_key, end_key, row_first, row_last,
            k_page_stride, k_slot_stride, v_page_stride, v_slot_stride, scale, softcap,
            DIM, V_DIM, BLOCK_D, BLOCK_V, BLOCK_N, PAGE_SIZE, SOFTCAP, MASKED, PRECISION,
        )  # fmt: skip
    return acc, peak, total
