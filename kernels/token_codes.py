"""Activations in 8 bits, every token by a scale of its own, and what becomes of the sums of whole-number products.

`round_tokens`: one program a token, which reads it twice (the second time from a cache) and writes codes and scale, in
place of a handful of operations that each move the whole batch in float32. `scale_sums`: a tile of sums times the
scales of its tokens and outputs, plus the bias, written in 16 bits; `gated_sums`: the same of gates and what they gate.
All are bound by the bytes they move.
"""

# mypy: disallow-untyped-defs=False, check-untyped-defs=False, allow-untyped-calls=True

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from octavo.kernels.activation import ACTIVATIONS, activated

LARGEST = {torch.int8: 127.0, torch.float8_e4m3fn: 448.0}
_BLOCK = 2048


def round_tokens_reference(x: Tensor, kind: torch.dtype) -> tuple[Tensor, Tensor]:
    """x [T, in] to codes of `kind` (int8 or float8_e4m3fn) and each token's float32 scale [T, 1]."""
    wide = x.float()
    scales = wide.abs().amax(-1, keepdim=True).clamp_(min=1e-12) / LARGEST[kind]
    rounded = wide / scales
    return (rounded.round_() if kind == torch.int8 else rounded.clamp_(-448.0, 448.0)).to(kind), scales


def round_tokens(x: Tensor, kind: torch.dtype) -> tuple[Tensor, Tensor]:
    """As `round_tokens_reference`, in one pass; E4M3 needs compute capability 8.9."""
    x = x.contiguous()
    tokens, size = x.shape
    codes = torch.empty((tokens, size), dtype=kind, device=x.device)
    scales = torch.empty((tokens, 1), dtype=torch.float32, device=x.device)
    if tokens:
        _round_kernel[(tokens,)](
            x, codes, scales, SIZE=size, BLOCK=min(_BLOCK, triton.next_power_of_2(size)), LARGEST=LARGEST[kind],
            num_warps=4,
        )  # fmt: skip
    return codes, scales


def scale_sums(sums: Tensor, token_scales: Tensor, scales: Tensor, bias: Tensor | None, dtype: torch.dtype) -> Tensor:
    """Sums [T, out] of codes * token_scales [T, 1] * scales [out, 1] + bias [out], in float32 until it is rounded."""
    tokens, outs = sums.shape
    out = torch.empty((tokens, outs), dtype=dtype, device=sums.device)
    _scale_kernel[(tokens, triton.cdiv(outs, _BLOCK))](
        sums, token_scales, scales, scales if bias is None else bias, out, outs,
        BIAS=bias is not None, BLOCK=_BLOCK, num_warps=4,
    )  # fmt: skip
    return out


