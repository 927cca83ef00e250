"""The RMS norm, with the residual addition before it, of activations that a product takes in 8 bits.

One program a token: it keeps the whole row in registers, computes what rms_norm.py would write, with its roundings, and
writes codes and the token's scale as token_codes.py does of what it reads: one launch instead of two, and the normed
row is neither written nor read in 16 bits. Bound by latency for some tens of tokens, by the bytes moved for many.
"""

# mypy: disallow-untyped-defs=False, check-untyped-defs=False, allow-untyped-calls=True

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from octavo.kernels.dependent_launch import launches_early
from octavo.kernels.rms_norm import rms_norm_reference, weighted
from octavo.kernels.token_codes import LARGEST, round_tokens_reference, store_codes


def norm_tokens_reference(
    x: Tensor, residual: Tensor | None, weight: Tensor, eps: float, kind: torch.dtype
) -> tuple[Tensor, Tensor, Tensor]:
    """(codes [T, H], scales [T, 1], sum [T, H]) of the RMS norm by `weight` of x + residual (None: of x)."""
    total = x if residual is None else (x.float() + residual.float()).to(x.dtype)
    return *round_tokens_reference(rms_norm_reference(total, weight, eps), kind), total


def norm_tokens(
    x: Tensor, residual: Tensor | None, weight: Tensor, eps: float, kind: torch.dtype
) -> tuple[Tensor, Tensor, Tensor]:
    """As `norm_tokens_reference`; the sum is written over the residual stream, which is dense."""
    x = x.contiguous()
    tokens, size = x.shape
    codes = torch.empty((tokens, size), dtype=kind, device=x.device)
    scales = torch.empty((tokens, 1), dtype=torch.float32, device=x.device)
    block = triton.next_power_of_2(size)
    _norm_kernel[(tokens,)](
        x, x if residual is None else residual, weight, codes, scales, eps,
        SIZE=size, BLOCK=block, LARGEST=LARGEST[kind], RESIDUAL=residual is not None,
        ROUND_FIRST=weight.dtype == x.dtype, **_launch(x, block),
    )  # fmt: skip
    return codes, scales, x if residual is None else residual


def _launch(x: Tensor, block: int) -> dict[str, object]:
    early = launches_early(x.device)
    options: dict[str, object] = {"EARLY": early, "num_warps": max(4, min(16, block // 512)), "enable_fp_fusion": False}
    return options | {"launch_pdl": True} if early else options


@triton.jit
def _norm_kernel(
    x_ptr,
    residual_ptr,
    weight_ptr,
    codes_ptr,
    scales_ptr,
    eps,
    SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
    LARGEST: tl.constexpr,
    RESIDUAL: tl.constexpr,
    ROUND_FIRST: tl.constexpr,
    EARLY: tl.constexpr,
):
    """Grid (tokens): x and the residual, which becomes the sum, [T, SIZE]; codes [T, SIZE] and float32 scales [T]."""
    token = tl.program_id(0).to(tl.int64)
    col = tl.arange(0, BLOCK)
    inside = col < SIZE
    weight = tl.load(weight_ptr + col, mask=inside, other=0.0).to(tl.float32)
    if EARLY:
        gdc_wait()
        gdc_launch_dependents()
    at = token * SIZE + col
    x = tl.load(x_ptr + at, mask=inside, other=0.0)
    if RESIDUAL:
        x = (x.to(tl.float32) + tl.load(residual_ptr + at, mask=inside, other=0.0).to(tl.float32)).to(x.dtype)
        tl.store(residual_ptr + at, x, mask=inside)
    wide = x.to(tl.float32)
    normed = wide * tl.rsqrt(tl.sum(wide * wide, 0) / SIZE + eps)
    normed = weighted(normed, weight, x.dtype, ROUND_FIRST)
    store_codes(normed, codes_ptr + at, scales_ptr + token, inside, LARGEST)
