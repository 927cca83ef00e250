"""The least weight that top-k and top-p keep, for every row, without sorting the scores.

A weight exp((score - best) / temperature) lies in (0, 1], where the bits of a float32 grow with its value. So the k-th
largest weight, and the weight at which the largest ones add up to a share p, are found digit by digit as in a radix
sort: a launch counts weights and adds up their mass by the leading bits, a launch of one program a row picks the digit
the bound falls into, and the next pair looks only at weights with these leading bits. Masses are whole numbers of
2^-40, so their sums do not depend on the order of additions. Ten launches, each bound by reading the scores, which
stay in the cache; fixed shapes and no wait for the device, so a captured graph may hold them.
"""

# mypy: disallow-untyped-defs=False, check-untyped-defs=False, allow-untyped-calls=True

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 2048  # scores a program counts
LEAST = tl.constexpr(6.9e-12)  # weights below it never win a draw, see engine/sample/noise.py
LOWEST = tl.constexpr(0x2CF2C5AD >> 19)  # the first digit of LEAST
UNIT = tl.constexpr(2.0**40)  # of masses
DIGITS = ((0x3F800000 >> 19) - (0x2CF2C5AD >> 19) + 1, 1024, 512)  # values of the digits, from bits 19, 9 and 0 on
FIELDS = tl.constexpr(6)  # of a row's state: see _pick_kernel


def bounds_reference(
    scores: Tensor, best: Tensor, temperature: Tensor, min_weight: Tensor, top_k: Tensor, top_p: Tensor
) -> Tensor:
    """float32 [N]: the least weight exp((score - best) / temperature) to keep of each row of float32 [N, V].

    Min-p first (`min_weight` [N]), then the `top_k` int64 [N] largest (0: all) and all equal to the last of them, then
    of these the largest that together have a share `top_p` [N] of their sum, and all equal to the last. 1 or more: all.
    """
    weights = ((scores - best[:, None]) / temperature[:, None]).exp()
    floor = min_weight.clamp(min=LEAST.value)
    weights = torch.where(weights >= floor[:, None], weights, 0)
    ordered = weights.sort(dim=-1, descending=True).values
    size = scores.shape[-1]
    at = torch.where(top_k > 0, top_k, size).clamp(max=size) - 1
    cuts = (top_k > 0) & (top_k < (weights > 0).sum(-1))
    bound = torch.where(cuts[:, None], ordered.gather(1, at[:, None]), 0)
    ordered = torch.where(ordered >= bound, ordered, 0)
    sums = ordered.cumsum(-1, dtype=torch.float64)
    last = (sums < top_p[:, None] * sums[:, -1:]).sum(-1, keepdim=True).clamp_(max=size - 1)
    nucleus = torch.where(top_p[:, None] < 1, ordered.gather(1, last), 0)
    return torch.maximum(floor, torch.maximum(bound, nucleus)[:, 0])


def bounds(
    scores: Tensor, best: Tensor, temperature: Tensor, min_weight: Tensor, top_k: Tensor, top_p: Tensor
) -> Tensor:
    """As `bounds_reference`; scores have a dense last axis, all else is dense. A row whose best is no number gets a
    bound that means nothing."""
    rows, vocabulary = scores.shape
    out = torch.empty(rows, dtype=torch.float32, device=scores.device)
    if rows == 0:
        return out
    state = torch.empty((rows, FIELDS.value), dtype=torch.int64, device=scores.device)
    steps = [(0, False), (1, True), (2, True), (1, False), (2, False)]  # (digit, whether of the k-th largest)
    counted = torch.zeros((sum(DIGITS[digit] for digit, _ in steps), rows, 2), dtype=torch.int64, device=scores.device)
    first = counted[: DIGITS[0]]
    begin = 0
    for digit, of_k in steps:
        part = counted[begin : begin + DIGITS[digit]]
        begin += DIGITS[digit]
        _count_kernel[(rows, triton.cdiv(vocabulary, BLOCK))](
            scores, best, temperature, min_weight, state, part, scores.stride(0), rows,
            SIZE=vocabulary, BLOCK=BLOCK, DIGIT=digit, OF_K=of_k,
            num_warps=4, enable_fp_fusion=False,
        )  # fmt: skip
        _pick_kernel[(rows,)](
            part, first, state, top_k, top_p, min_weight, out, rows,
            COUNT=DIGITS[digit], FIRST_COUNT=DIGITS[0], BLOCK=triton.next_power_of_2(DIGITS[digit]),
            FIRST_BLOCK=triton.next_power_of_2(DIGITS[0]), DIGIT=digit, OF_K=of_k,
            num_warps=4, enable_fp_fusion=False,
        )  # fmt: skip
    return out


