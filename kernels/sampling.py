"""The next token of every row in two launches: the highest score, or a draw by the Gumbel-max trick.

Grid (rows, vocabulary blocks): each program reduces one block of a row's float32 scores to its best (value, id); a
second launch, one program a row, reduces the blocks. For a draw the value is score / temperature - log(E) with E an
exponential variate hashed from the row's two key words and the token id (Maddison et al., "A* Sampling", 2014), so
softmax, sorting and random state are never made; rows at temperature 0 take their highest score. The lowest id wins a
tie; NaN never wins. Bound by reading the scores once; a single row still spreads over the device.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 2048  # scores a program reduces


def argmax_reference(scores: Tensor) -> Tensor:
    """int64 [N]: the lowest id among the highest scores of each row of [N, V]; 0 where all are NaN."""
    clean = torch.where(scores.isnan(), float("-inf"), scores)
    return (clean == clean.amax(-1, keepdim=True)).int().argmax(-1)


def sample_reference(scores: Tensor, temperature: Tensor, keys: Tensor) -> Tensor:
    """int64 [N] drawn from scores float32 [N, V] at temperature [N] with key words (two uint32) int64 [N, 2]."""
    ids = torch.arange(scores.shape[1], device=scores.device)
    h = (ids * 0x9E3779B1 + keys[:, :1]) & 0xFFFFFFFF
    h = h ^ (h >> 16)
    h = (h * 0x85EBCA6B) & 0xFFFFFFFF
    h = h ^ (h >> 13) ^ keys[:, 1:]
    h = (h * 0xC2B2AE35) & 0xFFFFFFFF
    h = h ^ (h >> 16)
    uniform = ((h.to(torch.float32) + 0.5) * 2.0**-32).clamp(max=1 - 2.0**-24)
    divisor = torch.where(temperature > 0, temperature, 1.0)[:, None]
    noisy = scores / divisor - torch.log(-torch.log1p(-uniform))
    return argmax_reference(torch.where((temperature > 0)[:, None], noisy, scores))


def argmax(scores: Tensor) -> Tensor:
    """As `argmax_reference`; scores float32 [N, V] with a dense last axis."""
    return _reduce(scores, None, None)


def sample(scores: Tensor, temperature: Tensor, keys: Tensor) -> Tensor:
    """As `sample_reference`; scores float32 [N, V] with a dense last axis, temperature float32 [N], keys dense."""
    return _reduce(scores, temperature, keys)


def _reduce(scores: Tensor, temperature: Tensor | None, keys: Tensor | None) -> Tensor:
    rows, vocabulary = scores.shape
    blocks = triton.cdiv(vocabulary, BLOCK)
    best = torch.empty((rows, blocks), dtype=torch.float32, device=scores.device)
    best_id = torch.empty((rows, blocks), dtype=torch.int32, device=scores.device)
    out = torch.empty(rows, dtype=torch.int64, device=scores.device)
    if rows == 0:
        return out
    _block_kernel[(rows, blocks)](
        scores,
        best if temperature is None else temperature,
        best_id if keys is None else keys,
        best,
        best_id,
        scores.stride(0),
        SIZE=vocabulary,
        BLOCK=BLOCK,
        NOISE=temperature is not None,
        num_warps=4,
        enable_fp_fusion=False,
    )
    _row_kernel[(rows,)](
        best,
        best_id,
        out,
        SIZE=blocks,
        BLOCK=max(2, triton.next_power_of_2(blocks)),
        num_warps=1,
        enable_fp_fusion=False,
    )
    return out


@triton.jit(do_not_specialize_on_alignment=["temperature_ptr", "keys_ptr"])
def _block_kernel(
    scores_ptr,
    temperature_ptr,
    keys_ptr,
    best_ptr,
    best_id_ptr,
    stride,
    SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
    NOISE: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    block = tl.program_id(1)
    token_id = block * BLOCK + tl.arange(0, BLOCK)
    score = tl.load(scores_ptr + row * stride + token_id, mask=token_id < SIZE, other=float("-inf"))
    if NOISE:
        temperature = tl.load(temperature_ptr + row)
        if temperature > 0.0:
            key_0 = tl.load(keys_ptr + row * 2).to(tl.uint32)
            key_1 = tl.load(keys_ptr + row * 2 + 1).to(tl.uint32)
            score = score / temperature - tl.log(exponential(token_id, key_0, key_1))
    score = tl.where(score == score, score, float("-inf"))
    best, index = tl.max(score, 0, return_indices=True, return_indices_tie_break_left=True)
    target = row * tl.num_programs(1) + block
    tl.store(best_ptr + target, best)
    tl.store(best_id_ptr + target, block * BLOCK + index)


@triton.jit
def exponential(token_id, key_0, key_1):
    """float32 variates of rate 1, hashed from the token ids and the key words of a row (MurmurHash3's mixing steps)."""
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
def _row_kernel(best_ptr, best_id_ptr, out_ptr, SIZE: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    col = tl.arange(0, BLOCK)
    best = tl.load(best_ptr + row * SIZE + col, mask=col < SIZE, other=float("-inf"))
    _, index = tl.max(best, 0, return_indices=True, return_indices_tie_break_left=True)
    tl.store(out_ptr + row, tl.load(best_id_ptr + row * SIZE + index).to(tl.int64))
