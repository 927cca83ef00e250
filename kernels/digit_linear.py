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
from octavo.kernels.linear_tiles import DigitRowTile, DigitTile, handed_in
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
    tile: DigitRowTile | DigitTile,
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
    if isinstance(tile, DigitRowTile):
        assert rows == 1
        norm_kind = 0 if norm is None else 2 if norm.dtype == torch.float32 else 1
        pairs = x.view(torch.int32) if norm is None else norm.view(torch.int64 if norm_kind == 2 else torch.int32)
        shares = triton.cdiv(outs, tile.block_n)
        # as many rounds as needed, each of about as many programs
        programs = triton.cdiv(shares, triton.cdiv(shares, tile.programs))
        digit_gemv_kernel[(programs,)](
            x.view(torch.int32), pairs, weight.codes.view(torch.int32), weight.scale, zero_or_x,
            bias, residual, out, ids, outs, shares, around["eps"],
            NORM=norm_kind, PARTS=32 * tile.warps, AHEAD=tile.ahead, BF16=x.dtype == torch.bfloat16, **options,
        )  # fmt: skip
        return
    digits = row_digits(x, norm, around["eps"], sums=four_bit)
    in_pairs = weight.group == BLOCK and weight.scale.element_size() == 2 and blocks % (2 * tile.slices) == 0
    lines = weight.shape[0]
    digit_tile_kernel[(triton.cdiv(lines, tile.block_n), triton.cdiv(rows, tile.block_t), tile.split)](
        digits.digits, digits.step, digits.sums, weight.codes.view(torch.int8), weight.scale, zero_or_x,
        bias, residual, out, ids, *handed_in(x.device, tile, lines, rows, False), rows, outs,
        SPAN=max(16, triton.next_power_of_2(blocks)), BLOCK_T=tile.block_t, BLOCKS_A_TURN=tile.blocks,
        STAGES=tile.stages, SLICES=tile.slices, SPLIT=tile.split, FIRST=tile.first, PAIRED=four_bit and in_pairs,
        **options,
    )  # fmt: skip


def digit_row_tile(code: str, outs: int, size: int, gated: bool, traits: DeviceTraits) -> DigitRowTile:
    """For one row. Measured on an H200 with the shapes of an 8B model, in a layer's order."""
    # a thread keeps digits of at most four times 16 bytes of codes, and the codes of at most 8 rows or 4 such pieces
    threads = triton.cdiv(size, 32 if code == "int4" else 16)
    warps = min(8, max(1, triton.next_power_of_2(threads) // 32))
    lines = 8 if threads <= 32 * warps and warps <= 4 else 4
    while lines > (4 if gated else 2) and outs * (2 if gated else 1) // lines * warps < 8 * traits.multiprocessors:
        lines //= 2
    return DigitRowTile(lines // 2 if gated else lines, warps, 16 // warps * traits.multiprocessors)


def digit_tile(rows: int, outs: int, size: int, gated: bool, traits: DeviceTraits) -> DigitTile:
    """For 2 to 16 rows; measured likewise."""
    rows_padded = 4 if rows <= 4 else 8 if rows <= 8 else 16
    shares = triton.cdiv(2 * outs if gated else outs, 64)
    # programs that share their outputs have at least 1,024 columns each, or handing in costs more than it gains
    most = max(1, min(3 * traits.multiprocessors // shares, size // 1024))
    return DigitTile(rows_padded, 64, 4, 4, split=next(part for part in (8, 4, 2, 1) if part <= most))
