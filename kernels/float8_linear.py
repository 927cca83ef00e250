"""Products of E4M3 weights by kernels of their own: multiply-adds in float16 for one or two rows (float8_gemv.py), FP8
tensor cores for more (float8_tile.py). Their tiles and launches."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch
import triton
from torch import Tensor

from octavo.kernels.device import DeviceTraits
from octavo.kernels.float8_gemv import float8_gemv_kernel
from octavo.kernels.float8_tile import float8_tile_kernel
from octavo.kernels.linear_tiles import DotTile, GemvTile, handed_in
from octavo.kernels.quant_weight import CodedWeight

GEMV_ROWS = 2
_TILE_ROWS = 9  # fewer are as fast by numbers converted in pairs


def suits_float8(rows: int, size: int, traits: DeviceTraits) -> bool:
    """Whether these kernels are the fastest for E4M3 weights of so many columns: the first needs an instruction of
    compute capability 8.9, the second matrix products that read 8-bit floats from shared memory; 16 bytes a copy."""
    if size % 16 or traits.capability < 89:
        return False
    return rows <= GEMV_ROWS or (rows >= _TILE_ROWS and traits.capability // 10 == 9)


def takes_float8(tile: object) -> bool:
    """Whether a tile is one of these kernels'."""
    return (isinstance(tile, GemvTile) and tile.float8) or (isinstance(tile, DotTile) and tile.terms > 0)


def launch_float8(
    x: Tensor,
    weight: CodedWeight,
    out: Tensor,
    tile: GemvTile | DotTile,
    around: dict[str, Any],
    options: dict[str, Any],
) -> None:
    """One launch; `around` are the tensors of what is folded in, `options` the constants of all kernels."""
    rows, _ = x.shape
    gated = options["ACT"] >= 0
    outs = weight.shape[0] // (2 if gated else 1)
    bias, residual, ids = around["bias"], around["residual"], around["ids"]
    options["ASM"] = x.device.type != "cpu"
    if isinstance(tile, GemvTile):
        norm = around["norm"]
        norm_kind = 0 if norm is None else 2 if norm.dtype == torch.float32 else 1
        norm_pairs = x.view(torch.int32) if norm is None else norm if norm_kind == 2 else norm.view(torch.int32)
        float8_gemv_kernel[(triton.cdiv(outs, tile.block_n),)](
            x.view(torch.int32), norm_pairs, weight.codes.view(torch.int32), weight.scale, bias, residual, out, ids,
            outs, around["eps"],
            ROWS=rows, BLOCK_K=tile.block_k, NORM=norm_kind, BF16=x.dtype == torch.bfloat16, **options,
        )  # fmt: skip
        return
    parts = around["parts"]
    grid = (triton.cdiv(outs, tile.block_n), triton.cdiv(rows, tile.block_t), tile.split)
    float8_tile_kernel[grid](
        x, around["squares"], weight.codes.view(torch.float8_e4m3fn), weight.scale, bias, residual, out, ids,
        around["next_norm"], around["next_x"], around["next_squares"],
        *handed_in(x.device, tile, outs, rows, gated), rows, outs, parts, around["eps"],
        BLOCK_T=tile.block_t, BLOCK_K=tile.block_k, STAGES=tile.stages, SPLIT=tile.split, TERMS=tile.terms,
        PARTS=triton.next_power_of_2(parts) if parts else 0, NEXT=around["next"], **options,
    )  # fmt: skip


@lru_cache(maxsize=256)
def choose_float8(rows: int, outs: int, size: int, gated: bool, traits: DeviceTraits) -> GemvTile | DotTile:
    """The tile for a product of this shape on a device with these figures, for 1, 2 and 9 to 64 rows."""
    if rows <= GEMV_ROWS:
        return _gemv(outs, size, gated, traits)
    rows_padded = max(8, triton.next_power_of_2(rows))
    block_n = 64
    split = 1 if gated else _split(triton.cdiv(outs, block_n), size, traits)
    if rows <= 16:
        return DotTile(rows_padded, block_n, 128, 4, 4, split=split, terms=2)
    return DotTile(rows_padded, block_n, 128, 4, 8 if gated else 4, split=split, terms=2)


def _gemv(outs: int, size: int, gated: bool, traits: DeviceTraits) -> GemvTile:
    # a thread has 16 columns
    warps = 4 if size > 1024 else 2 if size > 512 else 1
    lines, least = 8, 4 if gated else 2
    while lines > least and outs * (2 if gated else 1) // lines * warps < 6 * traits.multiprocessors:
        lines //= 2
    return GemvTile(lines // 2 if gated else lines, 512 * warps, warps, float8=True)


def _split(blocks: int, size: int, traits: DeviceTraits) -> int:
    """Programs that share a block of outputs: up to three a multiprocessor, of 1,024 columns each at least."""
    most = max(1, size // 1024)
    return next((part for part in (4, 2) if part <= most and blocks * part <= 3 * traits.multiprocessors), 1)