@triton.jit(
    do_not_specialize=["rows"],
    do_not_specialize_on_alignment=["best_ptr", "temperature_ptr", "min_weight_ptr", "state_ptr", "counted_ptr"],
)
def _count_kernel(
    scores_ptr,
    best_ptr,
    temperature_ptr,
    min_weight_ptr,
    state_ptr,
    counted_ptr,
    stride,
    rows,
    SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
    DIGIT: tl.constexpr,
    OF_K: tl.constexpr,
):
    """counted int64 [digits, rows, 2]: how many weights have a digit, and their mass; of those with the leading bits
    that are known already."""
    row = tl.program_id(0).to(tl.int64)
    leading = tl.cast(-1, tl.int64)
    if DIGIT > 0:
        leading = tl.load(state_ptr + row * FIELDS + (0 if OF_K else 3))
        if leading < 0:
            return
    token = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    score = tl.load(scores_ptr + row * stride + token, mask=token < SIZE, other=float("-inf"))
    weight = tl.exp((score - tl.load(best_ptr + row)) / tl.load(temperature_ptr + row))
    kept = (weight >= tl.maximum(tl.load(min_weight_ptr + row), LEAST)) & (weight <= 1.0)
    bits = weight.to(tl.int32, bitcast=True)
    if DIGIT == 0:
        digit = tl.maximum((bits >> 19) - LOWEST, 0)
    elif DIGIT == 1:
        kept = kept & ((bits >> 19).to(tl.int64) == leading)
        digit = (bits >> 9) & 1023
    else:
        kept = kept & ((bits >> 9).to(tl.int64) == leading)
        digit = bits & 511
    target = counted_ptr + (digit.to(tl.int64) * rows + row) * 2
    tl.atomic_add(target, tl.full([BLOCK], 1, tl.int64), mask=kept, sem="relaxed")
    tl.atomic_add(target + 1, (weight * UNIT).to(tl.int64), mask=kept, sem="relaxed")


