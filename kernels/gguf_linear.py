"""Products of few rows with GGUF blocks: the launches of both kernels and their tiles.

`skinny_linear` comes here when its weight is a BlockWeight; what it promises holds for these as well.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch
import triton
from torch import Tensor

from octavo.kernels.device import DeviceTraits, device_traits
from octavo.kernels.gguf_gemv import gguf_gemv_kernel
from octavo.kernels.gguf_tile import gguf_tile_kernel
from octavo.kernels.gguf_weight import BlockWeight
from octavo.kernels.half_number import ASM, NO_ASM, OLD_ASM
from octavo.kernels.linear_tiles import DotTile, GemvTile

GEMV_ROWS = 2


def launch_blocks(
    x: Tensor,
    weight: BlockWeight,
    out: Tensor,
    tile: GemvTile | DotTile,
    around: dict[str, Any],
    options: dict[str, Any],
) -> None:
    """One launch; `around` are the tensors of what is folded in, `options` the constants of both kernels."""
    rows = x.shape[0]
    outs = weight.shape[0] // (2 if options["ACT"] >= 0 else 1)
    high = weight.codes if weight.high is None else weight.high
    unit = weight.scale if weight.unit is None else weight.unit
    if weight.unit is not None:
        unit = unit.view(torch.int32 if weight.kind.minimum else torch.int16)
    own = {"KIND": weight.kind.number, "FIVE": weight.kind.high == 1}
    own |= {"BF16": x.dtype == torch.bfloat16, "ASM": _assembler(x.device)}
    bias, residual, ids = around["bias"], around["residual"], around["ids"]
    if isinstance(tile, GemvTile):
        norm = around["norm"]
        norm_kind = 0 if norm is None else 2 if norm.dtype == torch.float32 else 1
        norm = x.view(torch.int32) if norm is None else norm if norm_kind == 2 else norm.view(torch.int32)
        spills = weight.scale.dtype == torch.float16 and weight.code != "Q8_0"  # four floats a thread and row
        if rows == 1 and x.shape[1] <= tile.block_k and not spills:
            own["maxnreg"] = 128  # four programs of four warps a multiprocessor
        scale = weight.scale.view({"Q6_K": torch.int32, "Q8_0": torch.int16}.get(weight.code, torch.int64))
        gguf_gemv_kernel[(triton.cdiv(outs, tile.block_n),)](
            x.view(torch.int32), norm, weight.codes.view(torch.int32), high.view(torch.int32), scale, unit,
            bias, residual, out, ids, outs, around["eps"],
            ROWS=rows, NORM=norm_kind, THREADS=tile.block_k // 32, **own, **options,
        )  # fmt: skip
        return
    parts = around["parts"]
    gguf_tile_kernel[(triton.cdiv(outs, tile.block_n), triton.cdiv(rows, tile.block_t))](
        x, around["squares"], weight.codes, high, weight.scale.view(torch.int64), unit, bias, residual, out, ids,
        around["next_norm"], around["next_x"], around["next_squares"], rows, outs, parts, around["eps"],
        BLOCK_T=tile.block_t, STAGES=tile.stages, SLICES=tile.slices,
        PARTS=triton.next_power_of_2(parts) if parts else 0, NEXT=around["next"], **own, **options,
    )  # fmt: skip


def block_tile(weight: BlockWeight, rows: int, gated: bool, traits: DeviceTraits) -> GemvTile | DotTile:
    """The kernel and tile for a product with a weight on a device with these figures."""
    outs, size = weight.shape
    return choose_block_tile(weight.code, rows, outs // 2 if gated else outs, size, gated, traits)


@lru_cache(maxsize=256)
def choose_block_tile(
    kind: str, rows: int, outs: int, size: int, gated: bool, traits: DeviceTraits
) -> GemvTile | DotTile:
    """The same for blocks of this type and shape. Not measured: what suits int4 with groups of 128."""
    if rows <= (GEMV_ROWS if traits.tensor_cores else 1):
        return _gemv_tile(outs, size, gated, traits)
    if rows > 16:
        return DotTile(32, 64, 128, 3, 4)
    rows_padded = 8 if rows <= 8 else 16
    if gated:
        return DotTile(8, 32, 128, 3, 2, slices=2) if rows <= 8 else DotTile(16, 64, 128, 4, 4)
    if size > 4096:
        return DotTile(rows_padded, 32, 128, 3, 8, slices=8)
    return DotTile(rows_padded, 16, 128, 3, 4, slices=4)


def _gemv_tile(outs: int, size: int, gated: bool, traits: DeviceTraits) -> GemvTile:
    # a row in one turn, if it is not too long, saves the registers of the next one
    warps = 4 if 2048 < size <= 4096 else 2 if size > 1024 else 1
    lines = 8
    least = 4 if gated else 2
    while lines > least and outs * (2 if gated else 1) // lines * warps < 6 * traits.multiprocessors:
        lines //= 2
    return GemvTile(lines // 2 if gated else lines, 1024 * warps, warps)


def _assembler(device: torch.device) -> int:
    if device.type == "cpu":
        return NO_ASM
    return ASM if device_traits(device).capability >= 80 else OLD_ASM
