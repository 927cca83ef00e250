"""The product of 4-bit codes with one row of whole numbers (see whole.py), by the vector unit's bytes (AVX-512 VNNI).

An instruction adds up sixty-four products of an unsigned byte and a signed one, four to a sum. A register of codes is
two of bytes, 64 even elements and 64 odd ones; what a register's groups add up to is scaled in float32, and what their
shifts add is the shifts times the groups' sums of activations. The tile unit has nothing to do for seven of its eight
rows and reads codes only after they are spread; this is bound by the memory they come from.

The row lies as four registers for every 128 elements: high bytes of even and odd elements, then low ones. Behind them,
where a row of eight has its sums, stand the sums over groups, float32 in whole vectors.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic

from octavo.kernels.cpu.codes import Builder, words
from octavo.kernels.cpu.fields import WHOLE_HEAD, Linear
from octavo.kernels.cpu.numbers import EXACT, apart, floats
from octavo.kernels.cpu.pairs import EVEN, ODD, first_lanes, load_part, pairs_line, part_pairs, pick
from octavo.kernels.cpu.tiles import TILE, compiled_in
from octavo.kernels.cpu.vectors import FLOATS, LANES, WORDS, declare, fma, horizontal_sum, load, prefetch, splat, store
from octavo.kernels.cpu.whole import high_bytes, pairs_place, rounded, step_of, step_or_nan

_I8, _I32, _I64 = (ir.IntType(bits) for bits in (8, 32, 64))
_F32, _BYTES = ir.FloatType(), ir.VectorType(_I8, LANES)
_FOUR_FLOATS = ir.VectorType(_F32, 4)
_REGISTER = 64  # bytes
_OUTPUTS = 2  # side by side
_AHEAD = 1024  # bytes of a row, of which several are read side by side


def _add_products(builder: Builder, total: Any, unsigned: Any, signed: Any) -> Any:
    function = declare(builder, "llvm.x86.avx512.vpdpbusd.512", WORDS, [WORDS] * 3)
    return builder.call(function, [total, unsigned, signed])


@njit(**EXACT)
def _sums_place(room, size):  # type: ignore[no-untyped-def]
    return room + WHOLE_HEAD + 2 * ((size + 127) & ~127)


@intrinsic
def _split_parted(_context, x, n, inverse, target, group_bits, sums):  # type: ignore[no-untyped-def]
    """n float32 times a number as bytes in the order of codes; their sums over groups are added to float32."""

    def generate(context, builder, _signature, arguments):  # type: ignore[no-untyped-def]
        x, n, inverse, target, group_bits, sums = arguments
        factor = splat(builder, inverse)
        add = declare(builder, "llvm.vector.reduce.add.v16i32", _I32, [WORDS])
        with cgutils.for_range(builder, builder.lshr(n, _I64(5))) as loop:
            source = builder.add(x, builder.shl(loop.index, _I64(7)))
            first, second = (rounded(builder, builder.add(source, _I64(4 * LANES * half)), factor) for half in range(2))
            quarter = builder.shl(builder.and_(loop.index, _I64(3)), _I64(4))
            place = builder.add(target, builder.add(builder.shl(builder.lshr(loop.index, _I64(2)), _I64(8)), quarter))
            for part, places in enumerate((EVEN, ODD)):
                whole = pick(builder, first, second, places)
                at = builder.add(place, _I64(_REGISTER * part))
                store(builder, builder.trunc(high_bytes(builder, whole), _BYTES), at)
                store(builder, builder.trunc(whole, _BYTES), builder.add(at, _I64(2 * _REGISTER)))
            at = builder.add(sums, builder.shl(builder.lshr(loop.index, group_bits), _I64(2)))
            found = builder.sitofp(builder.call(add, [builder.add(first, second)]), _F32)
            store(builder, builder.fadd(load(builder, at, _F32), found), at)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.float32, *[types.int64] * 3), generate


@njit(**EXACT)
def split_bytes(linear, room, size, source):  # type: ignore[no-untyped-def]
    """Keeps float32 [size] at an address as whole numbers for a weight, as `whole.split_row` does."""
    apart()
    step, bits = step_of(source, size), min(linear[Linear.GROUP_BITS], 31)
    sums = floats(_sums_place(room, size))
    for i in range(pairs_line(max(1, size >> 5 >> bits)) >> 2):
        sums[i] = np.float32(0.0)
    _split_parted(source, size, np.float32(1.0) / step, room + WHOLE_HEAD, bits, _sums_place(room, size))
    floats(room)[0] = step_or_nan(source, size, step)


@intrinsic
def _row_products(_context, w, w_stride, pairs, p_line, group_bits, x, n, x_sums, step, y):  # type: ignore[no-untyped-def]
    """y [16] float32 of 16 rows of n codes, `w_stride` bytes apart, whose scales and shifts are lines as `part_pairs`
    makes them."""

    def generate(context, builder, _signature, arguments):  # type: ignore[no-untyped-def]
        if not compiled_in():
            return context.get_dummy_value()
        w, w_stride, pairs, p_line, group_bits, x, n, x_sums, step, y = arguments
        quarters = ir.Constant(WORDS, [lane >> 2 for lane in range(LANES)])
        places = builder.lshr(quarters, splat(builder, builder.trunc(group_bits, _I32)))
        choose = declare(builder, "llvm.x86.avx512.vpermilvar.ps.512", FLOATS, [FLOATS, WORDS])
        spread = ir.Constant(WORDS, [lane & 3 for lane in range(LANES)])
        totals = [cgutils.alloca_once(builder, FLOATS) for _ in range(_OUTPUTS)]
        blocks, rest = builder.lshr(n, _I64(7)), builder.and_(n, _I64(127))

        def add(index: Any, starts: list[Any], lines: list[Any], mask: Any) -> None:
            group = builder.lshr(builder.shl(index, _I64(2)), group_bits)
            base = builder.add(x, builder.shl(index, _I64(8)))
            even, odd, low_even, low_odd = (
                load(builder, builder.add(base, _I64(_REGISTER * part)), WORDS) for part in range(4)
            )
            for start, line, sums in zip(starts, lines, totals):
                address = builder.add(start, builder.shl(index, _I64(6)))
                both = load(builder, address, WORDS) if mask is None else load_part(builder, address, mask)
                prefetch(builder, builder.add(address, _I64(_AHEAD)))
                first = builder.and_(both, words(0x0F0F0F0F))
                second = builder.and_(builder.lshr(both, words(4)), words(0x0F0F0F0F))
                four = load(builder, builder.add(line, builder.shl(group, _I64(2))), _FOUR_FLOATS)
                scale = builder.shuffle_vector(four, ir.Constant(_FOUR_FLOATS, ir.Undefined), spread)
                total = _add_products(builder, words(0), first, even)
                total = builder.shl(_add_products(builder, total, second, odd), words(8))
                total = _add_products(builder, total, first, low_even)
                total = builder.sitofp(_add_products(builder, total, second, low_odd), FLOATS)
                scaled = fma(builder, total, builder.call(choose, [scale, places]), builder.load(sums))
                builder.store(scaled, sums)

        with cgutils.for_range(builder, _I64(TILE // _OUTPUTS)) as loop:
            first = builder.mul(loop.index, _I64(_OUTPUTS))
            outputs = [builder.add(first, _I64(o)) for o in range(_OUTPUTS)]
            starts = [builder.add(w, builder.mul(w_stride, output)) for output in outputs]
            lines = [builder.add(pairs, builder.mul(p_line, output)) for output in outputs]
            for sums in totals:
                builder.store(ir.Constant(FLOATS, [0.0] * LANES), sums)
            with cgutils.for_range(builder, builder.lshr(p_line, _I64(6))) as vectors:
                offset = builder.shl(vectors.index, _I64(6))
                moved = load(builder, builder.add(x_sums, offset))
                for line, sums in zip(lines, totals):
                    shifts = builder.add(line, builder.add(builder.shl(p_line, _I64(4)), offset))
                    builder.store(fma(builder, load(builder, shifts), moved, builder.load(sums)), sums)
            with cgutils.for_range(builder, blocks) as block:
                add(block.index, starts, lines, None)
            with builder.if_then(builder.icmp_signed(">", rest, _I64(0))):
                add(blocks, starts, lines, first_lanes(builder, builder.lshr(rest, _I64(3))))
            for output, sums in zip(outputs, totals):
                total = builder.fmul(horizontal_sum(builder, builder.load(sums)), step)
                store(builder, total, builder.add(y, builder.shl(output, _I64(2))))
        return context.get_dummy_value()

    integer = types.int64
    return types.void(*[integer] * 8, types.float32, integer), generate


@njit(**EXACT)
def code_row(linear, at, spacing, room, size, y):  # type: ignore[no-untyped-def]
    """y [16] float32 of 16 rows of codes, every `spacing`-th from `at` on, and the row that was split into `room`."""
    apart()
    w, stride = linear[Linear.ROWS] + at * linear[Linear.STRIDE], linear[Linear.STRIDE] * spacing
    bits, pairs = min(linear[Linear.GROUP_BITS], 31), pairs_place(room, size)
    groups = max(1, size >> 5 >> bits)
    part_pairs(linear, at, spacing, groups, 1, pairs)
    line, sums, step = pairs_line(groups), _sums_place(room, size), floats(room)[0]
    _row_products(w, stride, pairs, line, bits, room + WHOLE_HEAD, size, sums, step, y)
