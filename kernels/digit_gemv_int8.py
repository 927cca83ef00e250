"""One row by int8 weights with whole-number multiply-adds: four products an instruction, no weight converted.

Grid: one program a block of BLOCK_N output features, over all of the input in turns of BLOCK_K columns, the next turn's
loads under way while one is computed. A thread loads 16 bytes of codes of every row of the block (16 weights, in the
order of quant_weight.py) and makes, once for the block, digits of the activations they meet (digit_number.py), whose
step is the thread's own: so a large activation takes precision from the few beside it only. The thread's sums are
exact. Norm before, bias, gated activation and residual after as in linear_gemv.py. Bound by reading the codes once.
"""

# A kernel's tuples grow while it is compiled, which types do not follow.
# mypy: ignore-errors

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from octavo.kernels.digit_number import digits_of_pairs, dot_of_bytes, whole_sum
from octavo.kernels.linear_epilogue import of_outputs
from octavo.kernels.linear_lines import lines_of, pairs_of, store_lines, zeros_of


@triton.jit(do_not_specialize=["outs"])
def digit_gemv_int8_kernel(
    x_ptr,
    norm_ptr,
    words_ptr,
    scale_ptr,
    bias_ptr,
    residual_ptr,
    out_ptr,
    ids_ptr,
    outs,
    eps,
    SIZE: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    NORM: tl.constexpr,
    BF16: tl.constexpr,
    BIAS: tl.constexpr,
    RESIDUAL: tl.constexpr,
    ACT: tl.constexpr,
    BEST: tl.constexpr,
    EARLY: tl.constexpr,
    ASM: tl.constexpr,
):
    """x [SIZE] as int32 pairs of float16, or of bfloat16 if BF16; words int32 [outs, blocks * 32], or of 2 outs =
    gate | up if ACT >= 0; scale [outs, 1]; residual, out [outs]. NORM as in quant_gemv.py.
    """
    GATED: tl.constexpr = ACT >= 0
    LINES: tl.constexpr = 2 * BLOCK_N if GATED else BLOCK_N
    ROW: tl.constexpr = (SIZE + 127) // 128 * 32  # words
    PARTS: tl.constexpr = BLOCK_K // 16  # of four words each, one a thread
    first = tl.program_id(0) * BLOCK_N
    word = tl.arange(0, PARTS)[:, None] * 4 + tl.arange(0, 4)[None, :]
    line = lines_of(first, outs, BLOCK_N, LINES)
    # what no kernel of the step writes is asked for before the kernel that computes x has ended
    w = _weights(words_ptr, line, word, ROW)
    if NORM > 0:
        norm = pairs_of(norm_ptr, word, SIZE, 8)
    out_col = first + tl.arange(0, BLOCK_N)
    valid = out_col < outs
    scale = of_outputs(scale_ptr, out_col, valid, outs, GATED, True)
    bias = of_outputs(bias_ptr, out_col, valid, outs, GATED, BIAS)
    if EARLY:
        gdc_wait()
        gdc_launch_dependents()
    x = pairs_of(x_ptr, word, SIZE, 8)
    residual = of_outputs(residual_ptr, out_col, valid, outs, False, RESIDUAL)
    none = tl.zeros((PARTS, 4), tl.int32)
    sums = zeros_of(LINES, PARTS)
    square = tl.zeros((PARTS, 4), tl.float32)
    for begin in range(0, ROW, PARTS * 4):
        this = w
        these = x
        if NORM > 0:
            this_norm = norm
        if ROW > PARTS * 4:
            # the next turn's loads are under way while this turn's are used
            ahead = begin + PARTS * 4
            w = _weights(words_ptr, line, ahead + word, ROW)
            if NORM > 0:
                norm = pairs_of(norm_ptr, ahead + word, SIZE, 8)
            x = pairs_of(x_ptr, ahead + word, SIZE, 8)
        square, uppers, lowers, step = digits_of_pairs(
            these, this_norm if NORM > 0 else these, square, 8, NORM, BF16, ASM
        )
        more = ()
        for n in tl.static_range(LINES):
            upper = dot_of_bytes(this[n], uppers[0], none, ASM)
            lower = dot_of_bytes(this[n], lowers[0], none, ASM)
            more += (sums[n] + whole_sum(upper, lower) * step,)
        sums = more
    store_lines(
        sums, (square,), scale, bias, residual, out_ptr, ids_ptr, outs, eps, SIZE, 1, BLOCK_N, NORM > 0, ACT, BEST
    )


@triton.jit
def _weights(words_ptr, line, word, ROW: tl.constexpr):
    """Of every row [parts, 4] words, read once and not kept in the caches."""
    w = ()
    for n in tl.static_range(len(line)):
        w += (tl.load(words_ptr + line[n] * ROW + word, mask=word < ROW, other=0, eviction_policy="evict_first"),)
    return w
