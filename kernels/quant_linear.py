"""Products of few rows with weights in fewer bits: the launches of codes in words, and the tiles of all codes.

`skinny_linear` comes here when its weight is a CodedWeight; what it promises holds for these as well.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import Any

import torch
import triton
from torch import Tensor

from octavo.kernels.device import DeviceTraits
from octavo.kernels.digit_linear import digit_row_tile, digit_tile, suits_digits
from octavo.kernels.float8_linear import choose_float8, launch_float8, suits_float8, takes_float8
from octavo.kernels.gguf_linear import block_tile, launch_blocks
from octavo.kernels.gguf_weight import BlockWeight
from octavo.kernels.linear_tiles import DotTile, GemvTile, Tile, handed_in
from octavo.kernels.quant_gemv import quant_gemv_kernel
from octavo.kernels.quant_number import E4M3, E4M3_BY_BITS, E4M3_PAIRS, INT8, INT8_WORD_PAIRS, INT8_WORDS
from octavo.kernels.quant_tile import quant_tile_kernel
from octavo.kernels.quant_weight import BLOCK, CodedWeight
from octavo.kernels.quant_wide_tile import quant_wide_tile_kernel
from octavo.kernels.table_number import TABLE_NUMBERS, table_bytes


def code_of(weight: CodedWeight, device: torch.device, traits: DeviceTraits, pairs: bool = False) -> int:
    """What the kernels of 8-bit codes are told to do with a weight's entries; `pairs`: two at a time where possible."""
    pairs = pairs and device.type != "cpu" and traits.tensor_cores
    if weight.code == "int8":
        return INT8 if not weight.in_words else INT8_WORD_PAIRS if pairs else INT8_WORDS
    if pairs:
        return E4M3_PAIRS
    return E4M3 if device.type != "cpu" and traits.capability >= 89 else E4M3_BY_BITS


def launch_low_bits(
    x: Tensor,
    weight: CodedWeight,
    out: Tensor,
    tile: GemvTile | DotTile,
    around: dict[str, Any],
    options: dict[str, Any],
) -> None:
    """One launch with codes in 16-bit words or GGUF blocks; `around` are the tensors of what is folded in, `options`
    the constants of all kernels."""
    if isinstance(weight, BlockWeight):
        launch_blocks(x, weight, out, tile, around, options)
        return
    if takes_float8(tile):
        launch_float8(x, weight, out, tile, around, options)
        return
    rows, size = x.shape
    gated = options["ACT"] >= 0
    outs = weight.shape[0] // (2 if gated else 1)
    zero = weight.zero if weight.shift is None else weight.shift
    kind = 0 if zero is None else 1 if weight.shift is None else 2
    group = weight.group if weight.group < size else triton.cdiv(size, BLOCK) * BLOCK
    codes = {"GROUP": group, "OFFSET": weight.offset if weight.zero is None else 0, "ZERO": kind}
    codes["BF16"] = x.dtype == torch.bfloat16
    codes["ASM"] = x.device.type != "cpu"
    codes["TABLE"] = TABLE_NUMBERS.get(weight.code, 0)
    zero_or_x = x if zero is None else zero
    bias, residual, ids = around["bias"], around["residual"], around["ids"]
    if isinstance(tile, GemvTile):
        norm = around["norm"]
        table = table_bytes(weight.code, x.device) if codes["TABLE"] else x
        outer = weight.scale if weight.outer is None else weight.outer
        norm_kind = 0 if norm is None else 2 if norm.dtype == torch.float32 else 1
        pairs = x.view(torch.int32) if norm is None else norm.view(torch.int64 if norm_kind == 2 else torch.int32)
        quant_gemv_kernel[(triton.cdiv(outs, tile.block_n),)](
            x.view(torch.int32), pairs, weight.codes.view(torch.int32), weight.scale, zero_or_x, table, outer,
            bias, residual, out, ids, outs, around["eps"],
            ROWS=rows, NORM=norm_kind, OUTER=weight.outer is not None, BLOCK_K=tile.block_k, **codes, **options,
        )  # fmt: skip
        return
    parts = around["parts"]
    grid = (triton.cdiv(outs, tile.block_n * tile.tiles), triton.cdiv(rows, tile.block_t), tile.split)
    tensors = (
        x, around["squares"], weight.codes, weight.scale, zero_or_x, bias, residual, out, ids,
        around["next_norm"], around["next_x"], around["next_squares"],
    )  # fmt: skip
    options |= codes | {
        "BLOCK_T": tile.block_t, "STAGES": tile.stages, "NEXT": around["next"],
        "PARTS": triton.next_power_of_2(parts) if parts else 0,
    }  # fmt: skip
    if tile.wide:
        shared = handed_in(x.device, tile, outs, rows, gated)
        quant_wide_tile_kernel[grid](
            *tensors, *shared, rows, outs, parts, around["eps"],
            BITS=4 if weight.four_bit else 8, SPLIT=tile.split, **options,
        )  # fmt: skip
    else:
        quant_tile_kernel[grid](
            *tensors, rows, outs, parts, around["eps"], SLICES=tile.slices, TILES=tile.tiles, **options
        )


