"""Attention of long prompt pieces over dense keys and values, loaded by the tensor memory accelerator.

Paged attention computes an address for every 16 bytes it loads, with the registers and the instructions that costs. A
long piece reads each key hundreds of times, so its row's keys and values are first laid out densely, one line a token
[keys of all KV heads | values of all KV heads]: where every row is read from its first token, the merged projection
is that already (`rope_write` leaves the rotated keys in it); else `gather_pages` copies each page once. Either way
8-bit codes become the numbers they stand for, in the queries' type. Compute capability 9.0 and newer then load whole
tiles by one instruction each (2-D tensor maps, made on the host).

Grid (KV heads x head tiles, query tiles), tiles numbered through all rows as in attention_prefill.py and taken from
the last to the first, so that the longest ones start first. Keys that every query of a tile sees run in a loop without
masks; the last few, and whatever lies beyond the row's end, are read through masks: a neighbour's NaN stays there.
Small tiles of 4 warps, so that several share a multiprocessor: one multiplies while another computes its softmax.
Bound by tensor-core rate: 530 TFLOP/s on an H200 at head size 128, 430 at 64 (8,192 tokens of one row).
"""

# mypy: disallow-untyped-defs=False, check-untyped-defs=False, allow-untyped-calls=True

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from octavo.kernels.attention_prefill import find_row, find_tile, lanes
from octavo.kernels.device import DeviceTraits
from octavo.kernels.kv_codes import decode
from octavo.kernels.kv_format import KVScales, kernel_planes
from octavo.kernels.paged_attention import ROOMY, AttentionShape, Tile, padded

GATHER_TOKENS = 64  # tokens a gathering program copies
OLDEST_CAPABILITY = 90  # the tensor memory accelerator


@dataclass(frozen=True, slots=True)
class DenseKV:
    """Keys and values of a step's rows, a token a line: row r's are lines starts[r] .. starts[r] + kv_len[r].

    `lines` [L, W] is a view with a dense last axis; the first key head begins at column `k_column`, the first value
    head at `v_column`, heads follow one another. `starts` is int32 [R] at least.
    """

    lines: Tensor
    starts: Tensor
    k_column: int
    v_column: int


def dense_supported(shape: AttentionShape, dtype: torch.dtype, traits: DeviceTraits) -> bool:
    """Whether `dense_attention` computes such a layer on such a device; the page planes must have the same type."""
    return (
        traits.capability >= OLDEST_CAPABILITY
        and dtype in (torch.float16, torch.bfloat16)
        and shape.causal
        and shape.window is None
        and shape.softcap is None
        and shape.scale > 0
        and shape.dim == shape.v_dim
        and shape.dim in (64, 128)
    )


def dense_tile(traits: DeviceTraits) -> Tile:
    """The tile for long pieces; several of them fit a multiprocessor at once."""
    return Tile(m=64, n=64, warps=4, stages=3 if traits.shared_bytes > ROOMY else 2)


def gather_pages(
    k_pages: Tensor,
    v_pages: Tensor,
    table: Tensor,
    kv_len: Tensor,
    starts: Tensor,
    lines: int,
    first_row: int,
    *,
    dtype: torch.dtype | None = None,
    scales: KVScales | None = None,
) -> DenseKV:
    """Copies the cached tokens of rows first_row .. into dense lines; `starts` int32 [R] with starts[first_row] = 0.

    `lines` is the sum of those rows' kv_len. 8-bit codes come with `scales` and become numbers of `dtype`.
    """
    kv_heads, page_size, dim = k_pages.shape[1:]
    v_dim = v_pages.shape[3]
    rows = table.shape[0]
    out = torch.empty((lines, kv_heads * (dim + v_dim)), dtype=dtype or k_pages.dtype, device=k_pages.device)
    tiles = lines // GATHER_TOKENS + rows - first_row
    planes = kernel_planes(k_pages, v_pages, scales, out, words=False)
    gather_kernel[(tiles, kv_heads)](
        *planes.tensors,
        out,
        table,
        kv_len,
        starts,
        first_row,
        rows,
        table.stride(0),
        out.stride(0),
        *planes.strides.values(),
        KV_HEADS=kv_heads,
        DIM=dim,
        V_DIM=v_dim,
        BLOCK_D=padded(dim),
        BLOCK_V=padded(v_dim),
        PAGE_SIZE=page_size,
        TOKENS=GATHER_TOKENS,
        KV=planes.kind,
        num_warps=4,
    )
    return DenseKV(out, starts, 0, kv_heads * dim)


