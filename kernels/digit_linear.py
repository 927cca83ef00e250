"""Products of few rows with int4 and int8 codes whose activations become digits: launches and tiles.

`skinny_linear` comes here by way of the tile that quant_linear.py chooses; what it promises holds for these as well.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch
import triton
from torch import Tensor

from octavo.kernels.device import DeviceTraits
from octavo.kernels.digit_gemv_int4 import digit_gemv_int4_kernel
from octavo.kernels.digit_gemv_int8 import digit_gemv_int8_kernel
from octavo.kernels.digit_tile import digit_tile_kernel
from octavo.kernels.linear_tiles import DigitRowTile, DigitTile, handed_in
from octavo.kernels.quant_weight import BLOCK, CodedWeight
from octavo.kernels.row_digits import row_digits


def suits_digits(weight: CodedWeight, traits: DeviceTraits) -> bool:
    """Whether kernels of digits read these codes on such a device: codes in words, no two scales within 128 columns."""
    one_scale = weight.group % BLOCK == 0 or weight.group >= weight.size
    return traits.tensor_cores and weight.in_words and weight.code in ("int4", "int8") and one_scale


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
    options["ASM"] = x.device.type != "cpu"
    codes = {
        "GROUP": weight.group if weight.group < size else blocks * BLOCK,
        "OFFSET": weight.offset if weight.zero is None else 0,
        "ZERO": kind,
    }
    zero_or_x = x if zero is None else zero
    norm, eps = around["norm"], around["eps"]
    after = (around["bias"], around["residual"], out, around["ids"])
    if isinstance(tile, DigitRowTile):
        assert rows == 1
        norm_kind = 0 if norm is None else 2 if norm.dtype == torch.float32 else 1
        pairs = x.view(torch.int32) if norm is None else norm.view(torch.int64 if norm_kind == 2 else torch.int32)
        words, shares = weight.codes.view(torch.int32), triton.cdiv(outs, tile.block_n)
        options |= {"NORM": norm_kind, "BF16": x.dtype == torch.bfloat16}
        if four_bit:
            # as many rounds as needed, each of about as many programs
            programs = triton.cdiv(shares, triton.cdiv(shares, tile.programs))
            digit_gemv_int4_kernel[(programs,)](
                x.view(torch.int32), pairs, words, weight.scale, zero_or_x, *after, outs, shares, eps,
                PARTS=32 * tile.warps, AHEAD=tile.ahead, **codes, **options,
            )  # fmt: skip
        else:
            digit_gemv_int8_kernel[(shares,)](
                x.view(torch.int32), pairs, words, weight.scale, *after, outs, eps, BLOCK_K=512 * tile.warps, **options
            )
        return
    digits = row_digits(x, norm, eps, sums=four_bit)
    in_pairs = weight.group == BLOCK and weight.scale.element_size() == 2 and blocks % (2 * tile.slices) == 0
    lines = weight.shape[0]
    digit_tile_kernel[(triton.cdiv(lines, tile.block_n), triton.cdiv(rows, tile.block_t), tile.split)](
        digits.digits, digits.step, digits.sums, weight.codes.view(torch.int8), weight.scale, zero_or_x,
        *after, *handed_in(x.device, tile, lines, rows, False), rows, outs,
        BITS=4 if four_bit else 8, SPAN=max(16, triton.next_power_of_2(blocks)), BLOCK_T=tile.block_t,
        BLOCKS_A_TURN=tile.blocks, STAGES=tile.stages, SLICES=tile.slices, SPLIT=tile.split, FIRST=tile.first,
        PAIRED=four_bit and in_pairs, **codes, **options,
    )  # fmt: skip


@lru_cache(maxsize=256)
def digit_row_tile(code: str, outs: int, size: int, gated: bool, traits: DeviceTraits) -> DigitRowTile:
    """For one row. Measured on an H200 with the shapes of an 8B model, in a layer's order: 39.5 us of int4, 55.3 of
    int8, where int4 with a program a block of outputs takes 44.3, int8 with fewer and longer programs 57.0."""
    multiprocessors, rows = traits.multiprocessors, outs * (2 if gated else 1)
    if code == "int8":
        warps, lines = (4 if size > 1024 else 2 if size > 512 else 1), 4 if gated or size <= 8192 else 8
    else:
        threads = triton.cdiv(size, 32)
        warps = min(8, max(1, triton.next_power_of_2(threads) // 32))
        lines = 4 if gated or warps == 8 else 8
    while lines > (4 if gated else 2) and rows // lines * warps < 8 * multiprocessors:
        lines //= 2
    block_n = lines // 2 if gated else lines
    if code == "int8":
        return DigitRowTile(block_n, warps, rows)
    if lines == 8 and triton.cdiv(outs, 8) * warps <= 16 * multiprocessors:
        return DigitRowTile(block_n, warps, 16 // warps * multiprocessors)  # in one round
    warps_at_once = 12 if lines == 8 else 24 if warps < 8 else 16  # as registers allow
    return DigitRowTile(block_n, warps, warps_at_once // warps * multiprocessors, ahead=True)


@lru_cache(maxsize=256)
def digit_tile(code: str, rows: int, outs: int, size: int, gated: bool, traits: DeviceTraits) -> DigitTile:
    """For 2 to 16 rows; measured likewise."""
    rows_padded = 4 if rows <= 4 else 8 if rows <= 8 else 16
    shares = triton.cdiv(2 * outs if gated else outs, 64)
    # programs that share their outputs have at least 1,024 columns each, or handing in costs more than it gains
    most = max(1, min(3 * traits.multiprocessors // shares, size // 1024))
    split = next(part for part in (4, 2, 1) if part <= most)
    if code == "int8":
        longer = outs <= size or (gated and rows > 4)
        return DigitTile(rows_padded, 64, 4, 4, split=split, blocks=2 if longer else 1)
    if size > 8192 and rows_padded == 8:
        return DigitTile(rows_padded, 64, 3, 4, slices=2, split=split)
    return DigitTile(rows_padded, 64, 4, 4, split=split)
