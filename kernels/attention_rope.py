"""Rotary embedding where the heads are used: what the decode kernels need to take a step's merged projection as it is.

A launch of its own for a few rows costs more than the work; so each program that needs a head's query turns it itself
(the pair of a channel comes from a second, cached load), and the one that attends to the newest key stores that key and
value. Norms of single heads (Qwen 3) come before, with the roundings of the textbook graph.
"""

# mypy: disallow-untyped-defs=False, check-untyped-defs=False, allow-untyped-calls=True

from __future__ import annotations

from dataclasses import dataclass

import triton
import triton.language as tl
from torch import Tensor

from octavo.kernels.rope import weighted


@dataclass(frozen=True, slots=True)
class NewTokens:
    """The newest token of every decode row: keys and values not yet in the pages, heads not yet rotated.

    k [R, Hkv, D] and v [R, Hkv, Dv] may be views with a dense last axis; `cos_sin` float32 [positions, rot_dim] as
    `rope_write` takes it; `slots` int64 [R] is where they are to be stored; norm weights [D] come together or not.
    """

    k: Tensor
    v: Tensor
    cos_sin: Tensor
    slots: Tensor
    q_weight: Tensor | None = None
    k_weight: Tensor | None = None
    eps: float = 0.0


@triton.jit
def load_rotated(
    heads,
    valid,
    position,
    cos_sin_ptr,
    weight_ptr,
    eps,
    DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
    HALF: tl.constexpr,
    NORM: tl.constexpr,
    ROUND_FIRST: tl.constexpr,
):
    """The heads at pointers `heads` [M], where `valid` [M], turned by the angles of `position` ([M] or [1])."""
    col = tl.arange(0, BLOCK_D)
    pair = tl.where(col < HALF, col + HALF, tl.where(col < 2 * HALF, col - HALF, col))
    angle = tl.where(col < HALF, col, col - HALF)
    mask = valid[:, None] & (col < DIM)[None, :]
    x = tl.load(heads[:, None] + col[None, :], mask=mask, other=0.0)
    y = tl.load(heads[:, None] + pair[None, :], mask=mask, other=0.0)
    turned = (col < 2 * HALF)[None, :]
    row = cos_sin_ptr + position.to(tl.int64)[:, None] * (2 * HALF) + angle[None, :]
    cos = tl.load(row, mask=turned, other=1.0)
    sin = tl.load(row + HALF, mask=turned, other=0.0)
    sin = tl.where((col < HALF)[None, :], -sin, sin)
    dtype = x.dtype
    x = x.to(tl.float32)
    y = y.to(tl.float32)
    if NORM:
        factor = tl.rsqrt(tl.sum(x * x, 1) / DIM + eps)[:, None]
        x = weighted(x * factor, weight_ptr + col, col < DIM, dtype, ROUND_FIRST)
        y = weighted(y * factor, weight_ptr + pair, col < DIM, dtype, ROUND_FIRST)
    return (x * cos + y * sin).to(dtype)