def gated_sums(
    sums: Tensor, token_scales: Tensor, scales: Tensor, bias: Tensor | None, act: str, dtype: torch.dtype
) -> Tensor:
    """act(gate) * up [T, I] of gate | up = the numbers [T, 2I] that `scale_sums` would write, in one launch."""
    tokens, size = sums.shape[0], sums.shape[1] // 2
    out = torch.empty((tokens, size), dtype=dtype, device=sums.device)
    if tokens:
        block = min(_BLOCK, triton.next_power_of_2(size))
        _gate_kernel[(tokens, triton.cdiv(size, block))](
            sums, token_scales, scales, scales if bias is None else bias, out,
            SIZE=size, BLOCK=block, ACT=ACTIVATIONS[act], BIAS=bias is not None, num_warps=min(8, max(1, block // 256)),
            enable_fp_fusion=False,
        )  # fmt: skip
    return out


@triton.jit
def _round_kernel(x_ptr, codes_ptr, scales_ptr, SIZE: tl.constexpr, BLOCK: tl.constexpr, LARGEST: tl.constexpr):
    """Grid (tokens), x and codes [T, SIZE], scales [T]: a row is read once for its largest number, once for codes."""
    token = tl.program_id(0).to(tl.int64)
    col = tl.arange(0, BLOCK)
    largest = tl.zeros((BLOCK,), tl.float32)
    for begin in range(0, SIZE, BLOCK):
        x = tl.load(x_ptr + token * SIZE + begin + col, mask=begin + col < SIZE, other=0.0).to(tl.float32)
        largest = tl.maximum(largest, tl.where(x == x, tl.abs(x), float("inf")))
    most = tl.max(largest, 0)
    # a token that is no number makes results that are none
    scale = tl.where(most < float("inf"), tl.maximum(most, 1e-12) / LARGEST, float("nan"))
    tl.store(scales_ptr + token, scale)
    for begin in range(0, SIZE, BLOCK):
        inside = begin + col < SIZE
        x = tl.load(x_ptr + token * SIZE + begin + col, mask=inside, other=0.0).to(tl.float32)
        y = code_of(x, scale, codes_ptr.dtype.element_ty, LARGEST)
        tl.store(codes_ptr + token * SIZE + begin + col, y, mask=inside)


@triton.jit
def store_codes(x, codes, scale_ptr, inside, LARGEST: tl.constexpr):
    """A token's float32 x [columns], 0 where not `inside`, as codes where `codes` points to, and its scale."""
    most = tl.max(tl.where(x == x, tl.abs(x), float("inf")), 0)
    # a token that is no number makes results that are none
    scale = tl.where(most < float("inf"), tl.maximum(most, 1e-12) / LARGEST, float("nan"))
    tl.store(scale_ptr, scale)
    tl.store(codes, code_of(x, scale, codes.dtype.element_ty, LARGEST), mask=inside)


@triton.jit
def code_of(x, scale, kind: tl.constexpr, LARGEST: tl.constexpr):
    """x / scale to the nearest code."""
    y = tl.minimum(tl.maximum(x / scale, -LARGEST), LARGEST)
    if kind == tl.int8:
        y = (y + 12582912.0) - 12582912.0  # 1.5 * 2^23 leaves no bits behind the point: to the nearest even
    return y.to(kind)


@triton.jit(do_not_specialize=["outs"])
def _scale_kernel(
    sums_ptr, token_scales_ptr, scales_ptr, bias_ptr, out_ptr, outs, BIAS: tl.constexpr, BLOCK: tl.constexpr
):
    """Grid (tokens, blocks of BLOCK outputs); shapes as in `scale_sums`."""
    token = tl.program_id(0).to(tl.int64)
    n = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = n < outs
    y = tl.load(sums_ptr + token * outs + n, mask=inside, other=0).to(tl.float32)
    y *= tl.load(token_scales_ptr + token)
    y *= tl.load(scales_ptr + n, mask=inside, other=0.0).to(tl.float32)
    if BIAS:
        y += tl.load(bias_ptr + n, mask=inside, other=0.0).to(tl.float32)
    tl.store(out_ptr + token * outs + n, y.to(out_ptr.dtype.element_ty), mask=inside)


@triton.jit
def _gate_kernel(
    sums_ptr,
    token_scales_ptr,
    scales_ptr,
    bias_ptr,
    out_ptr,
    SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
    ACT: tl.constexpr,
    BIAS: tl.constexpr,
):
    """Grid (tokens, blocks of BLOCK outputs): sums int32 [T, 2 SIZE]; out [T, SIZE]."""
    token = tl.program_id(0).to(tl.int64)
    n = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = n < SIZE
    token_scale = tl.load(token_scales_ptr + token)
    gate = _scaled(sums_ptr + token * (2 * SIZE) + n, scales_ptr + n, bias_ptr + n, token_scale, inside, BIAS)
    up = _scaled(
        sums_ptr + token * (2 * SIZE) + SIZE + n, scales_ptr + SIZE + n, bias_ptr + SIZE + n, token_scale, inside, BIAS
    )
    y = activated(gate.to(out_ptr.dtype.element_ty).to(tl.float32), ACT).to(out_ptr.dtype.element_ty)
    up = up.to(out_ptr.dtype.element_ty)
    tl.store(out_ptr + token * SIZE + n, y.to(tl.float32) * up.to(tl.float32), mask=inside)


@triton.jit
def _scaled(sums, scales, bias, token_scale, inside, BIAS: tl.constexpr):
    y = tl.load(sums, mask=inside, other=0).to(tl.float32) * token_scale
    y *= tl.load(scales, mask=inside, other=0.0).to(tl.float32)
    if BIAS:
        y += tl.load(bias, mask=inside, other=0.0).to(tl.float32)
    return y
