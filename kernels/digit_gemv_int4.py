"""One row by int4 weights with whole-number multiply-adds: four products an instruction, no weight converted.

Grid: as many programs as the device holds at a time, or fewer; each takes blocks of BLOCK_N output features, over all
of the input. A thread makes digits of the activations it meets (digit_number.py) once and keeps them in registers for
all its blocks; their step is the thread's own, so a large activation takes precision from the few beside it only. Of
every row of a block it loads 16 bytes of codes a turn (32 weights, in the order of quant_weight.py), if AHEAD while the
block before is computed. Its sums are exact; a group's scale and zero point or shift and the step are applied to them
in float32. Norm before, bias, gated activation and residual after as in linear_gemv.py. Bound by reading the codes
once.
"""

# A kernel's tuples grow while it is compiled, which types do not follow.
# mypy: ignore-errors

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from octavo.kernels.digit_number import digits_of_pairs, dot_of_bytes, nibbles, whole_sum
from octavo.kernels.linear_epilogue import of_outputs, store_block
from octavo.kernels.linear_lines import pairs_of, summed


@triton.jit(do_not_specialize=["outs", "blocks"])
def digit_gemv_int4_kernel(
    x_ptr,
    norm_ptr,
    words_ptr,
    scale_ptr,
    zero_ptr,
    bias_ptr,
    residual_ptr,
    out_ptr,
    ids_ptr,
    outs,
    blocks,
    eps,
    SIZE: tl.constexpr,
    GROUP: tl.constexpr,
    OFFSET: tl.constexpr,
    ZERO: tl.constexpr,
    BLOCK_N: tl.constexpr,
    PARTS: tl.constexpr,
    AHEAD: tl.constexpr,
    NORM: tl.constexpr,
    BF16: tl.constexpr,
    BIAS: tl.constexpr,
    RESIDUAL: tl.constexpr,
    ACT: tl.constexpr,
    BEST: tl.constexpr,
    EARLY: tl.constexpr,
    ASM: tl.constexpr,
):
    """x [SIZE] as int32 pairs of float16, or of bfloat16 if BF16; words int32 [outs, blocks * 16], or of 2 outs =
    gate | up if ACT >= 0; scale [outs, groups], GROUP a multiple of 128; residual, out [outs].

    `blocks` of BLOCK_N outputs each; PARTS threads. OFFSET, ZERO and NORM as in quant_gemv.py.
    """
    GATED: tl.constexpr = ACT >= 0
    LINES: tl.constexpr = 2 * BLOCK_N if GATED else BLOCK_N
    ROW: tl.constexpr = (SIZE + 127) // 128 * 16  # words
    TURNS: tl.constexpr = (ROW + PARTS * 4 - 1) // (PARTS * 4)
    part = tl.arange(0, PARTS)
    word = part[:, None] * 4 + tl.arange(0, 4)[None, :]
    none = tl.zeros((PARTS, 4), tl.int32)
    block = tl.program_id(0)
    # what no kernel of the step writes is asked for before the kernel that computes x has ended
    w, scale, zero = _weights(
        words_ptr, scale_ptr, zero_ptr, block, outs, word, part, SIZE, GROUP, ZERO, BLOCK_N, LINES, TURNS, PARTS
    )
    if EARLY:
        gdc_wait()
        gdc_launch_dependents()
    square = tl.zeros((PARTS, 4), tl.float32)
    uppers = ()
    lowers = ()
    steps = ()
    plains = ()
    for turn in tl.static_range(TURNS):
        x = pairs_of(x_ptr, turn * PARTS * 4 + word, SIZE, 4)
        norm = pairs_of(norm_ptr, turn * PARTS * 4 + word, SIZE, 4) if NORM > 0 else x
        square, more_uppers, more_lowers, step = digits_of_pairs(x, norm, square, 4, NORM, BF16, ASM)
        ones = none + 0x01010101
        upper_sum = dot_of_bytes(more_uppers[1], ones, dot_of_bytes(more_uppers[0], ones, none, ASM), ASM)
        lower_sum = dot_of_bytes(more_lowers[1], ones, dot_of_bytes(more_lowers[0], ones, none, ASM), ASM)
        uppers += more_uppers
        lowers += more_lowers
        steps += (step,)
        plains += (whole_sum(upper_sum, lower_sum) * step,)
    inverse = 1.0
    if NORM > 0:
        inverse = tl.rsqrt(tl.sum(tl.sum(square, 1), 0) / SIZE + eps)
    while block < blocks:
        this = w
        this_scale = scale
        this_zero = zero
        ahead = block + tl.num_programs(0)
        if AHEAD:
            w, scale, zero = _weights(
                words_ptr, scale_ptr, zero_ptr, ahead, outs, word, part,
                SIZE, GROUP, ZERO, BLOCK_N, LINES, TURNS, PARTS,
            )  # fmt: skip
        out_col = block * BLOCK_N + tl.arange(0, BLOCK_N)
        valid = out_col < outs
        residual = of_outputs(residual_ptr, out_col, valid, outs, False, RESIDUAL)
        bias = of_outputs(bias_ptr, out_col, valid, outs, GATED, BIAS)
        sums = ()
        for n in tl.static_range(LINES):
            for turn in tl.static_range(TURNS):
                first, second = nibbles(this[n * TURNS + turn], ASM)
                upper = dot_of_bytes(first, uppers[2 * turn], none, ASM)
                upper = dot_of_bytes(second, uppers[2 * turn + 1], upper, ASM)
                lower = dot_of_bytes(first, lowers[2 * turn], none, ASM)
                lower = dot_of_bytes(second, lowers[2 * turn + 1], lower, ASM)
                its_scale = this_scale[n * TURNS + turn].to(tl.float32)
                its = whole_sum(upper, lower) * steps[turn] * its_scale
                if ZERO == 2:
                    its += this_zero[n * TURNS + turn].to(tl.float32) * plains[turn]
                elif ZERO == 1:
                    its -= this_zero[n * TURNS + turn].to(tl.float32) * its_scale * plains[turn]
                else:
                    its -= OFFSET * its_scale * plains[turn]
                if turn == 0:
                    total = its
                else:
                    total += its
            sums += (total,)
        y = summed(sums, 0, BLOCK_N)
        u = y
        if GATED:
            u = summed(sums, BLOCK_N, BLOCK_N)
        store_block(
            y, u, inverse, bias, residual, out_ptr, ids_ptr, outs, block, blocks, 0, BLOCK_N, NORM > 0, ACT, BEST,
        )  # fmt: skip
        block = ahead
        if not AHEAD:
            w, scale, zero = _weights(
                words_ptr, scale_ptr, zero_ptr, ahead, outs, word, part,
                SIZE, GROUP, ZERO, BLOCK_N, LINES, TURNS, PARTS,
            )  # fmt: skip


