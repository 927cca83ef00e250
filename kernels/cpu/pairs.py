"""Scales and shifts of the groups of 16 rows of 4-bit codes, as products with whole numbers read them: float32 lines of
scales and lines of shifts, one of each a row, with zeros behind the last group up to a whole vector."""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic

from octavo.kernels.cpu.codes import Builder, words
from octavo.kernels.cpu.fields import Linear
from octavo.kernels.cpu.numbers import EXACT, apart, floats
from octavo.kernels.cpu.tiles import TILE
from octavo.kernels.cpu.vectors import LANES, WORDS, declare, load, prefetch, splat, store

_I32, _I64 = ir.IntType(32), ir.IntType(64)
_MASK = ir.VectorType(ir.IntType(1), LANES)
EVEN, ODD = list(range(0, 2 * LANES, 2)), list(range(1, 2 * LANES, 2))


def first_lanes(builder: Builder, count: Any) -> Any:
    """A mask of so many lanes."""
    numbered = ir.Constant(WORDS, list(range(LANES)))
    return builder.icmp_signed("<", numbered, splat(builder, builder.trunc(count, _I32)))


def load_part(builder: Builder, address: Any, mask: Any) -> Any:
    """The words at an address where a mask is set, and zeros; nothing else is touched."""
    pointer = WORDS.as_pointer()
    function = declare(builder, "llvm.masked.load.v16i32.p0", WORDS, [pointer, _I32, _MASK, WORDS])
    return builder.call(function, [builder.inttoptr(address, pointer), _I32(2), mask, words(0)])


def pick(builder: Builder, first: Any, second: Any, places: list[int]) -> Any:
    """16 of the 32 words of two vectors."""
    return builder.shuffle_vector(first, second, ir.Constant(WORDS, places))


@intrinsic
def _part(_context, pairs, narrow, groups, scales, shifts, later):  # type: ignore[no-untyped-def]
    """A row's; as much is fetched so many bytes behind them."""

    def generate(context, builder, _signature, arguments):  # type: ignore[no-untyped-def]
        pairs, narrow, groups, scales, shifts, later = arguments

        def one_word(index: Any, left: Any) -> None:
            offset = builder.shl(index, _I64(6))
            place = builder.add(pairs, offset)
            both = (
                load(builder, place, WORDS) if left is None else load_part(builder, place, first_lanes(builder, left))
            )
            prefetch(builder, builder.add(place, later))
            store(builder, builder.shl(both, words(16)), builder.add(scales, offset))
            store(builder, builder.and_(both, words(0xFFFF0000)), builder.add(shifts, offset))

        def two_words(index: Any, left: Any) -> None:
            offset, halves = builder.shl(index, _I64(6)), []
            for half in range(2):
                place = builder.add(builder.add(pairs, builder.shl(offset, _I64(1))), _I64(4 * LANES * half))
                prefetch(builder, builder.add(place, later))
                if left is None:
                    halves.append(load(builder, place, WORDS))
                else:
                    count = builder.sub(builder.shl(left, _I64(1)), _I64(LANES * half))
                    halves.append(load_part(builder, place, first_lanes(builder, count)))
            store(builder, pick(builder, halves[0], halves[1], EVEN), builder.add(scales, offset))
            store(builder, pick(builder, halves[0], halves[1], ODD), builder.add(shifts, offset))

        whole, rest = builder.lshr(groups, _I64(4)), builder.and_(groups, _I64(LANES - 1))
        with builder.if_else(builder.icmp_signed("!=", narrow, _I64(0))) as branches:
            for branch, put in zip(branches, (one_word, two_words)):
                with branch:
                    with cgutils.for_range(builder, whole) as loop:
                        put(loop.index, None)
                    with builder.if_then(builder.icmp_signed(">", rest, _I64(0))):
                        put(whole, rest)
        return context.get_dummy_value()

    return types.void(*[types.int64] * 6), generate


@njit(**EXACT)
def pairs_line(groups):  # type: ignore[no-untyped-def]
    """Bytes of a line."""
    return (groups + LANES - 1 & -LANES) * 4


@njit(**EXACT)
def part_pairs(linear, at, spacing, groups, parts, target):  # type: ignore[no-untyped-def]
    """16 lines of scales, then 16 of shifts, of every `spacing`-th row from `at` on. `groups` are those of the lines:
    each of a row's own is so many `parts`."""
    apart()
    line, stride = pairs_line(groups), linear[Linear.SCALE_STRIDE]
    later = stride if spacing > 1 else TILE * stride  # the row that follows in the same stream
    for output in range(TILE):
        pairs = linear[Linear.SCALES] + (at + output * spacing) * stride
        scales, shifts = target + output * line, target + (TILE + output) * line
        _part(pairs, linear[Linear.NARROW], groups // parts, scales, shifts, later)
        if parts > 1:
            for place in (scales, shifts):
                numbers = floats(place)
                for i in range(groups - 1, 0, -1):
                    numbers[i] = numbers[i // parts]
                for i in range(groups, line >> 2):
                    numbers[i] = np.float32(0.0)