def dense_attention(
    q: Tensor,
    kv: DenseKV,
    q_start: Tensor,
    q_pos: Tensor,
    kv_len: Tensor,
    out: Tensor,
    lse: Tensor | None,
    shape: AttentionShape,
    traits: DeviceTraits,
    *,
    first_row: int,
    num_rows: int,
    num_tokens: int,
) -> None:
    """As `prefill_attention`, over dense keys and values; the shape must be `dense_supported`."""
    rows = num_rows - first_row
    if rows <= 0 or num_tokens <= 0:
        return
    tile = dense_tile(traits)
    heads = min(shape.group, tile.m)
    tiles = num_tokens // (tile.m // heads) + rows
    lines = kv.lines
    tiled = TensorDescriptor(lines, list(lines.shape), list(lines.stride()), [tile.n, shape.dim])
    dense_kernel[(shape.kv_heads * triton.cdiv(shape.group, heads), tiles)](
        q,
        tiled,
        lines,
        out,
        out if lse is None else lse,
        q_start,
        kv.starts,
        kv_len,
        q_pos,
        first_row,
        num_rows,
        q.stride(0),
        q.stride(1),
        lines.stride(0),
        shape.scale,
        Q_HEADS=shape.q_heads,
        GROUP=shape.group,
        HEADS=heads,
        DIM=shape.dim,
        K_COLUMN=kv.k_column,
        V_COLUMN=kv.v_column,
        BLOCK_M=tile.m,
        BLOCK_N=tile.n,
        LSE=lse is not None,
        num_warps=tile.warps,
        num_stages=tile.stages,
        enable_fp_fusion=True,
    )


