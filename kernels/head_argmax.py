"""The greedy token of a few rows straight from their final hidden states: the head's product without its scores.

The products' kernels keep only each program's best score and its id ([rows, programs]), and a second launch, one
program a row, reduces those. Scores stay in float32 from the product to the choice, the lowest id wins a tie, and a row
with a NaN says so. Bound by reading the head once.
"""

# mypy: disallow-untyped-defs=False, check-untyped-defs=False, allow-untyped-calls=True

from __future__ import annotations

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from octavo.kernels.dependent_launch import launches_early
from octavo.kernels.device import device_traits
from octavo.kernels.linear_tiles import DotTile, Tile
from octavo.kernels.quant_linear import coded_tile
from octavo.kernels.quant_weight import CodedWeight
from octavo.kernels.sampling import argmax_reference
from octavo.kernels.skinny_linear import choose_head_tile, launch


def head_argmax_reference(hidden: Tensor, weight: Tensor, bias: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """(float32 [T], int64 [T]): highest score of each row of hidden [T, in] by weight [out, in], and its lowest id."""
    wide = torch.promote_types(hidden.dtype, torch.float32)
    best, ids = argmax_reference(F.linear(hidden.to(wide), weight.to(wide), None if bias is None else bias.to(wide)))
    return best.float(), ids


def head_argmax(
    hidden: Tensor, weight: Tensor | CodedWeight, bias: Tensor | None = None, tile: Tile | None = None
) -> tuple[Tensor, Tensor]:
    """As `head_argmax_reference` for the rows that `skinny_linear` takes, dense ones."""
    rows, size = hidden.shape
    device = hidden.device
    if tile is None:
        if isinstance(weight, CodedWeight):
            tile = coded_tile(weight, rows, False, device_traits(device), hidden.dtype)
        else:
            tile = choose_head_tile(rows, weight.shape[0], size, device_traits(device))
    tiles = tile.tiles if isinstance(tile, DotTile) else 1
    programs = triton.cdiv(weight.shape[0], tile.block_n * tiles) * tiles
    block_best = torch.empty((rows, programs), dtype=torch.float32, device=device)
    block_ids = torch.empty((rows, programs), dtype=torch.int32, device=device)
    launch(hidden, weight, bias, None, block_best, tile, ids=block_ids)
    best = torch.empty(rows, dtype=torch.float32, device=device)
    ids = torch.empty(rows, dtype=torch.int64, device=device)
    early = launches_early(device)
    options = {"launch_pdl": True} if early else {}
    block = max(2, triton.next_power_of_2(programs))
    best_kernel[(rows,)](
        block_best, block_ids, best, ids, programs,
        BLOCK=min(block, 16384), EARLY=early, num_warps=min(16, max(1, block // 512)), **options,
    )  # fmt: skip
    return best, ids


@triton.jit(do_not_specialize=["programs"])
def best_kernel(block_best_ptr, block_ids_ptr, best_ptr, ids_ptr, programs, BLOCK: tl.constexpr, EARLY: tl.constexpr):
    """The best of [rows, programs] candidates, whose ids grow with the program."""
    if EARLY:
        gdc_wait()
        gdc_launch_dependents()
    row = tl.program_id(0).to(tl.int64) * programs
    col = tl.arange(0, BLOCK)
    score = tl.full((BLOCK,), float("-inf"), tl.float32)
    place = col
    broken = tl.zeros((BLOCK,), tl.int32)
    for begin in range(0, programs, BLOCK):
        other = tl.load(block_best_ptr + row + begin + col, mask=begin + col < programs, other=float("-inf"))
        broken |= (other != other).to(tl.int32)
        place = tl.where(other > score, begin + col, place)
        score = tl.where(other > score, other, score)
    best = tl.max(score, 0)
    # the lowest place among equals
    first = tl.min(tl.where(score == best, place, programs), 0)
    best = tl.where(tl.max(broken, 0) > 0, float("nan"), best)
    tl.store(best_ptr + tl.program_id(0), best)
    tl.store(ids_ptr + tl.program_id(0), tl.load(block_ids_ptr + row + tl.minimum(first, programs - 1)).to(tl.int64))
