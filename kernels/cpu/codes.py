"""Vector loops over weights in 8 or 4 bits, which become float32 numbers in registers on their way to a product.

int8: 16 bytes are widened to a vector at a time, in natural order; a row's scale multiplies its sums at the end. int4:
32 codes are 16 bytes, widened to 16 words whose lowest four bits are the even elements and the next four the odd ones.
A group's sixteen numbers, code * scale + shift, are made once a block and looked up where the processor can do that in
one instruction (AVX-512), else every code is multiplied by itself; both give the same bits.

All arithmetic is float32. Sums do not depend on how many rows are computed together.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import binding, ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from octavo.kernels.cpu.fields import Form
from octavo.kernels.cpu.vectors import (
    BLOCK,
    FLOATS,
    LANES,
    WORDS,
    declare,
    fma,
    horizontal_sum,
    load,
    prefetch,
    splat,
    store,
)

_I8, _I32, _I64 = ir.IntType(8), ir.IntType(32), ir.IntType(64)
_F32 = ir.FloatType()
_BYTES = ir.VectorType(_I8, LANES)

Builder = Any
Pair = tuple[Any, Any]


def words(value: int) -> ir.Constant:
    """A vector of 16 times the same integer."""
    return ir.Constant(WORDS, [value] * LANES)


def _int8_block(builder: Builder, address: Any) -> Pair:
    """32 signed bytes as two vectors in natural order."""
    halves = []
    for half in range(2):
        narrow = load(builder, builder.add(address, _I64(LANES * half)), _BYTES)
        halves.append(builder.sitofp(builder.sext(narrow, WORDS), FLOATS))
    return halves[0], halves[1]


def int4_block(builder: Builder, address: Any, scale: Any, shift: Any) -> Pair:
    """32 codes of a group as two vectors, even elements and odd ones."""
    low = builder.zext(load(builder, address, _BYTES), WORDS)
    high = builder.lshr(low, words(4))
    if _looks_up():
        numbers = fma(builder, ir.Constant(FLOATS, [float(code) for code in range(LANES)]), scale, shift)
        function = declare(builder, "llvm.x86.avx512.permvar.sf.512", FLOATS, [FLOATS, WORDS])
        return builder.call(function, [numbers, low]), builder.call(function, [numbers, high])
    codes = (builder.sitofp(builder.and_(part, words(15)), FLOATS) for part in (low, high))
    even, odd = (fma(builder, code, scale, shift) for code in codes)
    return even, odd


def _looks_up() -> bool:
    return bool(binding.get_host_cpu_features().get("avx512f"))


class Pairs:
    """Scale and shift of a row's groups, bfloat16 or float32: of one word's halves, or of two words."""

    def __init__(self, builder: Builder, narrow: Any) -> None:
        self._builder = builder
        is_narrow = builder.icmp_signed("!=", narrow, _I64(0))
        self._bits = builder.select(is_narrow, _I64(2), _I64(3))  # log2 of a pair's bytes
        self._second = builder.select(is_narrow, _I64(0), _I64(4))
        self._moved = builder.select(is_narrow, words(16), words(0))
        self._kept = builder.select(is_narrow, words(0xFFFF0000), words(0xFFFFFFFF))

    def offset(self, group: Any) -> Any:
        """Bytes from a row's first pair to that of a group."""
        return self._builder.shl(group, self._bits)

    def read(self, address: Any) -> Pair:
        """Both, spread over a vector."""
        builder = self._builder
        first = splat(builder, load(builder, address, _I32))
        second = splat(builder, load(builder, builder.add(address, self._second), _I32))
        scale, shift = builder.shl(first, self._moved), builder.and_(second, self._kept)
        return builder.bitcast(scale, FLOATS), builder.bitcast(shift, FLOATS)


def make_code_products(form: int, rows: int, outputs: int, *, ahead: int) -> Callable[..., None]:
    """`(w, w_stride, scales, s_stride, group_bits, narrow, x, n, y, y_stride)`: as `vectors.make_products`, for weights
    in a form of Form with what Linear says of them."""
    size = BLOCK if form == Form.INT8 else BLOCK // 2
    grouped = form != Form.INT8

    @intrinsic
    def products(_context, w, w_stride, scales, s_stride, group_bits, narrow, x, n, y, y_stride):  # type: ignore[no-untyped-def]
        def generate(context, builder, _signature, arguments):  # type: ignore[no-untyped-def]
            w, w_stride, scales, s_stride, group_bits, narrow, x, n, y, y_stride = arguments
            zero = ir.Constant(FLOATS, [0.0] * LANES)
            sums = [[cgutils.alloca_once_value(builder, zero) for _ in range(outputs)] for _ in range(rows)]
            starts = [builder.add(w, builder.mul(w_stride, _I64(o))) for o in range(outputs)]
            lines = [builder.add(scales, builder.mul(s_stride, _I64(o))) for o in range(outputs)]
            pairs = Pairs(builder, narrow) if grouped else None
            with cgutils.for_range(builder, builder.lshr(n, _I64(5))) as loop:
                offset = builder.mul(loop.index, _I64(size))
                weights = []
                if pairs is not None:
                    place = pairs.offset(builder.lshr(loop.index, group_bits))
                for start, line in zip(starts, lines):
                    address = builder.add(start, offset)
                    if pairs is None:
                        weights.append(_int8_block(builder, address))
                    else:
                        weights.append(int4_block(builder, address, *pairs.read(builder.add(line, place))))
                    prefetch(builder, builder.add(address, _I64(ahead)))
                base = builder.add(x, builder.mul(loop.index, _I64(4 * BLOCK * rows)))
                for r in range(rows):
                    for half in range(2):
                        value = load(builder, builder.add(base, _I64(4 * (BLOCK * r + LANES * half))))
                        for o in range(outputs):
                            total = fma(builder, weights[o][half], value, builder.load(sums[r][o]))
                            builder.store(total, sums[r][o])
            for o in range(outputs):
                scale = None if grouped else load(builder, lines[o], _F32)
                for r in range(rows):
                    total = horizontal_sum(builder, builder.load(sums[r][o]))
                    place = builder.add(y, builder.add(builder.mul(y_stride, _I64(r)), _I64(4 * o)))
                    store(builder, total if scale is None else builder.fmul(total, scale), place)
            return context.get_dummy_value()

        return types.void(*[types.int64] * 10), generate

    return products
