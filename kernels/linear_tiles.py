"""The two ways to cut a product of few rows: what skinny_linear.py and quant_linear.py choose from."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class GemvTile:
    """A launch of `gemv_kernel` or `quant_gemv_kernel`. `whole`: each program asks for all its weights, if their bytes
    are a multiple of 16, before it waits for its input."""

    block_n: int
    block_k: int
    warps: int
    whole: bool = False


@dataclass(frozen=True, slots=True)
class DotTile:
    """A launch of `tile_kernel` or `quant_tile_kernel`: rows padded to `block_t`, `slices` neighbouring input blocks a
    turn, `first` weights of each output asked for before the input is waited for. Of 4-bit codes, a program computes
    `tiles` blocks of outputs, and `block_k` is always 128."""

    block_t: int
    block_n: int
    block_k: int
    stages: int
    warps: int
    slices: int = 1
    first: int = 0
    tiles: int = 1
