"""Rows of activations as digits for whole-number tensor cores, in the order of interleaved codes; a norm included.

One program a row: it reads the row once, norms it, finds its largest magnitude and writes both digits of every number
(see digit_number.py), the row's step, and what zero points and shifts are multiplied by, each digit's sum over every
block of 128 columns. Digits lie as codes in words do (quant_weight.py): those of columns e and 64 + e of a block are
neighbours, which for 4-bit codes puts what meets lower halves of bytes into a block's first half. Bound by latency. To
let the product that follows start before the kernel before this one has ended cost more than it gained: its programs
take room from that kernel's.
"""

# mypy: disallow-untyped-defs=False, check-untyped-defs=False, allow-untyped-calls=True

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from octavo.kernels.dependent_launch import launches_early
from octavo.kernels.digit_number import digit_bits, digit_step, larger, largest
from octavo.kernels.quant_weight import BLOCK


@dataclass(frozen=True, slots=True)
class RowDigits:
    """Rows x [T, size]: digits int8 [2 T, blocks * 128], the upper digits of each row before its lower ones; step
    float32 [T], with the norm's factor; sums in x's type [2 T, 2, blocks], each sum as 256 * second + first."""

    digits: Tensor
    step: Tensor
    sums: Tensor


def row_digits(x: Tensor, norm: Tensor | None = None, eps: float = 0.0, sums: bool = False) -> RowDigits:
    """Of dense rows x [T, size], or of their RMS norm by `norm` [size]."""
    rows, size = x.shape
    blocks = triton.cdiv(size, BLOCK)
    found = RowDigits(
        torch.empty((2 * rows, blocks * BLOCK), dtype=torch.int8, device=x.device),
        torch.empty(rows, dtype=torch.float32, device=x.device),
        torch.empty((2 * rows, 2, blocks) if sums else (0,), dtype=x.dtype, device=x.device),
    )
    early = launches_early(x.device)
    options = {"launch_pdl": True} if early else {}
    block = max(BLOCK, triton.next_power_of_2(size))
    row_digits_kernel[(rows,)](
        x, x if norm is None else norm, found.digits.view(torch.int16), found.step, found.sums, eps,
        SIZE=size, BLOCK=block, NORM=norm is not None, SUMS=sums, EARLY=early,
        num_warps=min(32, max(4, block // 512)), **options,
    )  # fmt: skip
    return found


@triton.jit
def row_digits_kernel(
    x_ptr,
    norm_ptr,
    words_ptr,
    step_ptr,
    sums_ptr,
    eps,
    SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
    NORM: tl.constexpr,
    SUMS: tl.constexpr,
    EARLY: tl.constexpr,
):
    """words int16 [2 rows, blocks * 64] of two digits each; the rest as in RowDigits."""
    BLOCKS: tl.constexpr = (SIZE + 127) // 128
    ROW: tl.constexpr = BLOCKS * 64
    row = tl.program_id(0)
    word = tl.arange(0, BLOCK // 2)
    at = word // 64 * 128 + word % 64
    if NORM:
        low_norm = tl.load(norm_ptr + at, mask=at < SIZE, other=0.0).to(tl.float32)
        high_norm = tl.load(norm_ptr + at + 64, mask=at + 64 < SIZE, other=0.0).to(tl.float32)
    if EARLY:
        gdc_wait()
        gdc_launch_dependents()
    low = tl.load(x_ptr + row * SIZE + at, mask=at < SIZE, other=0.0).to(tl.float32)
    high = tl.load(x_ptr + row * SIZE + at + 64, mask=at + 64 < SIZE, other=0.0).to(tl.float32)
    inverse = 1.0
    if NORM:
        inverse = tl.rsqrt(tl.sum(low * low + high * high, 0) / SIZE + eps)
        low *= low_norm
        high *= high_norm
    most = largest(larger(tl.abs(low), tl.abs(high)), 0)
    low_bits = digit_bits(low, most)
    high_bits = digit_bits(high, most)
    upper = ((low_bits >> 8) & 255) | (high_bits & 65280)
    lower = ((low_bits & 255) | ((high_bits & 255) << 8)) ^ 32896  # 0x8080
    out = words_ptr + row * (2 * ROW) + word
    tl.store(out, upper.to(tl.int16), mask=word < ROW)
    tl.store(out + ROW, lower.to(tl.int16), mask=word < ROW)
    tl.store(step_ptr + row, digit_step(most) * inverse)
    if SUMS:
        uppers = ((low_bits << 16) >> 24) + ((high_bits << 16) >> 24)
        lowers = (low_bits & 255) + (high_bits & 255) - 256
        block = tl.arange(0, BLOCK // 128)
        _store_sums(sums_ptr + row * (4 * BLOCKS), uppers, block, BLOCKS)
        _store_sums(sums_ptr + row * (4 * BLOCKS) + 2 * BLOCKS, lowers, block, BLOCKS)


@triton.jit
def _store_sums(sums_ptr, pairs, block, BLOCKS: tl.constexpr):
    """Of every block's 64 pairs: whole numbers below 2^15, in two parts that 16-bit floats hold exactly."""
    found = tl.sum(pairs.reshape(pairs.shape[0] // 64, 64), 1)
    first = (found << 24) >> 24
    second = (found - first) >> 8
    kind: tl.constexpr = sums_ptr.dtype.element_ty
    # by way of float32, since the interpreter makes no bfloat16 of whole numbers
    tl.store(sums_ptr + block, first.to(tl.float32).to(kind), mask=block < BLOCKS)
    tl.store(sums_ptr + BLOCKS + block, second.to(tl.float32).to(kind), mask=block < BLOCKS)