@triton.jit(
    do_not_specialize=["rows"],
    do_not_specialize_on_alignment=[
        "counted_ptr",
        "first_ptr",
        "state_ptr",
        "top_k_ptr",
        "top_p_ptr",
        "min_weight_ptr",
        "out_ptr",
    ],
)
def _pick_kernel(
    counted_ptr,
    first_ptr,
    state_ptr,
    top_k_ptr,
    top_p_ptr,
    min_weight_ptr,
    out_ptr,
    rows,
    COUNT: tl.constexpr,
    FIRST_COUNT: tl.constexpr,
    BLOCK: tl.constexpr,
    FIRST_BLOCK: tl.constexpr,
    DIGIT: tl.constexpr,
    OF_K: tl.constexpr,
):
    """One digit of a row's bound. State int64: the leading bits of the k-th largest weight (-1: there is none), how
    many are still to be counted, the mass above; the leading bits of the share's bound (-1: none), the mass above,
    and the mass that is to be reached."""
    row = tl.program_id(0).to(tl.int64)
    state = state_ptr + row * FIELDS
    top_p = tl.load(top_p_ptr + row)
    if DIGIT == 0:
        place, count, mass, counts, masses = digits(counted_ptr, row, rows, COUNT, BLOCK)
        number, total = tl.sum(count, 0), tl.sum(mass, 0)
        wanted = tl.load(top_k_ptr + row)
        if (wanted > 0) & (wanted < number):
            at = tl.min(tl.where(counts >= wanted, place, BLOCK), 0)
            is_it = place == at
            tl.store(state, (COUNT - 1 - at + LOWEST).to(tl.int64))
            tl.store(state + 1, wanted - tl.sum(tl.where(is_it, counts - count, 0), 0))
            tl.store(state + 2, tl.sum(tl.where(is_it, masses - mass, 0), 0))
            tl.store(state + 3, tl.cast(-1, tl.int64))
        else:
            tl.store(state, tl.cast(-1, tl.int64))
            share(state, place, mass, masses, total, top_p, COUNT, BLOCK)
        tl.store(out_ptr + row, tl.maximum(tl.load(min_weight_ptr + row), LEAST))
        return
    if OF_K:
        leading = tl.load(state)
        if leading < 0:
            return
        place, count, mass, counts, masses = digits(counted_ptr, row, rows, COUNT, BLOCK)
        wanted = tl.load(state + 1)
        at = tl.min(tl.where(counts >= wanted, place, BLOCK), 0)
        is_it = place == at
        leading = leading * COUNT + COUNT - 1 - at
        above = tl.load(state + 2) + tl.sum(tl.where(is_it, masses - mass, 0), 0)
        tl.store(state, leading)
        tl.store(state + 1, wanted - tl.sum(tl.where(is_it, counts - count, 0), 0))
        tl.store(state + 2, above)
        if DIGIT == 2:
            kept = above + tl.sum(tl.where(is_it, mass, 0), 0)
            tl.store(out_ptr + row, leading.to(tl.int32).to(tl.float32, bitcast=True))
            place, count, mass, counts, masses = digits(first_ptr, row, rows, FIRST_COUNT, FIRST_BLOCK)
            share(state, place, mass, masses, kept, top_p, FIRST_COUNT, FIRST_BLOCK)
        return
    leading = tl.load(state + 3)
    if leading < 0:
        return
    place, count, mass, counts, masses = digits(counted_ptr, row, rows, COUNT, BLOCK)
    above = tl.load(state + 4)
    at = tl.min(tl.where(above + masses >= tl.load(state + 5), place, BLOCK), 0)
    leading = leading * COUNT + COUNT - 1 - at
    tl.store(state + 3, leading)
    tl.store(state + 4, above + tl.sum(tl.where(place == at, masses - mass, 0), 0))
    if DIGIT == 2:
        bound = leading.to(tl.int32).to(tl.float32, bitcast=True)
        tl.store(out_ptr + row, tl.maximum(tl.load(out_ptr + row), bound))


@triton.jit
def digits(counted_ptr, row, rows, COUNT: tl.constexpr, BLOCK: tl.constexpr):
    """(place, count, mass, running count, running mass) of a row's digits, the largest first."""
    place = tl.arange(0, BLOCK)
    source = counted_ptr + ((COUNT - 1 - place).to(tl.int64) * rows + row) * 2
    inside = place < COUNT
    count = tl.load(source, mask=inside, other=0)
    mass = tl.load(source + 1, mask=inside, other=0)
    return place, count, mass, tl.cumsum(count, 0), tl.cumsum(mass, 0)


@triton.jit
def share(state, place, mass, masses, total, top_p, COUNT: tl.constexpr, BLOCK: tl.constexpr):
    """Where the largest weights reach a share of `total`, which is the mass of what top-k left."""
    if top_p < 1.0:
        exact = top_p.to(tl.float64) * total.to(tl.float64)
        goal = exact.to(tl.int64)
        goal = tl.maximum(goal + (goal.to(tl.float64) < exact).to(tl.int64), 1)
        at = tl.min(tl.where(masses >= goal, place, BLOCK), 0)
        tl.store(state + 3, (COUNT - 1 - at + LOWEST).to(tl.int64))
        tl.store(state + 4, tl.sum(tl.where(place == at, masses - mass, 0), 0))
        tl.store(state + 5, goal)
    else:
        tl.store(state + 3, tl.cast(-1, tl.int64))
