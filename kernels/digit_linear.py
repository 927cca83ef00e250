"""Products of few rows with int4 and int8 codes whose activations become digits: launches and tiles.

`skinny_linear` comes here by way of the tile that quant_linear.py chooses; what it promises holds for these as well.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
from torch import Tensor

from octavo.kernels.device import DeviceTraits
from octavo.kernels.digit_gemv import digit_gemv_kernel
from octavo.kernels.digit_tile import digit_tile_kernel
from octavo.kernels.linear_tiles import DigitTile, GemvTile
from octavo.kernels.quant_weight import BLOCK, CodedWeight
from octavo.kernels.row_digits import row_digits


def suits_digits(weight: CodedWeight, traits: DeviceTraits) -> bool:
    """Whether kernels of digits read these codes on such a device: codes in words, no two scales within 128 columns."""
    one_scale = weight.group % BLOCK == 0 or weight.group >= weight.size
    return traits.tensor_cores and weight.in_words and one_scale


def launch_digits(
    x: Tensor,
    weight: CodedWeight,
    out: Tensor,
    tile: GemvTile | DigitTile,
    around: dict[str, Any],
    options: dict[str, Any],
) -> None:
    """One product; `around` are the tensors of what is folded in, `options` the constants of all kernels."""
    rows, size = x.shape
    outs = weight.shape[0] // (2 if options["ACT"] >= 0 else 1)
    blocks = triton.cdiv(size, BLOCK)
    four_bit = weight.code == "int4"
    zero = weight.zero if weight.shift is None else weight.shift
    kind = 0 if zero is None else 1 if weight.shift is None else 2
    options |= {
        "BITS": 4 if four_bit else 8,
        "GROUP": weight.group if weight.group < size else blocks * BLOCK,
        "OFFSET": weight.offset if weight.zero is None else 0,
        "ZERO": kind,
        "ASM": x.device.type != "cpu",
    }
    zero_or_x = x if zero is None else zero
    norm, bias, residual, ids = around["norm"], around["bias"], around["residual"], around["ids"]
    if isinstance(tile, GemvTile):
        assert rows == 1
        norm_kind = 0 if norm is None else 2 if norm.dtype == torch.float32 else 1
        pairs = x.view(torch.int32) if norm is None else norm.view(torch.int64 if norm_kind == 2 else torch.int32)
        digit_gemv_kernel[(triton.cdiv(outs, tile.block_n),)](
            x.view(torch.int32), pairs, weight.codes.view(torch.int32), weight.scale, zero_or_x,
            bias, residual, out, ids, outs, around["eps"],
            NORM=norm_kind, BLOCK_K=tile.block_k, BF16=x.dtype == torch.bfloat16, **options,
        )  # fmt: skip
        return
    digits = row_digits(x, norm, around["eps"], sums=four_bit)
    wide = four_bit and weight.group == BLOCK and weight.scale.element_size() == 2
    digit_tile_kernel[(triton.cdiv(outs, tile.block_n), triton.cdiv(rows, tile.block_t))](
        digits.digits, digits.step, digits.sums, weight.codes.view(torch.int8), weight.scale, zero_or_x,
        bias, residual, out, ids, rows, outs,
        SPAN=max(16, triton.next_power_of_2(blocks)), BLOCK_T=tile.block_t, BLOCKS_A_TURN=tile.blocks,
        STAGES=tile.stages, SLICES=tile.slices, FIRST=tile.first, PAIRED=wide and blocks % (2 * tile.slices) == 0,
        **options,
    )  # fmt: skip


def digit_gemv_tile(code: str, outs: int, size: int, gated: bool, traits: DeviceTraits) -> GemvTile:
    """For one row. Measured on an H200 with the shapes of an 8B model, in a layer's order."""
    per_thread = 32 if code == "int4" else 16
    warps = 4 if size > 64 * per_thread else 2 if size > 32 * per_thread else 1
    lines, least = 16 if gated else 8, 4 if gated else 2
    while lines > least and outs * (2 if gated else 1) // lines * warps < 6 * traits.multiprocessors:
        lines //= 2
    return GemvTile(lines // 2 if gated else lines, 32 * per_thread * warps, warps, digits=True)


def digit_tile(rows: int, outs: int, size: int, gated: bool, traits: DeviceTraits) -> DigitTile:
    """For 2 to 16 rows; measured likewise."""
    rows_padded = 4 if rows <= 4 else 8 if rows <= 8 else 16
    if gated:
        # whole matrix products of a warp group read codes from registers
        return DigitTile(rows_padded, 64, 4, 4) if traits.capability // 10 == 9 else DigitTile(rows_padded, 32, 3, 2, 2)
    if outs > size:
        return DigitTile(rows_padded, 64, 4, 4) if traits.capability // 10 == 9 else DigitTile(rows_padded, 32, 3, 4, 4)
    if size > 8192:
        return DigitTile(rows_padded, 32, 3, 8, 8)
    return DigitTile(rows_padded, 32, 3, 4, 4)
