"""Products of 16 rows of codes with up to eight rows of whole numbers (see whole.py), by the tile unit.

int8: the unit reads codes as they lie in memory. int4: codes are spread to bytes in memory that stays in the core's
cache; a group's sums are scaled before they are added up, and what a group's shift adds is the shift times the group's
sum of activations. While codes are read, later ones are fetched. Sums are exact but for those over groups, which are
float32.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic

from octavo.kernels.cpu.codes import Builder
from octavo.kernels.cpu.fields import SPREAD, TOGETHER, Form, Linear
from octavo.kernels.cpu.numbers import EXACT, apart, floats
from octavo.kernels.cpu.pairs import pairs_line, part_pairs
from octavo.kernels.cpu.tiles import (
    BYTES,
    CHUNK,
    HALF_BYTES,
    HALF_ROW_BYTES,
    ROW_BYTES,
    TILE,
    WHOLE_SUM,
    call,
    compiled_in,
)
from octavo.kernels.cpu.vectors import FLOATS, LANES, WORDS, fma, load, splat, store
from octavo.kernels.cpu.whole import group_lines, pairs_place, row_place

_I1, _I8, _I16, _I32, _I64 = (ir.IntType(bits) for bits in (1, 8, 16, 32, 64))
_F32 = ir.FloatType()
_POINTER = _I8.as_pointer()
_EIGHT_WORDS, _EIGHT_FLOATS = ir.VectorType(_I32, TOGETHER), ir.VectorType(_F32, TOGETHER)
_SUMS_LINE, _SUMS_BYTES = TILE * 4, TILE * TILE * 4
_OUTPUTS = 8  # whose groups are added up together


def _load_tile(builder: Builder, register: int, address: Any, stride: Any) -> None:
    call(builder, "llvm.x86.tileloadd64", _I8(register), builder.inttoptr(address, _POINTER), stride)


def _add_products(builder: Builder, codes: int, rows: int) -> None:
    call(builder, "llvm.x86.tdpbssd", _I8(WHOLE_SUM), _I8(codes), _I8(rows))


def _store_sums(builder: Builder, address: Any) -> None:
    call(builder, "llvm.x86.tilestored64", _I8(WHOLE_SUM), builder.inttoptr(address, _POINTER), _I64(CHUNK))


def _fetch(builder: Builder, address: Any) -> None:
    pointer = builder.inttoptr(address, _POINTER)
    call(builder, "llvm.prefetch.p0", pointer, _I32(0), _I32(2), _I32(1))  # read, second level, data


@intrinsic
def _int8_sums(_context, w, stride, x, n, sums, later):  # type: ignore[no-untyped-def]
    """sums [16, 16] int32 of 16 rows of n codes, `stride` bytes apart, and the columns of x. As much is fetched so many
    bytes behind them."""

    def generate(context, builder, _signature, arguments):  # type: ignore[no-untyped-def]
        if not compiled_in():
            return context.get_dummy_value()
        w, stride, x, n, sums, later = arguments
        call(builder, "llvm.x86.tilezero", _I8(WHOLE_SUM))
        with cgutils.for_range(builder, builder.lshr(n, _I64(6))) as loop:
            codes = builder.add(w, builder.shl(loop.index, _I64(6)))
            _load_tile(builder, BYTES, codes, stride)
            _load_tile(builder, ROW_BYTES, builder.add(x, builder.shl(loop.index, _I64(10))), _I64(CHUNK))
            _add_products(builder, BYTES, ROW_BYTES)
            fetched = builder.add(codes, later)
            for _ in range(TILE):
                _fetch(builder, fetched)
                fetched = builder.add(fetched, stride)
        with builder.if_then(builder.trunc(builder.lshr(n, _I64(5)), _I1)):
            rest = builder.and_(n, _I64(-CHUNK))
            _load_tile(builder, HALF_BYTES, builder.add(w, rest), stride)
            _load_tile(builder, HALF_ROW_BYTES, builder.add(x, builder.shl(rest, _I64(4))), _I64(CHUNK))
            _add_products(builder, HALF_BYTES, HALF_ROW_BYTES)
        _store_sums(builder, sums)
        return context.get_dummy_value()

    return types.void(*[types.int64] * 6), generate


def _as_bytes(builder: Builder, address: Any, count: int) -> Any:
    """So many 4-bit codes as bytes."""
    narrow = load(builder, address, ir.VectorType(_I8, count // 2))
    halves = ir.VectorType(_I16, count // 2)
    wide = builder.zext(narrow, halves)
    moved = builder.or_(wide, builder.shl(wide, ir.Constant(halves, [4] * (count // 2))))
    return builder.and_(moved, ir.Constant(halves, [0x0F0F] * (count // 2)))


@intrinsic
def _spread(_context, w, stride, n, room, later):  # type: ignore[no-untyped-def]
    """Bytes [n / 64 rounded up][16][64] of 16 rows of n 4-bit codes, `stride` bytes apart. As much is fetched so many
    bytes behind them."""

    def generate(context, builder, _signature, arguments):  # type: ignore[no-untyped-def]
        w, stride, n, room, later = arguments
        whole, rest = builder.lshr(n, _I64(6)), builder.and_(n, _I64(CHUNK // 2))
        with cgutils.for_range(builder, _I64(TILE)) as rows:
            start = builder.add(w, builder.mul(stride, rows.index))
            target = builder.add(room, builder.shl(rows.index, _I64(6)))
            with cgutils.for_range(builder, whole) as loop:
                codes = builder.add(start, builder.shl(loop.index, _I64(5)))
                made = _as_bytes(builder, codes, CHUNK)
                _fetch(builder, builder.add(codes, later))
                store(builder, made, builder.add(target, builder.shl(loop.index, _I64(10))))
            with builder.if_then(builder.icmp_signed(">", rest, _I64(0)), likely=False):
                made = _as_bytes(builder, builder.add(start, builder.shl(whole, _I64(5))), CHUNK // 2)
                store(builder, made, builder.add(target, builder.shl(whole, _I64(10))))
        return context.get_dummy_value()

    return types.void(*[types.int64] * 5), generate


@intrinsic
def _group_sums(_context, codes, x, n, group, sums):  # type: ignore[no-untyped-def]
    """int32 [n / group][16, 16] of 16 rows of n bytes in the order of `_spread` and the columns of x; group is 32 or
    a multiple of 64."""

    def generate(context, builder, _signature, arguments):  # type: ignore[no-untyped-def]
        if not compiled_in():
            return context.get_dummy_value()
        codes, x, n, group, sums = arguments

        with builder.if_else(builder.icmp_signed("<", group, _I64(CHUNK))) as (narrow, wide):
            with narrow, cgutils.for_range(builder, builder.lshr(n, _I64(5))) as loop:
                half = builder.shl(builder.and_(loop.index, _I64(1)), _I64(5))
                place = builder.add(builder.shl(builder.lshr(loop.index, _I64(1)), _I64(10)), half)
                call(builder, "llvm.x86.tilezero", _I8(WHOLE_SUM))
                _load_tile(builder, HALF_BYTES, builder.add(codes, place), _I64(CHUNK))
                rows = builder.add(x, builder.shl(loop.index, _I64(9)))
                _load_tile(builder, HALF_ROW_BYTES, rows, _I64(CHUNK))
                _add_products(builder, HALF_BYTES, HALF_ROW_BYTES)
                _store_sums(builder, builder.add(sums, builder.shl(loop.index, _I64(10))))
            with wide:
                chunks = builder.lshr(group, _I64(6))
                with cgutils.for_range(builder, builder.udiv(n, group)) as groups:
                    call(builder, "llvm.x86.tilezero", _I8(WHOLE_SUM))
                    first = builder.mul(groups.index, chunks)
                    with cgutils.for_range(builder, chunks) as loop:
                        place = builder.shl(builder.add(first, loop.index), _I64(10))
                        _load_tile(builder, BYTES, builder.add(codes, place), _I64(CHUNK))
                        _load_tile(builder, ROW_BYTES, builder.add(x, place), _I64(CHUNK))
                        _add_products(builder, BYTES, ROW_BYTES)
                    _store_sums(builder, builder.add(sums, builder.shl(groups.index, _I64(10))))
        return context.get_dummy_value()

    return types.void(*[types.int64] * 5), generate


@intrinsic
def _add_groups(_context, found, pairs, p_line, x_sums, groups, sums):  # type: ignore[no-untyped-def]
    """Adds to sums [16, 16] float32 those of groups times a row's scales, and the columns' sums times its shifts; of
    both there are 16 lines (see pairs.py)."""

    def generate(context, builder, _signature, arguments):  # type: ignore[no-untyped-def]
        found, pairs, p_line, x_sums, groups, sums = arguments
        behind = builder.shl(p_line, _I64(4))
        with cgutils.for_range(builder, _I64(TILE // _OUTPUTS)) as part:
            own = builder.shl(part.index, _I64(6 + _OUTPUTS.bit_length() - 1))
            place, target = builder.add(found, own), builder.add(sums, own)
            line = builder.add(pairs, builder.mul(p_line, builder.mul(part.index, _I64(_OUTPUTS))))
            lines = [builder.add(line, builder.mul(p_line, _I64(o))) for o in range(_OUTPUTS)]
            places = [builder.add(target, _I64(CHUNK * o)) for o in range(_OUTPUTS)]
            totals = [cgutils.alloca_once(builder, FLOATS) for _ in range(_OUTPUTS)]
            for total, at in zip(totals, places):
                builder.store(load(builder, at), total)
            with cgutils.for_range(builder, groups) as loop:
                moved = load(builder, builder.add(x_sums, builder.shl(loop.index, _I64(6))))
                at = builder.add(place, builder.shl(loop.index, _I64(10)))
                for o in range(_OUTPUTS):
                    one = builder.add(lines[o], builder.shl(loop.index, _I64(2)))
                    scale, shift = (splat(builder, load(builder, p, _F32)) for p in (one, builder.add(one, behind)))
                    whole = builder.sitofp(load(builder, builder.add(at, _I64(CHUNK * o)), WORDS), FLOATS)
                    total = fma(builder, moved, shift, builder.load(totals[o]))
                    builder.store(fma(builder, whole, scale, total), totals[o])
            for total, at in zip(totals, places):
                store(builder, builder.load(total), at)
        return context.get_dummy_value()

    return types.void(*[types.int64] * 6), generate


def _make_settle(form: int) -> Callable[..., None]:
    """`(sums, steps, scales, rows, y, y_stride)`: y [rows, 16] float32 of sums [16, 16], int32 with a scale for each of
    the 16 outputs, or float32 without."""

    @intrinsic
    def settle(_context, sums, steps, scales, rows, y, y_stride):  # type: ignore[no-untyped-def]
        def generate(context, builder, _signature, arguments):  # type: ignore[no-untyped-def]
            sums, steps, scales, rows, y, y_stride = arguments
            kind = _EIGHT_WORDS if form == Form.INT8 else _EIGHT_FLOATS
            joined = ir.VectorType(_I32, LANES)
            mask = ir.Constant(joined, list(range(LANES)))
            fine = ir.Constant(FLOATS, [256.0] * LANES)
            found = []
            for output in range(TOGETHER):  # of outputs o and o + 8 the eight rows
                parts = []
                for part in range(2):
                    one, other = (
                        load(builder, builder.add(sums, _I64(CHUNK * o + 4 * TOGETHER * part)), kind)
                        for o in (output, output + TOGETHER)
                    )
                    both = builder.shuffle_vector(one, other, mask)
                    parts.append(builder.sitofp(both, FLOATS) if form == Form.INT8 else both)
                found.append(fma(builder, parts[0], fine, parts[1]))
            scale = load(builder, scales) if form == Form.INT8 else None
            for row, vector in enumerate(_turned(builder, found)):
                with builder.if_then(builder.icmp_signed(">", rows, _I64(row)), likely=True):
                    step = splat(builder, load(builder, builder.add(steps, _I64(4 * row)), _F32))
                    if scale is not None:
                        step = builder.fmul(step, scale)
                    store(builder, builder.fmul(vector, step), builder.add(y, builder.mul(y_stride, _I64(row))))
            return context.get_dummy_value()

        return types.void(*[types.int64] * 6), generate

    return settle


def _turned(builder: Builder, vectors: list[Any]) -> list[Any]:
    """Eight vectors of two times eight numbers: number i of both halves of all goes into vector i."""
    kind = ir.VectorType(_I32, LANES)
    for distance in (4, 2, 1):
        made = list(vectors)
        low = [i for half in (0, 8) for i in _crossed(distance, half, upper=False)]
        high = [i for half in (0, 8) for i in _crossed(distance, half, upper=True)]
        for first in (i for i in range(8) if not i & distance):
            a, b = vectors[first], vectors[first + distance]
            made[first] = builder.shuffle_vector(a, b, ir.Constant(kind, low))
            made[first + distance] = builder.shuffle_vector(a, b, ir.Constant(kind, high))
        vectors = made
    return vectors


def _crossed(distance: int, half: int, upper: bool) -> list[int]:
    """Where the numbers of a half come from when blocks of two vectors change places (Eklundh's transposition)."""
    shift = distance if upper else 0
    return [half + (i & ~distance) + shift + (LANES if i & distance else 0) for i in range(8)]


_settle_int8, _settle_int4 = _make_settle(Form.INT8), _make_settle(Form.INT4)


@njit(**EXACT)
def code_tile(linear, at, spacing, rows, x, size, y, y_stride, own):  # type: ignore[no-untyped-def]
    """y [rows, 16] float32 of 16 rows of codes, every `spacing`-th from `at` on, and rows that were split into x.
    `own`: 27 KiB, of which the second and third stay as they are."""
    apart()
    line, stride = linear[Linear.STRIDE], linear[Linear.STRIDE] * spacing
    w = linear[Linear.ROWS] + at * line
    later = line if spacing > 1 else TILE * line  # the row that follows in the same stream
    if linear[Linear.FORM] == Form.INT8:
        scales = own + 3 * _SUMS_BYTES
        for output in range(TILE):
            place = linear[Linear.SCALES] + (at + output * spacing) * linear[Linear.SCALE_STRIDE]
            floats(scales)[output] = floats(place)[0]
        for row in range(0, rows, TOGETHER):
            _int8_sums(w, stride, row_place(x, size, row), size, own, later)
            _settle_int8(own, x + row * 4, scales, rows - row, y + row * y_stride, y_stride)
        return
    group, pairs = 4 * group_lines(linear, size), pairs_place(x, size)
    parts = (32 << min(linear[Linear.GROUP_BITS], 32)) // group if linear[Linear.GROUP_BITS] < 32 else size // group
    part_pairs(linear, at, spacing, size // group, parts, pairs)
    for row in range(0, rows, TOGETHER):
        _int4_sums(w, stride, later, pairs, row_place(x, size, row), size, group, own)
        _settle_int4(own, x + row * 4, 0, rows - row, y + row * y_stride, y_stride)


@njit(**EXACT)
def _int4_sums(w, stride, later, pairs, x, size, group, own):  # type: ignore[no-untyped-def]
    """float32 [16, 16] at `own`."""
    total = floats(own)
    for i in range(TILE * TILE):
        total[i] = np.float32(0.0)
    codes = own + 3 * _SUMS_BYTES
    found, x_sums = codes + TILE * SPREAD, x + 2 * TOGETHER * size
    for first in range(0, size, SPREAD):
        count, at = min(SPREAD, size - first), first // group
        _spread(w + first // 2, stride, count, codes, later)
        _group_sums(codes, x + first * TILE, count, group, found)
        _add_groups(found, pairs + at * 4, pairs_line(size // group), x_sums + at * _SUMS_LINE, count // group, own)
