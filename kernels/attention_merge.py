"""Partial results of attention over runs of a row's keys: how they lie in memory, and how they become one.

Each is float32 values, divided by their own sum of weights, and a base-2 log-sum-exp, by which they are weighed
(Flash-Decoding: Dao et al. 2023). They are always taken in the order of the keys, so that results have the same bits
every time. Bound by latency: several results are asked for at once.
"""

# mypy: disallow-untyped-defs=False, check-untyped-defs=False, allow-untyped-calls=True

import triton
import triton.language as tl

LSE_COPIES = tl.constexpr(4)  # float32 values a thread loads at once


@triton.jit
def weigh(
    acc,
    peak,
    total,
    values_ptr,
    lse_ptr,
    stride,
    count,
    head,
    valid,
    V_DIM: tl.constexpr,
    BLOCK_V: tl.constexpr,
    UNROLL: tl.constexpr,
):
    """Folds `count` partial results, `stride` heads apart, into (acc, peak, total), each [G, BLOCK_V].

    Every thread weighs its own channels: the loads of UNROLL results are in flight at once, and nothing is exchanged
    between threads, which cost more than reading a weight once a channel. A result's log-sum-exp is stored as often as
    a thread loads values at once, so that both loads lie alike over the threads.
    """
    col_v = tl.arange(0, BLOCK_V)[None, :]
    for at in range(0, count, UNROLL):
        for step in tl.static_range(UNROLL):
            source = ((at + step) * stride + head)[:, None]
            copy = source * LSE_COPIES + col_v % LSE_COPIES
            there = valid[:, None] & (col_v < tl.where(at + step < count, V_DIM, 0))
            base2 = tl.load(lse_ptr + copy, mask=there, other=float("-inf"), cache_modifier=".cg")
            values = tl.load(values_ptr + source * V_DIM + col_v, mask=there, other=0.0, cache_modifier=".cg")
            new_peak = tl.maximum(peak, base2)
            anchor = tl.where(new_peak == float("-inf"), 0.0, new_peak)
            weight = tl.exp2(base2 - anchor)
            decay = tl.exp2(peak - anchor)
            total = total * decay + weight
            acc = acc * decay + weight * values
            peak = new_peak
    return acc, peak, total


@triton.jit
def merge_runs(
    out_ptr,
    lse_ptr,
    partial_ptr,
    partial_lse_ptr,
    prefix_ptr,
    prefix_lse_ptr,
    row,
    base,
    runs,
    prefix_stride,
    prefix_runs,
    first_head,
    in_group,
    Q_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    V_DIM: tl.constexpr,
    BLOCK_V: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_G: tl.constexpr,
    UNROLL: tl.constexpr,
    SHARED: tl.constexpr,
    LSE: tl.constexpr,
):
    """Weighs a row's partial results, those of a shared prefix first, and writes the row's heads of one tile."""
    lane = in_group + tl.arange(0, BLOCK_G)
    valid = (lane < GROUP) & (lane < in_group + BLOCK_M)
    head = first_head + lane
    col_v = tl.arange(0, BLOCK_V)
    acc = tl.zeros([BLOCK_G, BLOCK_V], tl.float32)
    peak = tl.full([BLOCK_G, BLOCK_V], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_G, BLOCK_V], tl.float32)
    if SHARED:
        acc, peak, total = weigh(
            acc, peak, total, prefix_ptr + row * Q_HEADS * V_DIM, prefix_lse_ptr + row * Q_HEADS * LSE_COPIES,
            prefix_stride, prefix_runs, head, valid, V_DIM, BLOCK_V, UNROLL,
        )  # fmt: skip
    acc, peak, total = weigh(
        acc, peak, total, partial_ptr + base * Q_HEADS * V_DIM, partial_lse_ptr + base * Q_HEADS * LSE_COPIES,
        Q_HEADS, runs, head, valid, V_DIM, BLOCK_V, UNROLL,
    )  # fmt: skip
    divisor = tl.where(total == 0.0, 1.0, total)
    values = (acc / divisor).to(out_ptr.dtype.element_ty)
    target = (row * Q_HEADS + head)[:, None]
    mask = valid[:, None] & (col_v < V_DIM)[None, :]
    tl.store(out_ptr + target * V_DIM + col_v[None, :], values, mask=mask)
    if LSE:
        one = valid[:, None] & (col_v == 0)[None, :]
        tl.store(lse_ptr + target + 0 * col_v[None, :], (peak + tl.log2(divisor)) * 0.6931471805599453, mask=one)
