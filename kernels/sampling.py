"""The next token of every row in two launches: the highest score, or a draw by the Gumbel-max trick.

Grid (rows, vocabulary blocks): each program reduces one block of a row's float32 scores to its best (value, id); a
second launch, one program a row, reduces the blocks. For a draw the value is (score - best) / temperature - log(E), E
an exponential variate hashed from the row's stream, its position and the token id (Maddison et al., "A* Sampling",
2014): no softmax, no sorting, no random state. The lowest id wins a tie; a row with a NaN says so. Bound by reading the
scores once; a single row of 128,256 still spreads over the device and takes 3 us on an H200.
"""

# mypy: disallow-untyped-defs=False, check-untyped-defs=False, allow-untyped-calls=True

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 2048  # scores a program reduces


def argmax_reference(scores: Tensor) -> tuple[Tensor, Tensor]:
    """(float32 [N], int64 [N]): each row's highest score of [N, V] and its lowest id.

    A row that holds NaN gives NaN and an id that means nothing but lies in the row.
    """
    clean = torch.where(scores.isnan(), float("-inf"), scores)
    best = clean.amax(-1)
    ids = (clean == best[:, None]).int().argmax(-1)
    return torch.where(scores.isnan().any(-1), float("nan"), best), ids


def draw_reference(
    scores: Tensor, best: Tensor, temperature: Tensor, min_weight: Tensor, streams: Tensor, positions: Tensor
) -> Tensor:
    """int64 [N] drawn from softmax(scores / temperature), scores float32 [N, V]; best, temperature > 0 [N].

    Tokens whose weight exp((score - best) / temperature) is below min_weight [N] are left out. The noise depends on the
    two uint32 words of a row in `streams` int64 [N, 2], its position in `positions` int64 [N] and the token id alone.
    """
    mask = 0xFFFFFFFF
    keys = (streams + (positions * 0x9E3779B1)[:, None]) & mask
    keys = ((keys ^ (keys >> 16)) * 0x85EBCA6B) & mask
    keys = ((keys ^ (keys >> 13)) * 0xC2B2AE35) & mask
    keys = keys ^ (keys >> 16)
    ids = torch.arange(scores.shape[1], device=scores.device)
    h = (ids * 0x9E3779B1 + keys[:, :1]) & mask
    h = h ^ (h >> 16)
    h = (h * 0x85EBCA6B) & mask
    h = h ^ (h >> 13) ^ keys[:, 1:]
    h = (h * 0xC2B2AE35) & mask
    h = h ^ (h >> 16)
    uniform = ((h.to(torch.float32) + 0.5) * 2.0**-32).clamp(max=1 - 2.0**-24)
    scaled = (scores - best[:, None]) / temperature[:, None]
    noisy = scaled - torch.log(-torch.log1p(-uniform))
    return argmax_reference(torch.where(scaled.exp() >= min_weight[:, None], noisy, float("-inf")))[1]


def argmax(scores: Tensor) -> tuple[Tensor, Tensor]:
    """As `argmax_reference`; scores float32 with a dense last axis."""
    return _reduce(scores, None)


def draw(
    scores: Tensor, best: Tensor, temperature: Tensor, min_weight: Tensor, streams: Tensor, positions: Tensor
) -> Tensor:
    """As `draw_reference`; scores have a dense last axis, all else is dense."""
    return _reduce(scores, (best, temperature, min_weight, streams, positions))[1]


def _reduce(scores: Tensor, noise: tuple[Tensor, ...] | None) -> tuple[Tensor, Tensor]:
    rows, vocabulary = scores.shape
    blocks = triton.cdiv(vocabulary, BLOCK)
    block_best = torch.empty((rows, blocks), dtype=torch.float32, device=scores.device)
    block_id = torch.empty((rows, blocks), dtype=torch.int32, device=scores.device)
    best = torch.empty(rows, dtype=torch.float32, device=scores.device)
    ids = torch.empty(rows, dtype=torch.int64, device=scores.device)
    if rows == 0:
        return best, ids
    _block_kernel[(rows, blocks)](
        scores,
        *(noise or (best, best, best, ids, ids)),
        block_best,
        block_id,
        scores.stride(0),
        SIZE=vocabulary,
        BLOCK=BLOCK,
        NOISE=noise is not None,
        num_warps=4,
        enable_fp_fusion=False,
    )
    _row_kernel[(rows,)](
        block_best,
        block_id,
        best,
        ids,
        SIZE=blocks,
        BLOCK=max(2, triton.next_power_of_2(blocks)),
        num_warps=1,
        enable_fp_fusion=False,
    )
    return best, ids


