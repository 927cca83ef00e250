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

from octavo.kernels.rms_norm import weighted


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
    FRESH: tl.constexpr,
):
    """The heads at pointers `heads` [M], where `valid` [M], turned by the angles of `position` ([M] or [1]).

    FRESH: past the multiprocessor's own cache, which may be older than a kernel that started without waiting.
    """
    FROM: tl.constexpr = ".cg" if FRESH else ""
    angles = cos_sin_ptr + position.to(tl.int64) * (2 * HALF)
    if 2 * HALF == BLOCK_D:  # channels as [2, HALF]: pairs lie side by side, and every load is a wide one
        side = tl.arange(0, 2)[None, :, None]
        col = tl.arange(0, HALF)[None, None, :]
        row = heads[:, None, None]
        x = tl.load(row + side * HALF + col, mask=valid[:, None, None], other=0.0, cache_modifier=FROM)
        y = tl.load(row + (1 - side) * HALF + col, mask=valid[:, None, None], other=0.0, cache_modifier=FROM)
        cos = tl.load(angles[:, None, None] + col)
        sin = tl.load(angles[:, None, None] + HALF + col)
        sin = tl.where(side == 0, -sin, sin)
        dtype = x.dtype
        x = x.to(tl.float32)
        y = y.to(tl.float32)
        if NORM:
            factor = tl.rsqrt(tl.sum(tl.sum(x * x, 2), 1) / DIM + eps)[:, None, None]
            x = weighted(x * factor, tl.load(weight_ptr + side * HALF + col), dtype, ROUND_FIRST)
            y = weighted(y * factor, tl.load(weight_ptr + (1 - side) * HALF + col), dtype, ROUND_FIRST)
        turned = tl.reshape((x * cos + y * sin).to(dtype), [heads.shape[0], BLOCK_D])
    else:
        col = tl.arange(0, BLOCK_D)
        pair = tl.where(col < HALF, col + HALF, tl.where(col < 2 * HALF, col - HALF, col))
        angle = tl.where(col < HALF, col, col - HALF)[None, :]
        mask = valid[:, None] & (col < DIM)[None, :]
        x = tl.load(heads[:, None] + col[None, :], mask=mask, other=0.0, cache_modifier=FROM)
        y = tl.load(heads[:, None] + pair[None, :], mask=mask, other=0.0, cache_modifier=FROM)
        in_rotary = (col < 2 * HALF)[None, :]
        cos = tl.load(angles[:, None] + angle, mask=in_rotary, other=1.0)
        sin = tl.load(angles[:, None] + HALF + angle, mask=in_rotary, other=0.0)
        sin = tl.where((col < HALF)[None, :], -sin, sin)
        dtype = x.dtype
        x = x.to(tl.float32)
        y = y.to(tl.float32)
        if NORM:
            factor = tl.rsqrt(tl.sum(x * x, 1) / DIM + eps)[:, None]
            weight = tl.load(weight_ptr + col, mask=col < DIM, other=0.0)[None, :]
            x = weighted(x * factor, weight, dtype, ROUND_FIRST)
            weight = tl.load(weight_ptr + pair, mask=col < DIM, other=0.0)[None, :]
            y = weighted(y * factor, weight, dtype, ROUND_FIRST)
        turned = (x * cos + y * sin).to(dtype)
    return turned