@triton.jit(
    do_not_specialize=["first_row", "num_rows", "table_stride"],
    do_not_specialize_on_alignment=["table_ptr", "kv_len_ptr", "starts_ptr"],
)
def gather_kernel(
    k_ptr,
    v_ptr,
    k_scale_ptr,
    v_scale_ptr,
    out_ptr,
    table_ptr,
    kv_len_ptr,
    starts_ptr,
    first_row,
    num_rows,
    table_stride,
    out_stride,
    k_page_stride,
    k_head_stride,
    k_slot_stride,
    v_page_stride,
    v_head_stride,
    v_slot_stride,
    KV_HEADS: tl.constexpr,
    DIM: tl.constexpr,
    V_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_V: tl.constexpr,
    PAGE_SIZE: tl.constexpr,
    TOKENS: tl.constexpr,
    KV: tl.constexpr,
):
    """Grid (token tiles of all rows, KV heads): one head's keys and values of TOKENS tokens."""
    number = tl.program_id(0)
    head = tl.program_id(1).to(tl.int64)
    row = find_row(starts_ptr, number, first_row, num_rows, TOKENS)
    start = tl.load(starts_ptr + row)
    begin = (number - (start // TOKENS + row - first_row)) * TOKENS
    at = begin + tl.arange(0, TOKENS)
    valid = at < tl.load(kv_len_ptr + row)
    page = tl.load(table_ptr + row.to(tl.int64) * table_stride + at // PAGE_SIZE, mask=valid, other=0).to(tl.int64)
    slot = at % PAGE_SIZE
    target = out_ptr + (start + at).to(tl.int64)[:, None] * out_stride
    col_d = tl.arange(0, BLOCK_D)
    mask = valid[:, None] & (col_d < DIM)[None, :]
    source = k_ptr + (page * k_page_stride + head * k_head_stride + slot * k_slot_stride)[:, None] + col_d[None, :]
    k = tl.load(source, mask=mask, other=0)
    if KV:
        at_scale = (page * KV_HEADS + head) * PAGE_SIZE + slot
        k = decode(k, KV) * tl.load(k_scale_ptr + at_scale, mask=valid, other=0.0)[:, None]
    tl.store(target + head * DIM + col_d[None, :], k.to(out_ptr.dtype.element_ty), mask=mask)
    col_v = tl.arange(0, BLOCK_V)
    mask = valid[:, None] & (col_v < V_DIM)[None, :]
    source = v_ptr + (page * v_page_stride + head * v_head_stride + slot * v_slot_stride)[:, None] + col_v[None, :]
    target += KV_HEADS * DIM + head * V_DIM
    v = tl.load(source, mask=mask, other=0)
    if KV:
        v = decode(v, KV) * tl.load(v_scale_ptr + at_scale, mask=valid, other=0.0)[:, None]
    tl.store(target + col_v[None, :], v.to(out_ptr.dtype.element_ty), mask=mask)


@triton.jit
def fold(acc, peak, total, q, k, v, seen, base2_scale, MASKED: tl.constexpr):
    """One tile of keys [N, D] and values [N, D] into the running (acc [M, D], peak [M], total [M])."""
    scores = tl.dot(q, tl.trans(k))
    if MASKED:
        scores = tl.where(seen, scores, float("-inf"))
    new_peak = tl.maximum(peak, tl.max(scores, 1) * base2_scale)
    if MASKED:  # a row that has seen no key yet: any finite peak will do, all its weights are zero
        anchor = tl.where(new_peak == float("-inf"), 0.0, new_peak)
    else:
        anchor = new_peak
    weights = tl.exp2(scores * base2_scale - anchor[:, None])
    decay = tl.exp2(peak - anchor)
    total = total * decay + tl.sum(weights, 1)
    acc = tl.dot(weights.to(q.dtype), v, acc * decay[:, None])
    return acc, new_peak, total


@triton.jit(
    do_not_specialize=["first_row", "num_rows"],
    do_not_specialize_on_alignment=["q_start_ptr", "starts_ptr", "kv_len_ptr", "q_pos_ptr"],
)
def dense_kernel(
    q_ptr,
    tiled,
    lines_ptr,
    out_ptr,
    lse_ptr,
    q_start_ptr,
    starts_ptr,
    kv_len_ptr,
    q_pos_ptr,
    first_row,
    num_rows,
    q_token_stride,
    q_head_stride,
    line_stride,
    scale,
    Q_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    HEADS: tl.constexpr,
    DIM: tl.constexpr,
    K_COLUMN: tl.constexpr,
    V_COLUMN: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    LSE: tl.constexpr,
):
    """HEADS query heads of a group and BLOCK_M // HEADS tokens share a tile. out [T, Hq, D], lse [T, Hq] natural."""
    TOKENS: tl.constexpr = BLOCK_M // HEADS
    HEAD_TILES: tl.constexpr = (GROUP + HEADS - 1) // HEADS
    number = tl.num_programs(1) - 1 - tl.program_id(1)
    row, tile_begin, q_end = find_tile(q_start_ptr, number, first_row, num_rows, TOKENS)
    if tile_begin >= q_end:
        return

    kv_head = tl.program_id(0) // HEAD_TILES
    token, in_group, valid = lanes(tile_begin, q_end, tl.program_id(0) % HEAD_TILES, BLOCK_M, HEADS, GROUP)
    head = kv_head * GROUP + in_group
    token = token.to(tl.int64)
    position = tl.load(q_pos_ptr + token, mask=valid, other=0).to(tl.int32)
    row_last = tl.minimum(tl.load(kv_len_ptr + row) - 1, position)
    end_key = tl.max(tl.where(valid, row_last, -1), 0) + 1
    common = (tl.min(tl.where(valid, row_last, end_key), 0) + 1) // BLOCK_N * BLOCK_N

    col = tl.arange(0, DIM)
    q = tl.load(
        q_ptr + token[:, None] * q_token_stride + head[:, None] * q_head_stride + col[None, :],
        mask=valid[:, None],
        other=0.0,
    )
    acc = tl.zeros([BLOCK_M, DIM], tl.float32)
    peak = tl.full([BLOCK_M], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    base2_scale = scale * 1.4426950408889634
    first = tl.load(starts_ptr + row)
    k_column = K_COLUMN + kv_head * DIM
    v_column = V_COLUMN + kv_head * DIM
    for start in range(0, common, BLOCK_N):
        k = tiled.load([first + start, k_column])
        v = tiled.load([first + start, v_column])
        acc, peak, total = fold(acc, peak, total, q, k, v, None, base2_scale, False)
    line = lines_ptr + first.to(tl.int64) * line_stride
    for start in range(common, end_key, BLOCK_N):
        cols = start + tl.arange(0, BLOCK_N)
        source = line + cols.to(tl.int64)[:, None] * line_stride + col[None, :]
        k = tl.load(source + k_column, mask=(cols < end_key)[:, None], other=0.0)
        v = tl.load(source + v_column, mask=(cols < end_key)[:, None], other=0.0)
        acc, peak, total = fold(acc, peak, total, q, k, v, cols[None, :] <= row_last[:, None], base2_scale, True)

    divisor = tl.where(total == 0.0, 1.0, total)
    target = token * Q_HEADS + head
    values = (acc / divisor[:, None]).to(out_ptr.dtype.element_ty)
    tl.store(out_ptr + target[:, None] * DIM + col[None, :], values, mask=valid[:, None])
    if LSE:
        tl.store(lse_ptr + target, (peak + tl.log2(divisor)) * 0.6931471805599453, mask=valid)
