"""Rotary embedding of q and k fused with the KV write into pages, optionally with the per-head RMS norms before it.

Grid (tokens, head blocks): the heads of q, k and v form one list cut into blocks of BLOCK_HEADS; a program rotates its
block of one token and stores it to the rotated q or straight to the token's slot in the pages, so k and v are read and
written once. A head is held as first half, second half and the channels beyond the rotary part. Bound by memory
bandwidth at prefill sizes (3.4 TB/s of 4.3 on an H200 with 48 heads of 128), by launch latency for a few tokens. Pages
are [pages, Hkv, page_size, D]; a slot is page * page_size + offset in 64 bits. Roundings are those of the textbook
graph. Into pages of 8-bit codes, heads are rounded on the way and their scales stored beside them (kv_format.py).
"""

# mypy: disallow-untyped-defs=False, check-untyped-defs=False, allow-untyped-calls=True

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from octavo.kernels.kv_codes import codes_of, decode, rounded, scale_of
from octavo.kernels.kv_format import KVScales, kernel_planes, quantize
from octavo.kernels.rms_norm import rms_norm_reference, weighted

TILE_ELEMENTS = 2048  # channels a program handles, about


def rotate_reference(x: Tensor, cos_sin: Tensor, positions: Tensor) -> Tensor:
    """Half-split rotation of the first cos_sin.shape[1] channels of x [T, heads, D] (Su et al. 2021)."""
    cos, sin = (part.unsqueeze(1) for part in cos_sin[positions].chunk(2, dim=-1))
    half = cos.shape[-1]
    wide = torch.promote_types(cos.dtype, x.dtype)
    a, b = x[..., :half].to(wide), x[..., half : 2 * half].to(wide)
    turned = torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1).to(x.dtype)
    return torch.cat((turned, x[..., 2 * half :]), dim=-1)


def write_kv_reference(
    k: Tensor, v: Tensor, k_pages: Tensor, v_pages: Tensor, slots: Tensor, scales: KVScales | None = None
) -> None:
    """Stores k [T, Hkv, Dk] and v [T, Hkv, Dv] at `slots` of the pages, which hold 8-bit codes if there are scales."""
    page_size = k_pages.shape[2]
    page, offset = slots // page_size, slots % page_size
    if scales is not None:
        for new, pages, plane in ((k, k_pages, scales.k), (v, v_pages, scales.v)):
            codes, factors = quantize(new, pages.dtype)
            pages.view(torch.uint8)[page, :, offset] = codes.view(torch.uint8)
            plane[page, :, offset] = factors
        return
    k_pages[page, :, offset] = k.to(k_pages.dtype)
    v_pages[page, :, offset] = v.to(v_pages.dtype)


def rope_write_reference(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cos_sin: Tensor,
    positions: Tensor,
    k_pages: Tensor,
    v_pages: Tensor,
    slots: Tensor,
    q_weight: Tensor | None = None,
    k_weight: Tensor | None = None,
    eps: float = 0.0,
    scales: KVScales | None = None,
) -> Tensor:
    """Norms (if weights are given), rotates, writes k and v; returns the rotated q."""
    if q_weight is not None:
        q = rms_norm_reference(q, q_weight, eps)
    if k_weight is not None:
        k = rms_norm_reference(k, k_weight, eps)
    write_kv_reference(rotate_reference(k, cos_sin, positions), v, k_pages, v_pages, slots, scales)
    return rotate_reference(q, cos_sin, positions)


