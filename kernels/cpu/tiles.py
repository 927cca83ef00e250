"""Products of bfloat16 by the tile unit of recent Intel processors (AMX), 16 outputs by up to 16 rows at a time.

Rows of weights are the left operand as they lie in memory. The right one holds pairs of adjacent elements side by side:
x is kept as bfloat16 in blocks [n / 32][16][columns][2], columns being the rows of the step, rounded up to 8 or 16.
Where the unit is missing nothing of this is compiled in (`available`), and `column_count` is never asked for.
"""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
from llvmlite import binding, ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

log = logging.getLogger(__name__)

TILE = 16  # outputs, and the most columns
CHUNK = 64  # bytes of a row that the unit reads at once
_SUM, _WEIGHTS, _ROWS = 0, 1, 2  # tile registers
WHOLE_SUM, BYTES, ROW_BYTES, HALF_BYTES, HALF_ROW_BYTES = 3, 1, 4, 5, 6  # those of whole.py
_I8, _I32, _I64 = ir.IntType(8), ir.IntType(32), ir.IntType(64)
_POINTER = _I8.as_pointer()
_VOID = ir.VoidType()


def available() -> bool:
    """Whether the processor has the unit, for bfloat16 and for bytes, and the system lets this process use it."""
    if not compiled_in():
        return False
    try:
        import torch

        return bool(torch.cpu._init_amx())
    except (ImportError, AttributeError, RuntimeError) as error:
        log.info("the processor's tile unit is not used: %s", error)
        return False


def configuration(columns: int) -> np.ndarray:
    """The 64 bytes that lay the unit out for so many columns (Intel's instruction set reference, LDTILECFG), and for
    the bytes of whole.py, whose columns are always 16."""
    table = np.zeros(64, dtype=np.uint8)
    table[0] = 1  # the only palette there is
    widths, heights = table[16:48].view(np.uint16), table[48:64]
    for register, width in ((_SUM, 4 * columns), (_WEIGHTS, CHUNK), (_ROWS, 4 * columns), (WHOLE_SUM, 4 * TILE)):
        widths[register], heights[register] = width, TILE
    widths[ROW_BYTES], heights[ROW_BYTES] = 4 * TILE, CHUNK // 4
    widths[HALF_BYTES], heights[HALF_BYTES] = CHUNK // 2, TILE
    widths[HALF_ROW_BYTES], heights[HALF_ROW_BYTES] = 4 * TILE, CHUNK // 8
    return table


def compiled_in() -> bool:
    """Whether the processor has what is compiled for the unit; all that multiply bfloat16 there multiply bytes, too."""
    features = binding.get_host_cpu_features()
    needed = ("amx-tile", "amx-bf16", "amx-int8", "avx512f", "avx512bw", "avx512vnni")
    return all(features.get(name) for name in needed)


def call(builder: Any, name: str, *arguments: Any) -> None:
    """An instruction of the unit."""
    module, kinds = builder.module, [argument.type for argument in arguments]
    function = module.globals.get(name) or ir.Function(module, ir.FunctionType(_VOID, kinds), name)
    builder.call(function, arguments)


def _multiply(builder: Any, weights: Any, stride: Any, rows: Any, width: Any) -> None:
    call(builder, "llvm.x86.tileloadd64", _I8(_WEIGHTS), builder.inttoptr(weights, _POINTER), stride)
    call(builder, "llvm.x86.tileloadd64", _I8(_ROWS), builder.inttoptr(rows, _POINTER), width)
    call(builder, "llvm.x86.tdpbf16ps", _I8(_SUM), _I8(_WEIGHTS), _I8(_ROWS))


@intrinsic
def begin_tiles(_context, configuration):  # type: ignore[no-untyped-def]
    """Lays the unit out for this thread, by the address of a configuration."""

    def generate(context, builder, _signature, arguments):  # type: ignore[no-untyped-def]
        if compiled_in():
            call(builder, "llvm.x86.ldtilecfg", builder.inttoptr(arguments[0], _POINTER))
        return context.get_dummy_value()

    return types.void(types.int64), generate


@intrinsic
def end_tiles(_context):  # type: ignore[no-untyped-def]
    """Leaves the unit empty, so that the system need not save it any more."""

    def generate(context, builder, _signature, _arguments):  # type: ignore[no-untyped-def]
        if compiled_in():
            call(builder, "llvm.x86.tilerelease")
        return context.get_dummy_value()

    return types.void(), generate


@intrinsic
def tile_products(_context, w, stride, x, columns, n, sums, later):  # type: ignore[no-untyped-def]
    """sums [16, columns] float32 = the products of 16 rows of n weights, `stride` bytes apart, with x. As much is
    fetched so many bytes behind them."""

    def generate(context, builder, _signature, arguments):  # type: ignore[no-untyped-def]
        if not compiled_in():
            return context.get_dummy_value()
        w, stride, x, columns, n, sums, later = arguments
        width = builder.shl(columns, _I64(2))
        call(builder, "llvm.x86.tilezero", _I8(_SUM))
        with cgutils.for_range(builder, builder.lshr(n, _I64(5))) as loop:
            weights = builder.add(w, builder.shl(loop.index, _I64(6)))
            rows = builder.add(x, builder.mul(loop.index, builder.shl(width, _I64(4))))
            _multiply(builder, weights, stride, rows, width)
            fetched = builder.add(weights, later)
            for _ in range(TILE):
                pointer = builder.inttoptr(fetched, _POINTER)
                call(builder, "llvm.prefetch.p0", pointer, _I32(0), _I32(2), _I32(1))  # read, second level, data
                fetched = builder.add(fetched, stride)
        call(builder, "llvm.x86.tilestored64", _I8(_SUM), builder.inttoptr(sums, _POINTER), width)
        return context.get_dummy_value()

    return types.void(*[types.int64] * 7), generate
