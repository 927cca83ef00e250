"""Rows of activations as whole numbers, for products with codes by the tile unit's bytes (AMX-INT8).

A row becomes whole numbers of 16 bits, in steps of a power of two that makes its largest number one of 14 to 15 bits:
more than bfloat16 has there. Such a number is 256 times a signed byte and another signed byte; the unit multiplies
codes by both, so that eight rows are sixteen columns. They lie as [n / 4][16 columns][4 bytes]: columns 0 to 7 are the
rows' high bytes, 8 to 15 their low ones. No row depends on its neighbours, and sums of whole numbers are exact.

A thread keeps its copy in memory of its own (`fields.whole_bytes`): the rows' steps, then for every eight rows their
bytes and the sums of these over the groups of a weight, then room beside them (`pairs_place`).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic

from octavo.kernels.cpu.codes import Builder, words
from octavo.kernels.cpu.fields import SPREAD, TOGETHER, WHOLE_HEAD, Form, Linear
from octavo.kernels.cpu.numbers import EXACT, apart, floats, from_bits
from octavo.kernels.cpu.tiles import compiled_in
from octavo.kernels.cpu.vectors import FLOATS, LANES, WORDS, declare, fma, load, splat, store

_I8, _I32, _I64 = ir.IntType(8), ir.IntType(32), ir.IntType(64)
_BYTES = ir.VectorType(_I8, LANES)
_FOUR_WORDS = ir.VectorType(_I32, 4)
_MIDDLE = 12582912.0  # 1.5 * 2^23: a number added to it is rounded, and stands in the lowest bits
_LINE = 64  # bytes of four elements of all columns
_LARGEST = np.float32(127 * 256)
_BIASED = np.int32(127 + 14)
_NO_NUMBER = np.int32(0x7F800000)  # the bits of infinity; those of NaN are more
_LEAST = np.int32(0x0C000000)  # the bits of 1e-31, the largest number of a row that has only smaller ones
_ONE = np.float32(1.0)


@intrinsic
def _largest_bits(_context, x, n):  # type: ignore[no-untyped-def]
    """The bits of the largest magnitude of n float32 at an address, n a multiple of 16; of NaN if there is one."""

    def generate(_context, builder, _signature, arguments):  # type: ignore[no-untyped-def]
        x, n = arguments
        best = cgutils.alloca_once_value(builder, words(0))
        with cgutils.for_range(builder, builder.lshr(n, _I64(4))) as loop:
            value = load(builder, builder.add(x, builder.shl(loop.index, _I64(6))), WORDS)
            value, so_far = builder.and_(value, words(0x7FFFFFFF)), builder.load(best)
            builder.store(builder.select(builder.icmp_signed(">", value, so_far), value, so_far), best)
        function = declare(builder, "llvm.vector.reduce.smax.v16i32", _I32, [WORDS])
        return builder.call(function, [builder.load(best)])

    return types.int32(types.int64, types.int64), generate


def rounded(builder: Builder, address: Any, factor: Any) -> Any:
    """16 float32 at an address times a factor, as whole numbers of at most 22 bits."""
    middle = ir.Constant(FLOATS, [_MIDDLE] * LANES)
    moved = builder.bitcast(fma(builder, load(builder, address), factor, middle), WORDS)
    return builder.sub(moved, words(0x4B400000))


def high_bytes(builder: Builder, whole: Any) -> Any:
    """What of whole numbers is 256 times as much, when their lowest bytes are signed."""
    return builder.ashr(builder.add(whole, words(128)), words(8))


@intrinsic
def _split(_context, x, n, inverse, target):  # type: ignore[no-untyped-def]
    """n float32, a multiple of 16, times a number, as high and low bytes of the column that begins at an address."""

    def generate(context, builder, _signature, arguments):  # type: ignore[no-untyped-def]
        x, n, inverse, target = arguments
        factor = splat(builder, inverse)
        with cgutils.for_range(builder, builder.lshr(n, _I64(4))) as loop:
            whole = rounded(builder, builder.add(x, builder.shl(loop.index, _I64(6))), factor)
            high = high_bytes(builder, whole)
            place = builder.add(target, builder.shl(loop.index, _I64(8)))
            for part, offset in ((high, 0), (whole, 4 * TOGETHER)):
                four = builder.bitcast(builder.trunc(part, _BYTES), _FOUR_WORDS)
                for i in range(4):
                    word = builder.extract_element(four, _I32(i))
                    store(builder, word, builder.add(place, _I64(offset + _LINE * i)))
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.float32, types.int64), generate


@intrinsic
def _column_sums(_context, packed, lines, groups, target):  # type: ignore[no-untyped-def]
    """float32 [groups, 16]: sums of the bytes of each column over `lines` times four elements."""

    def generate(context, builder, _signature, arguments):  # type: ignore[no-untyped-def]
        if not compiled_in():
            return context.get_dummy_value()
        packed, lines, groups, target = arguments
        function = declare(builder, "llvm.x86.avx512.vpdpbusd.512", WORDS, [WORDS] * 3)
        total, ones = cgutils.alloca_once(builder, WORDS), words(0x01010101)
        with cgutils.for_range(builder, groups) as group:
            builder.store(words(0), total)
            first = builder.add(packed, builder.shl(builder.mul(group.index, lines), _I64(6)))
            with cgutils.for_range(builder, lines) as loop:
                four = load(builder, builder.add(first, builder.shl(loop.index, _I64(6))), WORDS)
                builder.store(builder.call(function, [builder.load(total), ones, four]), total)
            place = builder.add(target, builder.shl(group.index, _I64(6)))
            store(builder, builder.sitofp(builder.load(total), FLOATS), place)
        return context.get_dummy_value()

    return types.void(*[types.int64] * 4), generate


@njit(**EXACT)
def row_place(room, size, row):  # type: ignore[no-untyped-def]
    """Where the bytes of a row's block of eight begin."""
    return room + WHOLE_HEAD + row // TOGETHER * (2 * TOGETHER + 2) * size


