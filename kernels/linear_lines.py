"""What the products of one or two rows share that hold each row of the weight as a tensor of its own, a line.

A line's entries lie over the threads as the activations do that they meet, so that all of them meet in registers, and a
thread multiplies what it has loaded; only the sums of a block's lines leave it. A gated weight's lines are the gates of
a block of outputs, then their ups.
"""

# A kernel's tuples grow while it is compiled, which types do not follow.
# mypy: ignore-errors

from __future__ import annotations

import triton
import triton.language as tl

from octavo.kernels.linear_epilogue import store_row


@triton.jit
def lines_of(first, outs, BLOCK_N: tl.constexpr, LINES: tl.constexpr):
    """int64 rows of the weight for the BLOCK_N outputs from `first` on, one a line; beyond the last the last."""
    line = ()
    for n in tl.static_range(LINES):
        row = tl.minimum(first + n % BLOCK_N, outs - 1).to(tl.int64)
        line += (row + outs if n >= BLOCK_N else row,)
    return line


@triton.jit
def words_of(words_ptr, line, word, ROW: tl.constexpr):
    """Of every line of ROW words those at `word`, read once and not kept in the caches; 0 beyond it."""
    found = ()
    for n in tl.static_range(len(line)):
        at = words_ptr + line[n] * ROW + word
        found += (tl.load(at, mask=word < ROW, other=0, eviction_policy="evict_first"),)
    return found


@triton.jit
def pairs_of(pairs_ptr, word, SIZE: tl.constexpr, BITS: tl.constexpr):
    """Of the columns that the codes of 32-bit words of a row belong to, the pairs of neighbours: one tensor a code's
    place in a 16-bit word. Pairs as in quant_number.pair."""
    PER_BLOCK: tl.constexpr = 4 * BITS  # words
    found = ()
    for q in tl.static_range(16 // BITS):
        at = word // PER_BLOCK * 64 + q * PER_BLOCK + word % PER_BLOCK
        found += (tl.load(pairs_ptr + at, mask=at < SIZE // 2, other=0),)
    return found


@triton.jit
def four_of(w):
    """[4 threads] words, four neighbours a thread, as four tensors [threads]."""
    even, odd = tl.split(w.reshape(w.shape[0] // 4, 2, 2))
    first, third = tl.split(even)
    second, fourth = tl.split(odd)
    return first, second, third, fourth


@triton.jit
def zeros_of(COUNT: tl.constexpr, SIZE: tl.constexpr):
    """COUNT float32 tensors [SIZE] of zeros."""
    found = ()
    for _ in tl.static_range(COUNT):
        found += (tl.zeros((SIZE,), tl.float32),)
    return found


@triton.jit
def summed(sums, at: tl.constexpr, COUNT: tl.constexpr):
    """[COUNT] sums of that many tensors from sums[at] on, COUNT being 2, 4 or 8."""
    if COUNT == 2:
        together = tl.join(sums[at], sums[at + 1])
    elif COUNT == 4:
        together = tl.join(tl.join(sums[at], sums[at + 2]), tl.join(sums[at + 1], sums[at + 3]))
    else:
        even = tl.join(tl.join(sums[at], sums[at + 4]), tl.join(sums[at + 2], sums[at + 6]))
        odd = tl.join(tl.join(sums[at + 1], sums[at + 5]), tl.join(sums[at + 3], sums[at + 7]))
        together = tl.join(even, odd)
    return tl.sum(together.reshape(together.shape[0], COUNT), 0)


@triton.jit
def store_lines(
    sums,
    squares,
    scale,
    bias,
    residual,
    out_ptr,
    ids_ptr,
    outs,
    eps,
    SIZE: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK_N: tl.constexpr,
    NORM: tl.constexpr,
    ACT: tl.constexpr,
    BEST: tl.constexpr,
):
    """The program's block of outputs of ROWS rows, from the threads' sums of every row's lines, and their squares of
    every row if NORM. The rest as in linear_epilogue.py; `scale` is what a line's sum is multiplied by."""
    GATED: tl.constexpr = ACT >= 0
    LINES: tl.constexpr = 2 * BLOCK_N if GATED else BLOCK_N
    for t in tl.static_range(ROWS):
        y = summed(sums, t * LINES, BLOCK_N)
        u = y
        if GATED:
            u = summed(sums, t * LINES + BLOCK_N, BLOCK_N)
        if len(scale) > 0:
            y *= scale[0].to(tl.float32)
            if GATED:
                u *= scale[1].to(tl.float32)
        store_row(y, u, squares[t], bias, residual, out_ptr, ids_ptr, outs, eps, t, SIZE, BLOCK_N, NORM, ACT, BEST)
