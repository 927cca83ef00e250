"""What follows a product whose sums several programs left in parts: added up, added to the residual stream, normed.

One program a row. The parts are read in order, so that results have the same bits every time; roundings are those of
rms_norm.py, but for the product itself, which is not rounded before it joins the stream. Bound by latency: a few reads
from L2 that do not wait for one another.
"""

# mypy: disallow-untyped-defs=False, check-untyped-defs=False, allow-untyped-calls=True

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from octavo.kernels.dependent_launch import launches_early
from octavo.kernels.rms_norm import rms_norm_reference


def add_parts_norm_reference(parts: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """(rms norm of the sum by weight [H], sum) of residual [T, H] and float32 parts [P, T, H]."""
    total = residual.float()
    for part in parts:
        total = total + part
    total = total.to(residual.dtype)
    return rms_norm_reference(total, weight, eps), total


def add_parts_norm(parts: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """As `add_parts_norm_reference`; the sum is written over the residual stream, which is dense."""
    count, rows, size = parts.shape
    out = torch.empty_like(residual)
    early = launches_early(parts.device)
    options: dict[str, object] = {"launch_pdl": True} if early else {}
    block = triton.next_power_of_2(size)
    add_parts_norm_kernel[(rows,)](
        parts,
        residual,
        weight,
        out,
        rows,
        eps,
        SIZE=size,
        BLOCK=block,
        COUNT=count,
        ROUND_FIRST=weight.dtype == residual.dtype,
        EARLY=early,
        num_warps=max(4, min(16, block // 512)),
        **options,
    )
    return out, residual


@triton.jit(do_not_specialize=["rows"])
def add_parts_norm_kernel(
    parts_ptr,
    residual_ptr,
    weight_ptr,
    out_ptr,
    rows,
    eps,
    SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
    COUNT: tl.constexpr,
    ROUND_FIRST: tl.constexpr,
    EARLY: tl.constexpr,
):
    """parts float32 [COUNT, rows, SIZE]; residual, which becomes the sum, and out [rows, SIZE]; grid (rows)."""
    row = tl.program_id(0).to(tl.int64)
    col = tl.arange(0, BLOCK)
    mask = col < SIZE
    weight = tl.load(weight_ptr + col, mask=mask, other=0.0).to(tl.float32)
    if EARLY:
        gdc_launch_dependents()
        gdc_wait()
    at = row * SIZE + col
    total = tl.load(residual_ptr + at, mask=mask, other=0.0).to(tl.float32)
    for part in tl.static_range(COUNT):
        total += tl.load(parts_ptr + part * rows.to(tl.int64) * SIZE + at, mask=mask, other=0.0)
    rounded = total.to(residual_ptr.dtype.element_ty)
    tl.store(residual_ptr + at, rounded, mask=mask)
    wide = rounded.to(tl.float32)
    normed = wide * tl.rsqrt(tl.sum(wide * wide, 0) / SIZE + eps)
    if ROUND_FIRST:
        normed = normed.to(rounded.dtype).to(tl.float32)
    tl.store(out_ptr + at, (normed * weight).to(rounded.dtype), mask=mask)