@triton.jit(
    do_not_specialize_on_alignment=["row_best_ptr", "temperature_ptr", "min_weight_ptr", "streams_ptr", "positions_ptr"]
)
def _block_kernel(
    scores_ptr,
    row_best_ptr,
    temperature_ptr,
    min_weight_ptr,
    streams_ptr,
    positions_ptr,
    best_ptr,
    best_id_ptr,
    stride,
    SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
    NOISE: tl.constexpr,
):
    """Grid (rows, blocks of BLOCK ids): the best of each block to float32 and int32 [rows, blocks], NaN if the block
    holds one; NOISE: of the scores with the noise that `draw_reference` speaks of."""
    row = tl.program_id(0).to(tl.int64)
    block = tl.program_id(1)
    token_id = block * BLOCK + tl.arange(0, BLOCK)
    score = tl.load(scores_ptr + row * stride + token_id, mask=token_id < SIZE, other=float("-inf"))
    broken = tl.max((score != score).to(tl.int32), 0)
    if NOISE:
        step = tl.load(positions_ptr + row).to(tl.uint32) * 0x9E3779B1
        key_0 = mixed(tl.load(streams_ptr + row * 2).to(tl.uint32) + step)
        key_1 = mixed(tl.load(streams_ptr + row * 2 + 1).to(tl.uint32) + step)
        scaled = (score - tl.load(row_best_ptr + row)) / tl.load(temperature_ptr + row)
        kept = tl.exp(scaled) >= tl.load(min_weight_ptr + row)
        score = tl.where(kept, scaled - tl.log(exponential(token_id, key_0, key_1)), float("-inf"))
    score = tl.where(score == score, score, float("-inf"))
    best, index = tl.max(score, 0, return_indices=True, return_indices_tie_break_left=True)
    target = row * tl.num_programs(1) + block
    tl.store(best_ptr + target, tl.where(broken > 0, float("nan"), best))
    # a NaN hides its block's best from the next launch; the row is broken anyway, any id of it will do
    tl.store(best_id_ptr + target, block * BLOCK + index)


@triton.jit
def mixed(x):
    """The finalizer of MurmurHash3 (Appleby, public domain) on uint32."""
    x ^= x >> 16
    x *= 0x85EBCA6B
    x ^= x >> 13
    x *= 0xC2B2AE35
    return x ^ (x >> 16)


@triton.jit
def exponential(token_id, key_0, key_1):
    """float32 variates of rate 1, hashed from the token ids and the key words of a row by the same steps."""
    h = token_id.to(tl.uint32) * 0x9E3779B1 + key_0
    h ^= h >> 16
    h *= 0x85EBCA6B
    h ^= h >> 13
    h ^= key_1
    h *= 0xC2B2AE35
    h ^= h >> 16
    u = tl.minimum((h.to(tl.float32) + 0.5) * 2.3283064365386963e-10, 0.99999994)
    series = u * (1.0 + u * (0.5 + u * (0.3333333333333333 + u * 0.25)))
    return tl.where(u < 0.015625, series, -tl.log(1.0 - u))


@triton.jit
def _row_kernel(block_best_ptr, block_id_ptr, best_ptr, ids_ptr, SIZE: tl.constexpr, BLOCK: tl.constexpr):
    """Grid (rows): the best of a row's SIZE blocks."""
    row = tl.program_id(0).to(tl.int64)
    col = tl.arange(0, BLOCK)
    score = tl.load(block_best_ptr + row * SIZE + col, mask=col < SIZE, other=float("-inf"))
    broken = tl.max((score != score).to(tl.int32), 0)
    score = tl.where(score == score, score, float("-inf"))
    best, index = tl.max(score, 0, return_indices=True, return_indices_tie_break_left=True)
    tl.store(best_ptr + row, tl.where(broken > 0, float("nan"), best))
    tl.store(ids_ptr + row, tl.load(block_id_ptr + row * SIZE + index).to(tl.int64))
