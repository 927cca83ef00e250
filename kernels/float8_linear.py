"""Products of E4M3 weights by kernels of their own: multiply-adds in float16 for one row (float8_gemv.py), FP8 tensor
cores for more (float8_tile.py). Their tiles and launches."""

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


def suits_float8(rows: int, outs: int, size: int, gated: bool, traits: DeviceTraits) -> bool:
    """Whether these kernels are the fastest for E4M3 weights of this shape: the first needs an instruction of compute
    capability 8.9, the second matrix products that read 8-bit floats from shared memory; 16 bytes a copy.

    Up to eight rows, few outputs for their input are faster by numbers converted in pairs: 18.2 us instead of 19.3 an
    8B's down, 7.6 instead of 9.8 its o; and so are the products of small models.
    """
    if size % 16 or traits.capability < 89:
        return False
    entries = outs * size * (2 if gated else 1)
    if rows <= 8:
        return rows == 1 or (traits.capability // 10 == 9 and outs > size and entries >= 8 << 20)
    return traits.capability // 10 == 9 and (rows > 16 or entries >= 4 << 20)


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
    options["GROUP"] = weight.scale_columns
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
    """The tile for a product of this shape on a device with these figures, for up to 64 rows.

    Measured on an H200 with an 8B layer's products in their order: one row 55 us by multiply-adds in float16 (82 in
    float32), two 77 by them; eight 70 by terms, where numbers converted in pairs take 71; 16 rows 91 and 129.
    """
    if rows == 1:
        return _gemv(outs, size, gated, traits)
    if rows <= 8:
        split = 1 if gated else _split(triton.cdiv(outs, 64), size, 6, traits)
        return DotTile(8, 64, 256, 3, 8 if gated else 4, split=split, terms=2)
    split = 1 if gated else _split(triton.cdiv(outs, 64), size, 8, traits)
    if rows <= 16:
        return DotTile(16, 64, 128, 4 if gated or split == 8 else 6, 4, split=split, terms=2)
    split = 1 if gated else _split(triton.cdiv(outs, 64), size, 4, traits)
    return DotTile(triton.next_power_of_2(rows), 64, 128, 4, 8 if gated else 4, split=split, terms=2)


def _gemv(outs: int, size: int, gated: bool, traits: DeviceTraits) -> GemvTile:
    # a thread has 16 columns
    warps = 4 if size > 1024 else 2 if size > 512 else 1
    lines, least = (8, 4) if gated else (8 if outs > size else 4, 2)
    while lines > least and outs * (2 if gated else 1) // lines * warps < 6 * traits.multiprocessors:
        lines //= 2
    return GemvTile(lines // 2 if gated else lines, 512 * warps, warps, float8=True)


def _split(blocks: int, size: int, most: int, traits: DeviceTraits) -> int:
    """Programs that share a block of outputs: at most so many, of 1,024 columns each at least, and four a
    multiprocessor."""
    most = min(most, size // 1024)
    return next((part for part in (8, 6, 4, 2) if part <= most and blocks * part <= 4 * traits.multiprocessors), 1)