@njit(**EXACT)
def pairs_place(room, size):  # type: ignore[no-untyped-def]
    """Room for the scales and shifts of 16 outputs' groups (see pairs.py), or for a row before it is split."""
    return row_place(room, size, 2 * TOGETHER)


@njit(**EXACT)
def step_of(source, size):  # type: ignore[no-untyped-def]
    """What a row of float32 [size] at an address is counted in."""
    most = max(_largest_bits(source, size), _LEAST)
    exponent = (most >> np.int32(23)) - _BIASED + np.int32(127)
    step = from_bits(np.uint32(exponent << np.int32(23)))
    return step * np.float32(2.0) if from_bits(np.uint32(most)) / step > _LARGEST else step


@njit(**EXACT)
def step_or_nan(source, size, step):  # type: ignore[no-untyped-def]
    """NaN instead for a row with NaN or infinity."""
    return step if _largest_bits(source, size) < _NO_NUMBER else np.float32(np.nan)


@njit(**EXACT)
def split_row(room, size, row, source):  # type: ignore[no-untyped-def]
    """Keeps float32 [size] at an address as a row's whole numbers; a row with NaN or infinity gets NaN for a step."""
    apart()
    step = step_of(source, size)
    _split(source, size, _ONE / step, row_place(room, size, row) + row % TOGETHER * 4)
    floats(room)[row] = step_or_nan(source, size, step)


@njit(**EXACT)
def group_lines(linear, size):  # type: ignore[no-untyped-def]
    """Fours of elements that share a scale of an INT4 weight, of larger groups than are spread together a part."""
    bits = linear[Linear.GROUP_BITS]
    return 8 << bits if 32 << min(bits, 32) <= SPREAD else min(size & -size, SPREAD) >> 2


@njit(**EXACT)
def add_sums(linear, room, size, rows):  # type: ignore[no-untyped-def]
    """Completes rows that were split with the sums that a weight with shifts needs."""
    apart()
    if linear[Linear.FORM] != Form.INT4:
        return
    lines = group_lines(linear, size)
    for row in range(0, rows, TOGETHER):
        place = row_place(room, size, row)
        _column_sums(place, lines, (size >> 2) // lines, place + 2 * TOGETHER * size)
