"""The inner loop that both paged attention kernels share: one tile of query rows over a range of a row's keys.

Keys and values lie in pages [pages, Hkv, page_size, D]. The KV tile (BLOCK_N tokens) is independent of the page size:
where a page holds whole tiles its number is read once a tile, else once a token, always through the row's page table
and with 64-bit offsets. Softmax runs online in base 2 and float32 (FlashAttention: Dao et al. 2022); scores, running
peak and sum stay in registers, and the division comes once at the end.
"""

# mypy: disallow-untyped-defs=False, check-untyped-defs=False, allow-untyped-calls=True

import triton
import triton.language as tl


@triton.jit
def tile_pages(table_ptr, start, first_key, end_key, PAGE_SIZE: tl.constexpr, BLOCK_N: tl.constexpr):
    """Physical pages of tokens start .. start + BLOCK_N: one number where a page holds whole tiles, else one a token.

    Entries for tokens outside [first_key, end_key) are not read.
    """
    if PAGE_SIZE % BLOCK_N == 0:
        page = tl.load(table_ptr + start // PAGE_SIZE, mask=start < end_key, other=0).to(tl.int64)
    else:
        cols = start + tl.arange(0, BLOCK_N)
        page = tl.load(table_ptr + cols // PAGE_SIZE, mask=(cols >= first_key) & (cols < end_key), other=0).to(tl.int64)
    return page


@triton.jit
def tile_offsets(start, PAGE_SIZE: tl.constexpr, BLOCK_N: tl.constexpr):
    """Offsets in their page of tokens start .. start + BLOCK_N."""
    if PAGE_SIZE % BLOCK_N == 0:
        offset = start % PAGE_SIZE + tl.arange(0, BLOCK_N)
    else:
        offset = (start + tl.arange(0, BLOCK_N)) % PAGE_SIZE
    return offset


@triton.jit
def aligned(pointers):
    """The multiples of 16 bytes at or before the pointers."""
    return (pointers.to(tl.int64) & -16).to(pointers.dtype)


@triton.jit
def prefetch_rows(pointers, SIZE_BYTES: tl.constexpr):
    """Asks for SIZE_BYTES, a multiple of 16, at each of the aligned pointers to be brought into L2, without waiting;
    compute capability 9.0 and newer."""
    tl.inline_asm_elementwise(
        "{ cp.async.bulk.prefetch.L2.global [$1], $2; mov.u32 $0, 0; }",
        "=r,l,r",
        [pointers, SIZE_BYTES],
        dtype=tl.int32,
        is_pure=False,
        pack=1,
    )


@triton.jit
def softcapped(scores, scale, softcap):
    """softcap * tanh(scores * scale / softcap) in base-2 units; tanh through exp, exact at both ends."""
    e = tl.exp2(scores * (scale * 2.8853900817779268 / softcap))  # 2 / ln 2
    return (1.4426950408889634 * softcap) * (1.0 - 2.0 / (e + 1.0))


@triton.jit
def softmax_step(scores, peak, total, MASKED: tl.constexpr):
    """One step of the online softmax over base-2 scores [M, N]: (their weights, by what sums of earlier ones decay [M],
    the new peak [M], the new total [M]). MASKED: scores may be -inf, a row's first ones all of them."""
    new_peak = tl.maximum(peak, tl.max(scores, 1))
    if MASKED:  # a row that has seen no key yet: any finite peak will do, all its weights are zero
        anchor = tl.where(new_peak == float("-inf"), 0.0, new_peak)
    else:
        anchor = new_peak
    weights = tl.exp2(scores - anchor[:, None])
    decay = tl.exp2(peak - anchor)
    return weights, decay, new_peak, total * decay + tl.sum(weights, 1)


@triton.jit
def attend_tiles(
    acc,
    peak,
    total,
    q,
    k_base,
    v_base,
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
):
    """Folds keys [lo, hi), lo a multiple of BLOCK_N, into (acc [M, BLOCK_V], peak [M], total [M]); `page` are the
    first tile's `tile_pages`, which the caller may have asked for early.

    MASKED: only keys in [first_key, end_key) are read at all (slots outside may hold anything, NaN too), and row m
    sees row_first[m] .. row_last[m] of them. Else every key of the range exists and is seen by every row.
    """
    col_d = tl.arange(0, BLOCK_D)
    col_v = tl.arange(0, BLOCK_V)
    for start in range(lo, hi, BLOCK_N):
        start = tl.multiple_of(start, BLOCK_N)
        cols = start + tl.arange(0, BLOCK_N)
        in_range = (cols >= first_key) & (cols < end_key)
        offset = tile_offsets(start, PAGE_SIZE, BLOCK_N)
        k_tile = k_base + (page * k_page_stride + offset * k_slot_stride)[:, None] + col_d[None, :]
        if MASKED:
            k = tl.load(k_tile, mask=in_range[:, None] & (col_d < DIM)[None, :], other=0.0)
        elif DIM == BLOCK_D:
            k = tl.load(k_tile)
        else:
            k = tl.load(k_tile, mask=(col_d < DIM)[None, :], other=0.0)
        scores = tl.dot(q, tl.trans(k.to(q.dtype)), input_precision=PRECISION)
        if SOFTCAP:
            scores = softcapped(scores, scale, softcap)
        else:
            scores = scores * (scale * 1.4426950408889634)
        if MASKED:
            seen = (cols[None, :] >= row_first[:, None]) & (cols[None, :] <= row_last[:, None])
            scores = tl.where(seen, scores, float("-inf"))
        weights, decay, peak, total = softmax_step(scores, peak, total, MASKED)
        acc = acc * decay[:, None]
        v_tile = v_base + (page * v_page_stride + offset * v_slot_stride)[:, None] + col_v[None, :]
        if MASKED:
            v = tl.load(v_tile, mask=in_range[:, None] & (col_v < V_DIM)[None, :], other=0.0)
        elif V_DIM == BLOCK_V:
            v = tl.load(v_tile)
        else:
            v = tl.load(v_tile, mask=(col_v < V_DIM)[None, :], other=0.0)
        # a tile ahead, so that the copies of keys and values never wait for the page table
        page = tile_pages(table_ptr, start + BLOCK_N, first_key, end_key, PAGE_SIZE, BLOCK_N)
        acc = tl.dot(weights.to(q.dtype), v.to(q.dtype), acc, input_precision=PRECISION)
    return acc, peak, total
