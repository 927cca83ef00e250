"""RMSNorm, alone and fused with the residual addition before it.

One kernel reads a row once, adds the residual if there is one, sums squares in float32 and writes the normalized row
(and the sum, which the next block needs). Each program takes ROWS whole rows as one [ROWS, BLOCK] tile in registers:
one row at hidden sizes, many at head sizes, where q and k are normalized head by head. Bound by memory bandwidth from a
few hundred rows on (8,192 rows of 4,096: 3.9 TB/s on an H200, whose copy reaches 4.3), by latency below. Roundings are
those of the textbook graph (sum rounded to the activation's type, normalized value rounded before a 16-bit weight), so
results differ only by summation order.
"""

# mypy: disallow-untyped-defs=False, check-untyped-defs=False, allow-untyped-calls=True

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

TILE_ELEMENTS = 1024  # rows shorter than this share a program


def rms_norm_reference(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x * rsqrt(mean(x^2) + eps) * weight over the last axis, in float32 (float64 for float64 input)."""
    wide = x if x.dtype == torch.float64 else x.float()
    normed = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)
    if weight.dtype == x.dtype:
        return weight * normed.to(x.dtype)
    return (normed * weight).to(x.dtype)


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """As `rms_norm_reference`; x [..., H] is any view with a dense last axis and at most two axes before it."""
    if x.stride(-1) != 1 or x.ndim > 3:
        x = x.contiguous()
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    _launch(x, None, weight, out, eps)
    return out


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """(norm of x + residual, x + residual), written over the inputs [T, H] where they are dense."""
    x, residual = x.contiguous(), residual.contiguous()
    _launch(x, residual, weight, x, eps)
    return x, residual


def _launch(x: Tensor, residual: Tensor | None, weight: Tensor, out: Tensor, eps: float) -> None:
    size = x.shape[-1]
    rows = x.numel() // size
    if rows == 0:
        return
    if x.is_contiguous():
        inner, outer_stride, inner_stride = 1, size, 0
    elif x.ndim == 3:
        inner, outer_stride, inner_stride = x.shape[1], x.stride(0), x.stride(1)
    else:
        inner, outer_stride, inner_stride = 1, x.stride(0), 0
    block = triton.next_power_of_2(size)
    rows_per_program = max(1, TILE_ELEMENTS // block)
    _rms_norm_kernel[(triton.cdiv(rows, rows_per_program),)](
        x,
        x if residual is None else residual,
        weight,
        out,
        rows,
        inner,
        outer_stride,
        inner_stride,
        eps,
        SIZE=size,
        BLOCK=block,
        ROWS=rows_per_program,
        RESIDUAL=residual is not None,
        ROUND_FIRST=weight.dtype == x.dtype,
        num_warps=min(16, max(2, block * rows_per_program // 512)),
        enable_fp_fusion=False,
    )


@triton.jit(do_not_specialize=["rows"])
def _rms_norm_kernel(
    x_ptr,
    residual_ptr,
    weight_ptr,
    out_ptr,
    rows,
    inner,
    outer_stride,
    inner_stride,
    eps,
    SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
    ROWS: tl.constexpr,
    RESIDUAL: tl.constexpr,
    ROUND_FIRST: tl.constexpr,
):
    """Grid (blocks of ROWS rows): x row r is at r // inner * outer_stride + r % inner * inner_stride; out and the
    residual, which becomes the sum, are dense [rows, SIZE]."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    col = tl.arange(0, BLOCK)
    mask = (row < rows)[:, None] & (col < SIZE)[None, :]
    source = (row // inner) * outer_stride + (row % inner) * inner_stride
    x = tl.load(x_ptr + source[:, None] + col[None, :], mask=mask, other=0.0)
    dense = row[:, None] * SIZE + col[None, :]
    if RESIDUAL:
        x = (x.to(tl.float32) + tl.load(residual_ptr + dense, mask=mask, other=0.0).to(tl.float32)).to(x.dtype)
        tl.store(residual_ptr + dense, x, mask=mask)
    wide = x.to(tl.float32)
    normed = wide * tl.rsqrt(tl.sum(wide * wide, axis=1) / SIZE + eps)[:, None]
    weight = tl.load(weight_ptr + col, mask=col < SIZE, other=0.0).to(tl.float32)
    if ROUND_FIRST:
        normed = normed.to(x.dtype).to(tl.float32)
    tl.store(out_ptr + dense, (normed * weight[None, :]).to(x.dtype), mask=mask)


@triton.jit
def weighted(normed, weight, dtype: tl.constexpr, ROUND_FIRST: tl.constexpr):
    """The norm's weight applied to float32 numbers, rounded to the activation's type as a norm of its own would, for
    what goes on with them in float32."""
    if ROUND_FIRST:
        normed = normed.to(dtype).to(tl.float32)
    return (normed * weight.to(tl.float32)).to(dtype).to(tl.float32)