def coded_tile(
    weight: CodedWeight, rows: int, gated: bool, traits: DeviceTraits, dtype: torch.dtype = torch.bfloat16
) -> Tile:
    """The kernel and tile for a product of activations in a type with a weight on a device with these figures.

    Measured on an H200 with an 8B layer's products in their order, in microseconds with digits and with what
    choose_coded_tile says: int4 39.5 and 52.1 for one row, 55 and 91 for 2, 65 and 94 for 8, 80 and 111 for 16; int8
    55.3 and 81.2, 69 and 79, 71 and 70, 76 and 101. With a step by row, digits are as exact as bfloat16's rounding of
    results, not as float16's.
    """
    if isinstance(weight, BlockWeight):
        return block_tile(weight, rows, gated, traits)
    outs, size = weight.shape
    outs = outs // 2 if gated else outs
    if suits_digits(weight, traits):
        if rows == 1:
            return digit_row_tile(weight.code, outs, size, gated, traits)
        slower = weight.code == "int8" and 4 < rows <= 8
        if rows <= 16 and dtype == torch.bfloat16 and not slower:
            return digit_tile(weight.code, rows, outs, size, gated, traits)
    if weight.code == "e4m3" and suits_float8(rows, outs, size, gated, traits):
        return within_groups(choose_float8(rows, outs, size, gated, traits), weight)
    if rows > 16 and weight.in_words:
        return choose_wide_tile(weight.code, rows, outs, size, gated, traits)
    return within_groups(choose_coded_tile(weight.code, weight.group, rows, outs, size, gated, traits), weight)


