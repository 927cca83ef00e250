"""A turn of a product's input in SLICES neighbouring pieces, each multiplied by warps of its own.

Tiles then have a first axis for the slice; without slices (SLICES is 1) they are plain matrices, and the same kernel
serves both. Weight tiles are [slices, outputs, columns], activations [slices, columns, rows], sums [slices, outputs,
rows].
"""

# mypy: disallow-untyped-defs=False, check-untyped-defs=False, allow-untyped-calls=True

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def slices(BLOCK_N: tl.constexpr, BLOCK_T: tl.constexpr, SLICES: tl.constexpr):
    """(numbers of the slices in the shape of tiles, the same in that of a vector of outputs, sums of zero)."""
    if SLICES > 1:
        number = tl.arange(0, SLICES)
        return number[:, None, None], number[:, None], tl.zeros((SLICES, BLOCK_N, BLOCK_T), tl.float32)
    else:
        return tl.zeros((1, 1), tl.int32), tl.zeros((1,), tl.int32), tl.zeros((BLOCK_N, BLOCK_T), tl.float32)


@triton.jit
def along_rows(x, SLICES: tl.constexpr):
    """[rows or outputs] in the shape of tiles of an input."""
    return x[None, :, None] if SLICES > 1 else x[:, None]


@triton.jit
def along_columns(x, SLICES: tl.constexpr):
    """[columns] in the shape of tiles of an input."""
    return x[None, None, :] if SLICES > 1 else x[None, :]


@triton.jit
def activations(x_ptr, at, t, rows, SIZE: tl.constexpr, SLICES: tl.constexpr):
    """The columns `at` of rows t of x [rows, SIZE], both in the shape of tiles, as the narrow operand; 0 beyond it."""
    x = tl.load(x_ptr + t * SIZE + at, mask=(t < rows) & (at < SIZE), other=0.0)
    return x.permute(0, 2, 1) if SLICES > 1 else x.T


@triton.jit
def outputs(sums, SLICES: tl.constexpr):
    """[rows, outputs] from the sums of all slices."""
    return tl.sum(sums, 0).T if SLICES > 1 else sums.T