def rope_write(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cos_sin: Tensor,
    positions: Tensor,
    k_pages: Tensor,
    v_pages: Tensor,
    slots: Tensor,
    q_weight: Tensor | None = None,
    k_weight: Tensor | None = None,
    eps: float = 0.0,
    *,
    out: Tensor | None = None,
    keep: bool = False,
    scales: KVScales | None = None,
) -> Tensor:
    """As `rope_write_reference`, in one launch; returns `out`, a dense [T, Hq, D].

    q [T, Hq, D], k [T, Hkv, D], v [T, Hkv, Dv] may be views with a dense last axis; cos_sin is float32
    [positions, rot_dim]; the norm weights [D] come together or not at all (else ValueError). `keep` leaves in k and v
    what the slots hold: rotated keys, and of 8-bit codes the numbers they stand for.
    """
    if (q_weight is None) != (k_weight is None):
        raise ValueError("the norms of q and k come together")
    tokens, q_heads, dim = q.shape
    kv_heads, v_dim, half = k.shape[1], v.shape[2], cos_sin.shape[1] // 2
    if out is None:
        out = torch.empty((tokens, q_heads, dim), dtype=q.dtype, device=q.device)
    if tokens == 0:
        return out
    rest = dim - 2 * half
    block_heads = max(1, min(TILE_ELEMENTS // triton.next_power_of_2(dim), triton.next_power_of_2(q_heads)))
    blocks = triton.cdiv(q_heads, block_heads) + 2 * triton.cdiv(kv_heads, block_heads)
    planes = kernel_planes(k_pages, v_pages, scales, q, words=False)
    _rope_write_kernel[(tokens, blocks)](
        q,
        k,
        v,
        out,
        *planes.tensors,
        cos_sin,
        positions,
        slots,
        q if q_weight is None else q_weight,
        k if k_weight is None else k_weight,
        eps,
        q.stride(0),
        q.stride(1),
        k.stride(0),
        k.stride(1),
        v.stride(0),
        v.stride(1),
        *planes.strides.values(),
        Q_HEADS=q_heads,
        KV_HEADS=kv_heads,
        DIM=dim,
        V_DIM=v_dim,
        HALF=half,
        REST=rest,
        PAGE_SIZE=k_pages.shape[2],
        BLOCK_HEADS=block_heads,
        BLOCK_HALF=triton.next_power_of_2(half),
        BLOCK_REST=triton.next_power_of_2(rest) if rest else 1,
        BLOCK_V=triton.next_power_of_2(v_dim),
        NORM=q_weight is not None,
        ROUND_FIRST=q_weight is not None and q_weight.dtype == q.dtype,
        KEEP=keep,
        KV=planes.kind,
        num_warps=4,
        enable_fp_fusion=False,
    )
    return out


def write_kv(
    k: Tensor, v: Tensor, k_pages: Tensor, v_pages: Tensor, slots: Tensor, scales: KVScales | None = None
) -> None:
    """As `write_kv_reference`; k and v may be views with a dense last axis."""
    tokens, kv_heads, dim = k.shape
    if tokens == 0:
        return
    v_dim = v.shape[2]
    block_dim = triton.next_power_of_2(max(dim, v_dim))
    block_heads = max(1, min(TILE_ELEMENTS // block_dim, triton.next_power_of_2(kv_heads)))
    planes = kernel_planes(k_pages, v_pages, scales, k, words=False)
    _write_kv_kernel[(tokens, 2 * triton.cdiv(kv_heads, block_heads))](
        k,
        v,
        *planes.tensors,
        slots,
        k.stride(0),
        k.stride(1),
        v.stride(0),
        v.stride(1),
        *planes.strides.values(),
        KV_HEADS=kv_heads,
        DIM=dim,
        V_DIM=v_dim,
        PAGE_SIZE=k_pages.shape[2],
        BLOCK_HEADS=block_heads,
        BLOCK_DIM=block_dim,
        KV=planes.kind,
        num_warps=4,
        enable_fp_fusion=False,
    )


@triton.jit(do_not_specialize_on_alignment=["positions_ptr", "slots_ptr"])
def _rope_write_kernel(
    q_ptr,
    k_ptr,
    v_ptr,
    out_ptr,
    k_pages_ptr,
    v_pages_ptr,
    k_scale_ptr,
    v_scale_ptr,
    cos_sin_ptr,
    positions_ptr,
    slots_ptr,
    q_weight_ptr,
    k_weight_ptr,
    eps,
    q_token_stride,
    q_head_stride,
    k_token_stride,
    k_head_stride,
    v_token_stride,
    v_head_stride,
    k_page_stride,
    k_page_head_stride,
    k_slot_stride,
    v_page_stride,
    v_page_head_stride,
    v_slot_stride,
    Q_HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    DIM: tl.constexpr,
    V_DIM: tl.constexpr,
    HALF: tl.constexpr,
    REST: tl.constexpr,
    PAGE_SIZE: tl.constexpr,
    BLOCK_HEADS: tl.constexpr,
    BLOCK_HALF: tl.constexpr,
    BLOCK_REST: tl.constexpr,
    BLOCK_V: tl.constexpr,
    NORM: tl.constexpr,
    ROUND_FIRST: tl.constexpr,
    KEEP: tl.constexpr,
    KV: tl.constexpr,
):
    """Grid and shapes as at the top of the file and in `rope_write`. HALF channels of a head meet as many more; REST
    lie beyond both. KEEP: what is stored is written over k and v too. KV: the number format of pages of codes, or 0."""
    Q_BLOCKS: tl.constexpr = (Q_HEADS + BLOCK_HEADS - 1) // BLOCK_HEADS
    KV_BLOCKS: tl.constexpr = (KV_HEADS + BLOCK_HEADS - 1) // BLOCK_HEADS
    token = tl.program_id(0).to(tl.int64)
    block = tl.program_id(1)
    heads = tl.arange(0, BLOCK_HEADS).to(tl.int64)
    if block < Q_BLOCKS:
        head = block * BLOCK_HEADS + heads
        source = q_ptr + token * q_token_stride + head * q_head_stride
        rotated = out_ptr + (token * Q_HEADS + head) * DIM
        _rotate_heads(
            source, rotated, source, q_ptr, head < Q_HEADS, cos_sin_ptr, positions_ptr, token, q_weight_ptr, eps,
            DIM, HALF, REST, BLOCK_HALF, BLOCK_REST, NORM, ROUND_FIRST, False, 0,
        )  # fmt: skip
    else:
        slot = tl.load(slots_ptr + token)
        page = slot // PAGE_SIZE
        offset = slot % PAGE_SIZE
        if block < Q_BLOCKS + KV_BLOCKS:
            head = (block - Q_BLOCKS) * BLOCK_HEADS + heads
            source = k_ptr + token * k_token_stride + head * k_head_stride
            target = k_pages_ptr + page * k_page_stride + head * k_page_head_stride + offset * k_slot_stride
            scale = k_scale_ptr + (page * KV_HEADS + head) * PAGE_SIZE + offset
            _rotate_heads(
                source, target, source, scale, head < KV_HEADS, cos_sin_ptr, positions_ptr, token, k_weight_ptr, eps,
                DIM, HALF, REST, BLOCK_HALF, BLOCK_REST, NORM, ROUND_FIRST, KEEP, KV,
            )  # fmt: skip
        else:
            head = (block - Q_BLOCKS - KV_BLOCKS) * BLOCK_HEADS + heads
            source = v_ptr + token * v_token_stride + head * v_head_stride
            target = v_pages_ptr + page * v_page_stride + head * v_page_head_stride + offset * v_slot_stride
            scale = v_scale_ptr + (page * KV_HEADS + head) * PAGE_SIZE + offset
            _copy_heads(source, target, scale, head < KV_HEADS, V_DIM, BLOCK_V, KEEP, KV)


@triton.jit(do_not_specialize_on_alignment=["slots_ptr"])
def _write_kv_kernel(
    k_ptr,
    v_ptr,
    k_pages_ptr,
    v_pages_ptr,
    k_scale_ptr,
    v_scale_ptr,
    slots_ptr,
    k_token_stride,
    k_head_stride,
    v_token_stride,
    v_head_stride,
    k_page_stride,
    k_page_head_stride,
    k_slot_stride,
    v_page_stride,
    v_page_head_stride,
    v_slot_stride,
    KV_HEADS: tl.constexpr,
    DIM: tl.constexpr,
    V_DIM: tl.constexpr,
    PAGE_SIZE: tl.constexpr,
    BLOCK_HEADS: tl.constexpr,
    BLOCK_DIM: tl.constexpr,
    KV: tl.constexpr,
):
    """Grid (tokens, blocks of BLOCK_HEADS heads of k, then of v); shapes as in `write_kv`, KV as above."""
    KV_BLOCKS: tl.constexpr = (KV_HEADS + BLOCK_HEADS - 1) // BLOCK_HEADS
    token = tl.program_id(0).to(tl.int64)
    block = tl.program_id(1)
    slot = tl.load(slots_ptr + token)
    page = slot // PAGE_SIZE
    offset = slot % PAGE_SIZE
    heads = tl.arange(0, BLOCK_HEADS).to(tl.int64)
    if block < KV_BLOCKS:
        head = block * BLOCK_HEADS + heads
        source = k_ptr + token * k_token_stride + head * k_head_stride
        target = k_pages_ptr + page * k_page_stride + head * k_page_head_stride + offset * k_slot_stride
        scale = k_scale_ptr + (page * KV_HEADS + head) * PAGE_SIZE + offset
        _copy_heads(source, target, scale, head < KV_HEADS, DIM, BLOCK_DIM, False, KV)
    else:
        head = (block - KV_BLOCKS) * BLOCK_HEADS + heads
        source = v_ptr + token * v_token_stride + head * v_head_stride
        target = v_pages_ptr + page * v_page_stride + head * v_page_head_stride + offset * v_slot_stride
        scale = v_scale_ptr + (page * KV_HEADS + head) * PAGE_SIZE + offset
        _copy_heads(source, target, scale, head < KV_HEADS, V_DIM, BLOCK_DIM, False, KV)


@triton.jit
def _rotate_heads(
    source,
    target,
    copy,
    scale_target,
    valid,
    cos_sin_ptr,
    positions_ptr,
    token,
    weight_ptr,
    eps,
    DIM: tl.constexpr,
    HALF: tl.constexpr,
    REST: tl.constexpr,
    BLOCK_HALF: tl.constexpr,
    BLOCK_REST: tl.constexpr,
    NORM: tl.constexpr,
    ROUND_FIRST: tl.constexpr,
    COPY: tl.constexpr,
    KV: tl.constexpr,
):
    """Heads at `source` [BLOCK_HEADS] pointers, normed if NORM, rotated by the token's angles, to `target`; if KV, as
    codes with scales to `scale_target`; if COPY, what is stored also to `copy`, which may be the source."""
    col = tl.arange(0, BLOCK_HALF)
    mask = valid[:, None] & (col < HALF)[None, :]
    a = tl.load(source[:, None] + col[None, :], mask=mask, other=0.0)
    b = tl.load(source[:, None] + HALF + col[None, :], mask=mask, other=0.0)
    dtype = a.dtype
    table = cos_sin_ptr + tl.load(positions_ptr + token) * (2 * HALF)
    cos = tl.load(table + col, mask=col < HALF, other=0.0)[None, :]
    sin = tl.load(table + HALF + col, mask=col < HALF, other=0.0)[None, :]
    a = a.to(tl.float32)
    b = b.to(tl.float32)
    if REST > 0:
        rest_col = tl.arange(0, BLOCK_REST)
        rest_mask = valid[:, None] & (rest_col < REST)[None, :]
        rest = tl.load(source[:, None] + 2 * HALF + rest_col[None, :], mask=rest_mask, other=0.0).to(tl.float32)
    if NORM:
        squares = tl.sum(a * a, axis=1) + tl.sum(b * b, axis=1)
        if REST > 0:
            squares += tl.sum(rest * rest, axis=1)
        factor = tl.rsqrt(squares / DIM + eps)[:, None]
        a = weighted(a * factor, _weights(weight_ptr + col, col < HALF), dtype, ROUND_FIRST)
        b = weighted(b * factor, _weights(weight_ptr + HALF + col, col < HALF), dtype, ROUND_FIRST)
        if REST > 0:
            weight = _weights(weight_ptr + 2 * HALF + rest_col, rest_col < REST)
            rest = weighted(rest * factor, weight, dtype, ROUND_FIRST)
    a, b = (a * cos - b * sin).to(dtype), (b * cos + a * sin).to(dtype)
    if REST > 0:
        rest = rest.to(dtype)
    if KV:
        x, y = a.to(tl.float32), b.to(tl.float32)
        peak = tl.maximum(tl.max(tl.abs(x), 1), tl.max(tl.abs(y), 1))
        check = tl.sum(x * 0.0 + y * 0.0, 1)
        if REST > 0:
            z = rest.to(tl.float32)
            peak = tl.maximum(peak, tl.max(tl.abs(z), 1))
            check += tl.sum(z * 0.0, 1)
        scale, inverse = scale_of(peak, check, KV)
        tl.store(scale_target, scale, mask=valid)
        codes_a, codes_b = codes_of(x * inverse[:, None], KV), codes_of(y * inverse[:, None], KV)
        tl.store(target[:, None] + col[None, :], codes_a, mask=mask)
        tl.store(target[:, None] + HALF + col[None, :], codes_b, mask=mask)
        if COPY:
            a, b = (decode(codes_a, KV) * scale[:, None]).to(dtype), (decode(codes_b, KV) * scale[:, None]).to(dtype)
        if REST > 0:
            codes_rest = codes_of(z * inverse[:, None], KV)
            tl.store(target[:, None] + 2 * HALF + rest_col[None, :], codes_rest, mask=rest_mask)
            if COPY:
                rest = (decode(codes_rest, KV) * scale[:, None]).to(dtype)
    else:
        element = target.dtype.element_ty
        tl.store(target[:, None] + col[None, :], a.to(element), mask=mask)
        tl.store(target[:, None] + HALF + col[None, :], b.to(element), mask=mask)
        if REST > 0:
            tl.store(target[:, None] + 2 * HALF + rest_col[None, :], rest.to(element), mask=rest_mask)
    if COPY:
        tl.store(copy[:, None] + col[None, :], a, mask=mask)
        tl.store(copy[:, None] + HALF + col[None, :], b, mask=mask)
        if REST > 0:
            tl.store(copy[:, None] + 2 * HALF + rest_col[None, :], rest, mask=rest_mask)


@triton.jit
def _weights(weight_ptrs, mask):
    return tl.load(weight_ptrs, mask=mask, other=0.0)[None, :]


@triton.jit
def _copy_heads(
    source,
    target,
    scale_target,
    valid,
    DIM: tl.constexpr,
    BLOCK_DIM: tl.constexpr,
    COPY: tl.constexpr,
    KV: tl.constexpr,
):
    """Heads at `source` to `target`; if KV, as codes with scales, and if COPY what those stand for back to `source`."""
    col = tl.arange(0, BLOCK_DIM)
    mask = valid[:, None] & (col < DIM)[None, :]
    x = tl.load(source[:, None] + col[None, :], mask=mask, other=0.0)
    if KV:
        read, codes, scale = rounded(x, KV)
        tl.store(target[:, None] + col[None, :], codes, mask=mask)
        tl.store(scale_target, scale, mask=valid)
        if COPY:
            tl.store(source[:, None] + col[None, :], read.to(x.dtype), mask=mask)
    else:
        tl.store(target[:, None] + col[None, :], x.to(target.dtype.element_ty), mask=mask)