def within_groups(tile: GemvTile | DotTile, weight: CodedWeight) -> GemvTile | DotTile:
    """The tile, whose turns take no more columns of E4M3 weights than share a scale."""
    group = weight.scale_columns
    if weight.code != "e4m3" or not group or not isinstance(tile, DotTile) or tile.block_k <= group:
        return tile
    return replace(tile, block_k=group, stages=tile.stages * tile.block_k // group)


@lru_cache(maxsize=256)
def choose_coded_tile(
    code: str, group: int, rows: int, outs: int, size: int, gated: bool, traits: DeviceTraits
) -> GemvTile | DotTile:
    """The same for up to 16 rows of codes of this shape, and for more of codes that are not in words.

    Measured on an H200 with the shapes of an 8B model. One row of 4-bit codes and of E4M3 is faster by multiply-adds
    (51 against 80 and 81 against 114 us a layer), of int8 by tensor cores (69 against 80 us, each product alone).
    """
    four_bit = code not in ("int8", "e4m3")
    if rows <= _gemv_rows(code, traits):
        return _four_bit_gemv(code, group, outs, size, gated, traits) if four_bit else GemvTile(4, 1024, 4)
    if four_bit:
        return _four_bit_tile(rows, size, gated)
    if rows > 16:
        return DotTile(64, 64, 128, 3, 4) if gated or outs > size else DotTile(32, 64, 128, 4, 4)
    rows_padded, pairs = 8 if rows <= 8 else 16, code == "e4m3"
    # as for 16-bit weights, more than 48 KiB of shared memory each, so that it need not be divided anew in between
    if not gated and outs > size > 1024:
        return DotTile(rows_padded, 16, 256, 3, 4, slices=4, pairs=pairs)
    stages = 6 if rows <= 8 and not gated else 3 if pairs and outs > size > 1024 else 4
    return DotTile(rows_padded, 16, 128, stages, 4, slices=4, pairs=pairs)


@lru_cache(maxsize=256)
def choose_wide_tile(code: str, rows: int, outs: int, size: int, gated: bool, traits: DeviceTraits) -> DotTile:
    """The same for 17 to 64 rows of codes in words.

    Measured on an H200 with 64 rows of an 8B and a 0.5B model and groups of 128, in a layer's order: 113 and 39 us a
    layer of int4, 99 and 36 of int8, where programs that had an output's whole input took 238, 52, 220 and 47.
    """
    rows_padded, bits, multiprocessors = 32 if rows <= 32 else 64, 8 if code == "int8" else 4, traits.multiprocessors
    # a program that shares its outputs has at least 8 turns of the input, or handing in costs more than it gains
    most = 1 if gated else max(1, min(4, triton.cdiv(size, BLOCK) // 8))

    def parts(block_n: int, programs: int) -> int:
        blocks = triton.cdiv(outs, block_n)
        return next((part for part in (4, 2) if part <= most and blocks * part <= programs), 1)

    # one large program a multiprocessor, where so many come out that few are idle
    split = parts(128, multiprocessors)
    programs = triton.cdiv(outs, 128) * split
    busy = programs / (triton.cdiv(programs, multiprocessors) * multiprocessors)
    large = DotTile(rows_padded, 128, BLOCK, 3 if bits == 4 else 4, 8, split=split, wide=True)
    if busy > 0.8 and not (gated and bits == 8) and _wide_bytes(large, bits, gated, traits) <= traits.shared_bytes:
        return large
    split = parts(64, 3 * multiprocessors)
    if split == 1 and 2 * triton.cdiv(outs, 64) <= multiprocessors:
        # few outputs and a short input: more programs, by fewer rows
        return _four_bit_tile(rows, size, gated) if bits == 4 else DotTile(32, 64, BLOCK, 3, 4, wide=True)
    stages = 2 if bits == 4 and split > 1 else 3  # three programs of two stages share a multiprocessor
    small = DotTile(rows_padded, 64, BLOCK, stages, 4, split=split, wide=True)
    return small if _wide_bytes(small, bits, gated, traits) <= traits.shared_bytes else replace(small, stages=2)


def _wide_bytes(tile: DotTile, bits: int, gated: bool, traits: DeviceTraits) -> int:
    """Most shared memory of a wide tile: of 4-bit codes a turn takes 256 columns, with scales and shifts of 4 bytes."""
    columns = 2 * BLOCK if bits == 4 else BLOCK
    lines = tile.block_n * (2 if gated else 1)
    # products that read shared memory themselves keep one more turn of the activations
    turns_of_x = tile.stages if traits.capability // 10 in (9, 10) else tile.stages - 1
    codes = lines * (columns * bits // 8 + (8 if bits == 4 else 0))
    return turns_of_x * tile.block_t * columns * 2 + (tile.stages - 1) * codes


def _gemv_rows(code: str, traits: DeviceTraits) -> int:
    """Rows up to which multiply-adds are faster, or all there is."""
    if not traits.tensor_cores:
        return 1
    return {"e4m3": 2, "int8": 0}.get(code, 1)


def _four_bit_gemv(code: str, group: int, outs: int, size: int, gated: bool, traits: DeviceTraits) -> GemvTile:
    # a thread has 32 columns; a row in one turn, if it is not too long, saves the registers of the next one
    warps = 2 if size > 4096 else 4 if size > 2048 else 2 if size > 1024 else 1
    # scales of smaller groups take registers too, but lookups gain more by sharing activations (counted, not measured)
    looked_up = code in TABLE_NUMBERS and size <= 4096 and (group >= 64 or code == "e2m1")
    lines = 8 if group >= BLOCK or looked_up else 4
    least = 4 if gated else 2
    while lines > least and outs * (2 if gated else 1) // lines * warps < 6 * traits.multiprocessors:
        lines //= 2
    return GemvTile(lines // 2 if gated else lines, 1024 * warps, warps)


def _four_bit_tile(rows: int, size: int, gated: bool) -> DotTile:
    if rows > 16:
        return DotTile(64, 64, BLOCK, 3, 4) if gated else DotTile(32, 64, BLOCK, 3, 4)
    if gated:
        return DotTile(8, 32, BLOCK, 3, 2, slices=2) if rows <= 8 else DotTile(16, 64, BLOCK, 4, 4)
    if rows <= 8 and size > 4096:
        return DotTile(8, 16, BLOCK, 3, 8, slices=8, tiles=2)
    return DotTile(8 if rows <= 8 else 16, 16, BLOCK, 3, 4, slices=4, tiles=2)
