"""The id with the highest score, over the vocabulary, in two launches.

Grid (rows, vocabulary blocks): each program reduces one block of a row's float32 scores to its best (score, id); a
second launch, one program a row, reduces the blocks. The lowest id wins a tie; NaN never wins. Bound by reading the
scores once; a single row still spreads over the device.
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


def argmax(scores: Tensor) -> Tensor:
    """As `argmax_reference`; scores float32 [N, V] with a dense last axis."""
    rows, vocabulary = scores.shape
    blocks = triton.cdiv(vocabulary, BLOCK)
    best = torch.empty((rows, blocks), dtype=torch.float32, device=scores.device)
    best_id = torch.empty((rows, blocks), dtype=torch.int32, device=scores.device)
    out = torch.empty(rows, dtype=torch.int64, device=scores.device)
    if rows:
        _block_kernel[(rows, blocks)](scores, best, best_id, scores.stride(0), SIZE=vocabulary, BLOCK=BLOCK, num_warps=4, enable_fp_fusion=False)
        _row_kernel[(rows,)](
            best, best_id, out, SIZE=blocks, BLOCK=max(2, triton.next_power_of_2(blocks)), num_warps=1, enable_fp_fusion=False
        )  # fmt: skip
    return out


@triton.jit
def _block_kernel(scores_ptr, best_ptr, best_id_ptr, stride, SIZE: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    block = tl.program_id(1)
    token_id = block * BLOCK + tl.arange(0, BLOCK)
    score = tl.load(scores_ptr + row * stride + token_id, mask=token_id < SIZE, other=float("-inf"))
    score = tl.where(score == score, score, float("-inf"))
    best, index = tl.max(score, 0, return_indices=True, return_indices_tie_break_left=True)
    target = row * tl.num_programs(1) + block
    tl.store(best_ptr + target, best)
    tl.store(best_id_ptr + target, block * BLOCK + index)


@triton.jit
def _row_kernel(best_ptr, best_id_ptr, out_ptr, SIZE: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    col = tl.arange(0, BLOCK)
    best = tl.load(best_ptr + row * SIZE + col, mask=col < SIZE, other=float("-inf"))
    _, index = tl.max(best, 0, return_indices=True, return_indices_tie_break_left=True)
    tl.store(out_ptr + row, tl.load(best_id_ptr + row * SIZE + index).to(tl.int64))
