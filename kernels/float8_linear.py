"""Products of up to 64 rows with E4M3 weights on FP8 tensor cores: their tiles and launch (see float8_tile.py)."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch
import triton
from torch import Tensor

from octavo.kernels.device import DeviceTraits
from octavo.kernels.float8_tile import float8_tile_kernel
from octavo.kernels.linear_tiles import DotTile, handed_in
from octavo.kernels.quant_weight import CodedWeight


def by_float8(weight: CodedWeight, traits: DeviceTraits) -> bool:
    """Whether few rows meet a weight as E4M3 terms: where matrix products read 8-bit floats from shared memory, which
    takes 16 bytes a copy."""
    return weight.code == "e4m3" and traits.capability // 10 == 9 and weight.size % 16 == 0


def launch_float8(
    x: Tensor, weight: CodedWeight, out: Tensor, tile: DotTile, around: dict[str, Any], options: dict[str, Any]
) -> None:
    """One launch; `around` are the tensors of what is folded in, `options` the constants of all kernels."""
    rows, _ = x.shape
    gated = options["ACT"] >= 0
    outs = weight.shape[0] // (2 if gated else 1)
    parts = around["parts"]
    grid = (triton.cdiv(outs, tile.block_n), triton.cdiv(rows, tile.block_t), tile.split)
    float8_tile_kernel[grid](
        x, around["squares"], weight.codes.view(torch.float8_e4m3fn), weight.scale, around["bias"], around["residual"],
        out, around["ids"], around["next_norm"], around["next_x"], around["next_squares"],
        *handed_in(x.device, tile, outs, rows, gated), rows, outs, parts, around["eps"],
        BLOCK_T=tile.block_t, BLOCK_K=tile.block_k, STAGES=tile.stages, SPLIT=tile.split, TERMS=tile.terms,
        PARTS=triton.next_power_of_2(parts) if parts else 0, NEXT=around["next"], ASM=x.device.type != "cpu",
        **options,
    )  # fmt: skip


@lru_cache(maxsize=256)
def choose_float8_tile(rows: int, outs: int, size: int, gated: bool, traits: DeviceTraits) -> DotTile:
    """The tile for a product of this shape on a device with these figures."""
    rows_padded = 8 if rows <= 8 else triton.next_power_of_2(rows)
    if rows <= 16:
        return DotTile(
            rows_padded, 32 if gated else 64, 256, 3, 4, split=_split(outs, 64, size, gated, traits), terms=2
        )
    return DotTile(rows_padded, 64, 128, 4, 8 if gated else 4, split=_split(outs, 64, size, gated, traits), terms=2)


def _split(outs: int, block_n: int, size: int, gated: bool, traits: DeviceTraits) -> int:
    blocks = triton.cdiv(outs, block_n)
    most = 1 if gated else min(4, size // 1024)
    return next((part for part in (4, 2) if part <= most and blocks * part <= 3 * traits.multiprocessors), 1)
