"""Attention over paged keys and values: the plain torch reference, and the launch for rows with many query tokens.

The kernel and what bounds it are described in attention_prefill.py; decode_attention.py launches rows with one query
token, dense_attention.py long pieces on devices that copy whole tiles by themselves. Tiles are chosen here, from head
size, type and the device's figures only. No launch reads device memory: grids come from bounds the host knows, lengths
are read by the kernel, so that it may be captured into a CUDA graph. Shapes as in the engine: q [T, Hq, Dk], pages
[pages, Hkv, page_size, D], table int32 [R, P], kv_len int32 [R], q_pos int64 [T], q_start int32 [R + 1].
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
from torch import Tensor

from octavo.kernels.attention_prefill import prefill_kernel
from octavo.kernels.device import DeviceTraits, device_traits
from octavo.kernels.kv_format import KVScales, kernel_planes

MAX_HEAD_SIZE = 256
ROOMY = 160_000  # more shared memory than this holds the large tiles: compute capability 8.0, 9.0 and 10.0


@dataclass(frozen=True, slots=True)
class AttentionShape:
    """What a layer's attention is compiled for. `window` counts the query itself."""

    q_heads: int
    kv_heads: int
    dim: int
    v_dim: int
    scale: float
    softcap: float | None = None
    window: int | None = None
    causal: bool = True

    @property
    def group(self) -> int:
        """Query heads that share a KV head."""
        return self.q_heads // self.kv_heads


@dataclass(frozen=True, slots=True)
class Tile:
    """BLOCK_M query rows by BLOCK_N keys, and how many warps and pipeline stages work on it."""

    m: int
    n: int
    warps: int
    stages: int


def attention_reference(
    q: Tensor,
    k_pages: Tensor,
    v_pages: Tensor,
    table: Tensor,
    q_start: Tensor,
    q_pos: Tensor,
    kv_len: Tensor,
    shape: AttentionShape,
    dtype: torch.dtype = torch.float32,
) -> tuple[Tensor, Tensor]:
    """(values [T, Hq, Dv], natural log-sum-exp [T, Hq]) in `dtype`, row by row; nothing attended is (0, -inf)."""
    out = torch.zeros((q.shape[0], shape.q_heads, shape.v_dim), dtype=dtype, device=q.device)
    lse = torch.full((q.shape[0], shape.q_heads), float("-inf"), dtype=dtype, device=q.device)
    page_size = k_pages.shape[2]
    starts = q_start.tolist()
    for row, length in enumerate(kv_len.tolist()):
        tokens = slice(starts[row], starts[row + 1])
        at = torch.arange(length, device=q.device)
        page = table[row].long()[at // page_size]
        k = k_pages[page, :, at % page_size].to(dtype).repeat_interleave(shape.group, 1)
        v = v_pages[page, :, at % page_size].to(dtype).repeat_interleave(shape.group, 1)
        position = q_pos[tokens, None]
        seen = torch.ones((position.shape[0], length), dtype=torch.bool, device=q.device)
        if shape.causal:
            seen &= at <= position
        if shape.window is not None:
            seen &= at > position - shape.window
        read = seen.any(0)
        k[~read] = 0
        v[~read] = 0
        scores = torch.einsum("qhd,khd->qhk", q[tokens].to(dtype), k) * shape.scale
        if shape.softcap is not None:
            scores = shape.softcap * torch.tanh(scores / shape.softcap)
        scores = scores.masked_fill(~seen[:, None], float("-inf"))
        lse[tokens] = torch.logsumexp(scores, -1)
        weights = torch.nan_to_num(torch.softmax(scores, -1), nan=0.0)
        out[tokens] = torch.einsum("qhk,khd->qhd", weights, v)
    return out, lse


def prefill_tile(shape: AttentionShape, max_q: int, dtype: torch.dtype, traits: DeviceTraits) -> Tile:
    """The tile of the prefill kernel; short pieces take low tiles. `max_q` is a bound, so the choice is the host's."""
    width = max(padded(shape.dim), padded(shape.v_dim))
    if dtype == torch.float32:
        return Tile(m=32 if width <= 128 else 16, n=32, warps=4, stages=1)
    n = 64 if width <= 128 else 32
    rows = max_q * shape.group
    if rows <= 32:
        return Tile(m=16, n=n, warps=4, stages=2)
    if width <= 64:
        return Tile(m=64, n=128, warps=4, stages=2)
    if rows <= 512 or traits.shared_bytes <= ROOMY:
        return Tile(m=64, n=n, warps=4, stages=2)
    return Tile(m=128, n=64, warps=8, stages=3 if width <= 128 else 2)


def prefill_attention(
    q: Tensor,
    k_pages: Tensor,
    v_pages: Tensor,
    table: Tensor,
    q_start: Tensor,
    q_pos: Tensor,
    kv_len: Tensor,
    out: Tensor,
    lse: Tensor | None,
    shape: AttentionShape,
    *,
    first_row: int,
    num_rows: int,
    num_tokens: int,
    max_q: int,
    scales: KVScales | None = None,
) -> None:
    """Fills out (and lse) for the tokens of rows first_row .. num_rows - 1, which are at most `num_tokens`.

    All tensors are the whole step's; out [T, Hq, Dv] and lse [T, Hq] are dense. `scales` come with 8-bit codes.
    """
    rows = num_rows - first_row
    if rows <= 0 or num_tokens <= 0:
        return
    tile = prefill_tile(shape, max_q, q.dtype, device_traits(q.device))
    heads = min(shape.group, tile.m)
    tiles = num_tokens // (tile.m // heads) + rows
    planes = kernel_planes(k_pages, v_pages, scales, q, words=True)
    prefill_kernel[(tiles, shape.kv_heads * triton.cdiv(shape.group, heads))](
        q,
        *planes.tensors,
        out,
        out if lse is None else lse,
        table,
        q_start,
        kv_len,
        q_pos,
        first_row,
        num_rows,
        table.stride(0),
        q.stride(0),
        q.stride(1),
        *planes.strides.values(),
        shape.scale,
        shape.softcap or 0.0,
        0 if shape.window is None else shape.window,
        Q_HEADS=shape.q_heads,
        GROUP=shape.group,
        HEADS=heads,
        DIM=shape.dim,
        V_DIM=shape.v_dim,
        BLOCK_D=padded(shape.dim, planes.least_block),
        BLOCK_V=padded(shape.v_dim, planes.least_block),
        BLOCK_M=tile.m,
        BLOCK_N=tile.n,
        PAGE_SIZE=k_pages.shape[2],
        WINDOW=shape.window is not None,
        SOFTCAP=shape.softcap is not None,
        CAUSAL=shape.causal,
        LSE=lse is not None,
        PEEL=shape.window is None and q.dtype != torch.float32,
        PRECISION="ieee",
        KV=planes.kind,
        WIDE=planes.wide,
        num_warps=tile.warps,
        num_stages=tile.stages,
        enable_fp_fusion=True,
    )


def padded(dim: int, least: int = 16) -> int:
    """The power of two, at least 16, that a tile of `dim` channels is laid out in."""
    return max(least, triton.next_power_of_2(dim))
