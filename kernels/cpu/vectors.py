"""Vector loops that a compiler does not find by itself, written as LLVM code.

`kind` says how numbers are stored in memory: a uint16 value means bfloat16, a float32 value float32. All arithmetic is
float32 in vectors of 16. Two adjacent bfloat16 numbers are one 32-bit word: shifted left it is the even one, masked the
odd one, so 32 numbers become two vectors with two instructions. What they are multiplied with is therefore kept in
blocks of 32 in the same order: 16 even elements, then 16 odd ones (`lane` in numbers.py). float32 needs no such order.

Addresses are int64. A product of rows with rows reads x in blocks [n / 32][rows][32], so that all rows of a block are
at fixed distances from one pointer. Sums do not depend on how many rows are computed together.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

LANES = 16
BLOCK = 2 * LANES  # elements of a row that are handled at once
# Bytes between a weight and the one fetched ahead where rows are read one after the other. Measured on one core with
# 4 GB of weights a second to go: without, 11 GB/s at one row and 6 at eight; 1 KiB ahead 12 and 7, 4.5 to 9 KiB ahead
# 18 and 11.
AHEAD = 6144

_I8, _I32, _I64 = ir.IntType(8), ir.IntType(32), ir.IntType(64)
_F32 = ir.FloatType()
WORDS = ir.VectorType(_I32, LANES)
FLOATS = ir.VectorType(_F32, LANES)

Builder = Any


def declare(builder: Builder, name: str, result: ir.Type, arguments: Sequence[ir.Type]) -> Any:
    module = builder.module
    return module.globals.get(name) or ir.Function(module, ir.FunctionType(result, list(arguments)), name)


def fma(builder: Builder, a: Any, b: Any, c: Any) -> Any:
    return builder.call(declare(builder, "llvm.fma.v16f32", FLOATS, [FLOATS] * 3), [a, b, c])


def horizontal_sum(builder: Builder, vector: Any) -> Any:
    function = declare(builder, "llvm.vector.reduce.fadd.v16f32", _F32, [_F32, FLOATS])
    return builder.call(function, [ir.Constant(_F32, 0.0), vector], fastmath=("reassoc",))


def horizontal_sums(builder: Builder, vectors: Sequence[Any]) -> Any:
    """The sums of four vectors as one of four numbers, each to the bit that of `horizontal_sum`: halves are added to
    halves, but of several vectors at once."""

    def joined(one: Any, other: Any, lanes: Sequence[int]) -> Any:
        return builder.shuffle_vector(one, other, ir.Constant(ir.VectorType(_I32, len(lanes)), list(lanes)))

    def folded(one: Any, other: Any, width: int) -> Any:
        lows = [lane for lane in range(2 * LANES) if lane // width % 2 == 0]
        return builder.fadd(joined(one, other, lows), joined(one, other, [lane + width for lane in lows]))

    a, b, c, d = vectors
    quarters = folded(folded(a, b, 8), folded(c, d, 8), 4)
    for width in (2, 1):
        quarters = builder.fadd(quarters, joined(quarters, quarters, [lane ^ width for lane in range(LANES)]))
    return joined(quarters, quarters, range(0, LANES, 4))


def prefetch(builder: Builder, address: Any) -> None:
    pointer = _I8.as_pointer()
    function = declare(builder, "llvm.prefetch.p0", ir.VoidType(), [pointer, _I32, _I32, _I32])
    builder.call(function, [builder.inttoptr(address, pointer), _I32(0), _I32(3), _I32(1)])  # read, keep, data


def load(builder: Builder, address: Any, kind: ir.Type = FLOATS) -> Any:
    return builder.load(builder.inttoptr(address, kind.as_pointer()), align=2)


def store(builder: Builder, value: Any, address: Any) -> None:
    builder.store(value, builder.inttoptr(address, value.type.as_pointer()), align=4)


def splat(builder: Builder, value: Any) -> Any:
    """A vector of 16 times the same number."""
    kind = ir.VectorType(value.type, LANES)
    vector = builder.insert_element(ir.Constant(kind, ir.Undefined), value, _I32(0))
    return builder.shuffle_vector(vector, ir.Constant(kind, ir.Undefined), ir.Constant(WORDS, [0] * LANES))


def _item_size(kind: types.Type) -> int:
    return 2 if kind == types.uint16 else 4


def _load_block(builder: Builder, kind: types.Type, address: Any) -> tuple[Any, Any]:
    """32 stored numbers as two vectors, in the order of `lane`."""
    if kind == types.uint16:
        words = load(builder, address, WORDS)
        even = builder.shl(words, ir.Constant(WORDS, [16] * LANES))
        odd = builder.and_(words, ir.Constant(WORDS, [0xFFFF0000] * LANES))
        return builder.bitcast(even, FLOATS), builder.bitcast(odd, FLOATS)
    return load(builder, address), load(builder, builder.add(address, _I64(4 * LANES)))


def make_products(rows: int, outputs: int, *, ahead: int = 0) -> Callable[..., None]:
    """`(kind, w, w_stride, x, n, y, y_stride)`: y[r, o] = sum over n of x[r] * w[o] for a tile of rows x outputs.

    w is stored as `kind` with `w_stride` bytes from row to row, x float32 in blocks, y float32 with `y_stride` bytes
    from row to row and adjacent outputs; n is a multiple of 32. With `ahead`, weights so far on are fetched meanwhile.
    """

    @intrinsic
    def products(_context, kind, w, w_stride, x, n, y, y_stride):  # type: ignore[no-untyped-def]
        def generate(context, builder, _signature, arguments):  # type: ignore[no-untyped-def]
            _, w, w_stride, x, n, y, y_stride = arguments
            zero = ir.Constant(FLOATS, [0.0] * LANES)
            sums = [[cgutils.alloca_once_value(builder, zero) for _ in range(outputs)] for _ in range(rows)]
            size = BLOCK * _item_size(kind)
            starts = [builder.add(w, builder.mul(w_stride, _I64(o))) for o in range(outputs)]
            with cgutils.for_range(builder, builder.lshr(n, _I64(5))) as loop:
                offset = builder.mul(loop.index, _I64(size))
                weights = []
                for start in starts:
                    address = builder.add(start, offset)
                    weights.append(_load_block(builder, kind, address))
                    if ahead:
                        for line in range(0, size, 64):
                            prefetch(builder, builder.add(address, _I64(ahead + line)))
                base = builder.add(x, builder.mul(loop.index, _I64(4 * BLOCK * rows)))
                for r in range(rows):
                    for half in range(2):
                        value = load(builder, builder.add(base, _I64(4 * (BLOCK * r + LANES * half))))
                        for o in range(outputs):
                            total = fma(builder, weights[o][half], value, builder.load(sums[r][o]))
                            builder.store(total, sums[r][o])
            for r in range(rows):
                line = builder.add(y, builder.mul(y_stride, _I64(r)))
                totals = [builder.load(total) for total in sums[r]]
                if outputs == 4:
                    store(builder, horizontal_sums(builder, totals), line)
                    continue
                for o, total in enumerate(totals):
                    store(builder, horizontal_sum(builder, total), builder.add(line, _I64(4 * o)))
            return context.get_dummy_value()

        if kind not in (types.uint16, types.float32):
            return None
        integer = types.int64
        return types.void(kind, integer, integer, integer, integer, integer, integer), generate

    return products


def make_mixture(heads: int) -> Callable[..., None]:
    """`(kind, v, v_stride, keys, p, p_stride, y, n)`: y[h] += sum over keys of p[h, key] * v[key] for some heads.

    v is stored as `kind`; p float32; y float32 [heads, n] whose channels stand in the order of `lane`. Strides are in
    bytes.
    """

    @intrinsic
    def mixture(_context, kind, v, v_stride, keys, p, p_stride, y, n):  # type: ignore[no-untyped-def]
        def generate(context, builder, _signature, arguments):  # type: ignore[no-untyped-def]
            _, v, v_stride, keys, p, p_stride, y, n = arguments
            with cgutils.for_range(builder, builder.lshr(n, _I64(5))) as blocks:
                address = builder.add(v, builder.mul(blocks.index, _I64(BLOCK * _item_size(kind))))
                target = builder.add(y, builder.mul(blocks.index, _I64(4 * BLOCK)))
                rows = [builder.add(target, builder.mul(n, _I64(4 * h))) for h in range(heads)]
                places = [builder.add(row, _I64(4 * LANES * half)) for row in rows for half in range(2)]
                sums = [cgutils.alloca_once(builder, FLOATS) for _ in places]
                for place, total in zip(places, sums):
                    builder.store(load(builder, place), total)
                with cgutils.for_range(builder, keys) as loop:
                    values = _load_block(builder, kind, builder.add(address, builder.mul(loop.index, v_stride)))
                    weight = builder.add(p, builder.mul(loop.index, _I64(4)))
                    for h in range(heads):
                        share = load(builder, builder.add(weight, builder.mul(p_stride, _I64(h))), _F32)
                        spread = splat(builder, share)
                        for half in range(2):
                            total = sums[2 * h + half]
                            builder.store(fma(builder, values[half], spread, builder.load(total)), total)
                for place, total in zip(places, sums):
                    store(builder, builder.load(total), place)
            return context.get_dummy_value()

        if kind not in (types.uint16, types.float32):
            return None
        integer = types.int64
        return types.void(kind, *[integer] * 7), generate

    return mixture


@intrinsic
def fetch(_context, address, size):  # type: ignore[no-untyped-def]
    """Begins to bring so many bytes near, which are read soon but not in an order that the processor foresees."""

    def generate(context, builder, _signature, arguments):  # type: ignore[no-untyped-def]
        address, size = arguments
        with cgutils.for_range(builder, builder.lshr(builder.add(size, _I64(63)), _I64(6))) as loop:
            prefetch(builder, builder.add(address, builder.shl(loop.index, _I64(6))))
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), generate


@intrinsic
def largest(_context, x, n):  # type: ignore[no-untyped-def]
    """The largest of n float32 at an address, n a multiple of 16; NaN is passed over."""

    def generate(_context, builder, _signature, arguments):  # type: ignore[no-untyped-def]
        x, n = arguments
        best = cgutils.alloca_once_value(builder, ir.Constant(FLOATS, [float("-inf")] * LANES))
        with cgutils.for_range(builder, builder.lshr(n, _I64(4))) as loop:
            value = load(builder, builder.add(x, builder.mul(loop.index, _I64(4 * LANES))))
            so_far = builder.load(best)
            builder.store(builder.select(builder.fcmp_ordered(">", value, so_far), value, so_far), best)
        function = declare(builder, "llvm.vector.reduce.fmax.v16f32", _F32, [FLOATS])
        return builder.call(function, [builder.load(best)])

    return types.float32(types.int64, types.int64), generate
