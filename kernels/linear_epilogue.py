"""What stands behind a product of few rows: norm, bias, gate, residual, and the best output of a block.

What may be there or not is a tuple: of a weight's bias and scales () without any, (own,), or (gate's, up's) if the
weight is gated; of the residual () or a tensor a row (of a tile: one). Sums are float32.
"""

# mypy: disallow-untyped-defs=False, check-untyped-defs=False, allow-untyped-calls=True

from __future__ import annotations

import triton
import triton.language as tl

from octavo.kernels.activation import activated


@triton.jit
def of_outputs(plane_ptr, out, inside, outs, GATED: tl.constexpr, THERE: tl.constexpr):
    """What a plane [outs], or [2 outs] = gate | up if GATED, has for outputs `out` where they are `inside`: a tuple, ()
    if it is not THERE."""
    if not THERE:
        return ()
    elif GATED:
        own = tl.load(plane_ptr + out, mask=inside, other=0.0)
        return own, tl.load(plane_ptr + outs + out, mask=inside, other=0.0)
    else:
        return (tl.load(plane_ptr + out, mask=inside, other=0.0),)


@triton.jit
def of_tile(residual_ptr, t, n, rows, outs, THERE: tl.constexpr):
    """What the residual [rows, outs] has for rows t and outputs n: a tuple, () if it is not THERE."""
    if not THERE:
        return ()
    else:
        inside = (t < rows)[:, None] & (n < outs)[None, :]
        return (tl.load(residual_ptr + t[:, None] * outs + n[None, :], mask=inside, other=0.0),)


@triton.jit
def store_row(
    y,
    u,
    square,
    bias,
    residual,
    out_ptr,
    ids_ptr,
    outs,
    eps,
    t: tl.constexpr,
    SIZE: tl.constexpr,
    BLOCK_N: tl.constexpr,
    NORM: tl.constexpr,
    ACT: tl.constexpr,
    BEST: tl.constexpr,
):
    """Row t of the program's block of outputs from its sums y [BLOCK_N] (and u, those of the up half, if ACT >= 0).
    NORM divides by the root of the mean of `square` ([columns], or of two axes) summed; BEST as in `store_block`."""
    inverse = 1.0
    if NORM:
        if len(square.shape) == 2:
            square = tl.sum(square, 1)
        inverse = tl.rsqrt(tl.sum(square, 0) / SIZE + eps)
    store_block(
        y, u, inverse, bias, residual, out_ptr, ids_ptr, outs, tl.program_id(0), tl.num_programs(0),
        t, BLOCK_N, NORM, ACT, BEST,
    )  # fmt: skip


@triton.jit
def store_block(
    y,
    u,
    inverse,
    bias,
    residual,
    out_ptr,
    ids_ptr,
    outs,
    block,
    blocks,
    t: tl.constexpr,
    BLOCK_N: tl.constexpr,
    NORM: tl.constexpr,
    ACT: tl.constexpr,
    BEST: tl.constexpr,
):
    """Row t of the block-th of so many blocks of outputs, its sums multiplied by `inverse` if NORM. BEST keeps only the
    block's highest value and its lowest index, NaN if there is one."""
    GATED: tl.constexpr = ACT >= 0
    first = block * BLOCK_N
    out_col = first + tl.arange(0, BLOCK_N)
    valid = out_col < outs
    if NORM:
        y *= inverse
        if GATED:
            u *= inverse
    if len(bias) > 0:
        y += bias[0].to(tl.float32)
        if GATED:
            u += bias[1].to(tl.float32)
    if GATED:
        y = activated(y, ACT) * u
    if len(residual) > 0:
        y += residual[t].to(tl.float32)
    if BEST:
        y = tl.where(valid, y, float("-inf"))
        broken = tl.max((y != y).to(tl.int32), 0)
        y = tl.where(y == y, y, float("-inf"))
        best, index = tl.max(y, 0, return_indices=True, return_indices_tie_break_left=True)
        at = t * blocks + block
        tl.store(out_ptr + at, tl.where(broken > 0, float("nan"), best))
        tl.store(ids_ptr + at, tl.minimum(first + index, outs - 1))
    else:
        tl.store(out_ptr + t * outs + out_col, y.to(out_ptr.dtype.element_ty), mask=valid)


@triton.jit
def store_tile(
    y,
    u,
    squares_ptr,
    bias,
    residual,
    out_ptr,
    ids_ptr,
    next_norm_ptr,
    next_x_ptr,
    next_squares_ptr,
    rows,
    outs,
    parts,
    eps,
    first,
    block,
    blocks,
    SIZE: tl.constexpr,
    BLOCK_T: tl.constexpr,
    BLOCK_N: tl.constexpr,
    PARTS: tl.constexpr,
    NEXT: tl.constexpr,
    ACT: tl.constexpr,
    BEST: tl.constexpr,
):
    """The same for the outputs from `first` on, the block-th of so many blocks, and the program's rows: sums y and u
    [BLOCK_T, BLOCK_N]. PARTS > 0 adds up squares [rows, parts] for the norm. NEXT also writes next_x = out * next_norm
    and next_squares [rows, blocks]; BEST [rows, blocks] values and indices."""
    GATED: tl.constexpr = ACT >= 0
    t = tl.program_id(1) * BLOCK_T + tl.arange(0, BLOCK_T)
    n = first + tl.arange(0, BLOCK_N)
    out_at = t[:, None] * outs + n[None, :]
    valid = (t < rows)[:, None] & (n < outs)[None, :]
    if PARTS > 0:
        part = tl.arange(0, PARTS)
        square = tl.load(
            squares_ptr + t[:, None] * parts + part[None, :],
            mask=(t < rows)[:, None] & (part < parts)[None, :],
            other=0.0,
        )
        inverse = tl.rsqrt(tl.sum(square, 1) / SIZE + eps)[:, None]
        y *= inverse
        u *= inverse
    if len(bias) > 0:
        y += bias[0].to(tl.float32)[None, :]
        if GATED:
            u += bias[1].to(tl.float32)[None, :]
    if GATED:
        y = activated(y, ACT) * u
    if len(residual) > 0:
        y += residual[0].to(tl.float32)
    if BEST:
        y = tl.where((n < outs)[None, :], y, float("-inf"))
        broken = tl.max((y != y).to(tl.int32), 1)
        y = tl.where(y == y, y, float("-inf"))
        best, index = tl.max(y, 1, return_indices=True, return_indices_tie_break_left=True)
        at = t * blocks + block
        tl.store(out_ptr + at, tl.where(broken > 0, float("nan"), best), mask=t < rows)
        tl.store(ids_ptr + at, tl.minimum(first + index, outs - 1), mask=t < rows)
    else:
        rounded = y.to(out_ptr.dtype.element_ty)
        tl.store(out_ptr + out_at, rounded, mask=valid)
        if NEXT:
            wide = tl.where(valid, rounded.to(tl.float32), 0.0)
            scale = tl.load(next_norm_ptr + n, mask=n < outs, other=0.0).to(tl.float32)
            tl.store(next_x_ptr + out_at, (wide * scale[None, :]).to(next_x_ptr.dtype.element_ty), mask=valid)
            tl.store(next_squares_ptr + t * blocks + block, tl.sum(wide * wide, 1), mask=t < rows)