@triton.jit
def _weights(
    words_ptr,
    scale_ptr,
    zero_ptr,
    block,
    outs,
    word,
    part,
    SIZE: tl.constexpr,
    GROUP: tl.constexpr,
    ZERO: tl.constexpr,
    BLOCK_N: tl.constexpr,
    LINES: tl.constexpr,
    TURNS: tl.constexpr,
    PARTS: tl.constexpr,
):
    """Of every row of a block and every turn [parts, 4] words, read once and not kept in the caches, and
    [parts] scales and zero points or shifts. A tensor each: so all have the layout of the activations they meet."""
    ROW: tl.constexpr = (SIZE + 127) // 128 * 16
    GROUPS: tl.constexpr = (SIZE + GROUP - 1) // GROUP
    w = ()
    scale = ()
    zero = ()
    for n in tl.static_range(LINES):
        row = tl.minimum(block * BLOCK_N + n % BLOCK_N, outs - 1).to(tl.int64)
        if n >= BLOCK_N:
            row += outs
        for turn in tl.static_range(TURNS):
            at = turn * PARTS * 4 + word
            group = (turn * PARTS + part) // (GROUP // 32)
            if ROW % (PARTS * 4) == 0:
                w += (tl.load(words_ptr + row * ROW + at, eviction_policy="evict_first"),)
            else:
                w += (tl.load(words_ptr + row * ROW + at, mask=at < ROW, other=0, eviction_policy="evict_first"),)
            scale += (tl.load(scale_ptr + row * GROUPS + group, mask=group < GROUPS, other=0.0),)
            if ZERO > 0:
                zero += (tl.load(zero_ptr + row * GROUPS + group, mask=group < GROUPS, other=0),)
    return w, scale, zero
