"""The ways to cut a product of few rows: what skinny_linear.py and quant_linear.py choose from."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch
import triton
from torch import Tensor

MAX_BLOCKS = 4096  # of a launch whose programs share blocks


@dataclass(frozen=True, slots=True)
class GemvTile:
    """A launch of `gemv_kernel` or `quant_gemv_kernel`, or if `float8` of `float8_gemv_kernel`."""

    block_n: int
    block_k: int
    warps: int
    float8: bool = False


@dataclass(frozen=True, slots=True)
class DotTile:
    """A launch of `tile_kernel`, or of 4-bit codes of `quant_tile_kernel`, or if `wide` of `quant_wide_tile_kernel`.

    Rows are padded to `block_t`; `slices` neighbouring input blocks a turn. `tile_kernel` asks for `first` weights of
    each output before it waits for its input. The others have a `block_k` of 128: `quant_tile_kernel` computes `tiles`
    blocks of outputs a program, `quant_wide_tile_kernel` takes `split` programs an output, each over its part of the
    input; so does `float8_tile_kernel`, which has a `block_k` of its own and writes an activation as `terms` E4M3
    numbers. `pairs`: E4M3 becomes bfloat16 two numbers at a time, by whole-number instructions.
    """

    block_t: int
    block_n: int
    block_k: int
    stages: int
    warps: int
    slices: int = 1
    first: int = 0
    tiles: int = 1
    split: int = 1
    wide: bool = False
    pairs: bool = False
    terms: int = 0


@dataclass(frozen=True, slots=True)
class DigitRowTile:
    """A launch for one row, of int8 `digit_gemv_int8_kernel`, of int4 `digit_gemv_int4_kernel`: at most `programs`,
    each of which takes blocks of `block_n` outputs in turn, with `ahead` loading the next one's codes while it computes
    one."""

    block_n: int
    warps: int
    programs: int
    ahead: bool = False


@dataclass(frozen=True, slots=True)
class DigitTile:
    """A launch of `digit_tile_kernel`, after one that makes digits of its rows.

    Rows are padded to `block_t`; a program takes `block_n` rows of the weight and one of `split` parts of the input, a
    turn `slices` pieces of it, of int8 codes `blocks` blocks of 128 columns each. `first` bytes of each row of codes
    are asked for before the digits are there.
    """

    block_t: int
    block_n: int
    stages: int
    warps: int
    slices: int = 1
    split: int = 1
    blocks: int = 1
    first: int = 0


Tile = GemvTile | DotTile | DigitRowTile | DigitTile


def handed_in(
    device: torch.device, tile: DotTile | DigitTile, outs: int, rows: int, gated: bool
) -> tuple[Tensor, Tensor]:
    """What programs that share a block of outputs hand in, and the tickets that tell which of them is last.

    A device has one set of tickets, so such launches must follow one another on one stream.
    """
    tickets = tickets_of(device)
    if tile.split == 1:
        return tickets, tickets
    blocks = triton.cdiv(outs, tile.block_n) * triton.cdiv(rows, tile.block_t)
    assert blocks <= MAX_BLOCKS
    sums = blocks * tile.split * (2 if gated else 1) * tile.block_n * tile.block_t
    return torch.empty(sums, dtype=torch.float32, device=device), tickets


@lru_cache(maxsize=16)
def tickets_of(device: torch.device) -> Tensor:
    """The device's tickets, int32 zeros. They must be there before a graph is captured: what a capture allocates
    belongs to its graph."""
    return torch.zeros(MAX_BLOCKS, dtype=torch.int32, device=device)
