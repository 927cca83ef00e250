"""Weights in 8 or 4 bits as bfloat16, 16 rows at a time, for the library's products with prompts.

An int8 code is exact in bfloat16, and its row's scale is to multiply the sums. An int4 code becomes
code * scale + shift, rounded to nearest, as it is where torch multiplies 16-bit activations by such weights.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from octavo.kernels.cpu.codes import Builder, Pairs, int4_block, words
from octavo.kernels.cpu.fields import Form
from octavo.kernels.cpu.tiles import TILE
from octavo.kernels.cpu.vectors import BLOCK, FLOATS, LANES, WORDS, load, prefetch, store

_I64 = ir.IntType(64)
_HALVES = ir.VectorType(ir.IntType(16), LANES)


def _int8_words(builder: Builder, address: Any) -> Any:
    """32 signed bytes as bfloat16: 16 words of two neighbours."""
    narrow = builder.sext(load(builder, address, _HALVES), WORDS)
    low = builder.ashr(builder.shl(narrow, words(24)), words(24))
    return _paired(builder, builder.sitofp(low, FLOATS), builder.sitofp(builder.ashr(narrow, words(8)), FLOATS), 0)


def _paired(builder: Builder, even: Any, odd: Any, half: int) -> Any:
    """The upper halves of float32 numbers side by side, after the addition of what rounds them."""
    first, second = builder.bitcast(even, WORDS), builder.bitcast(odd, WORDS)
    if half:
        first, second = builder.add(first, words(half)), builder.add(second, words(half))
    return builder.or_(builder.lshr(first, words(16)), builder.and_(second, words(0xFFFF0000)))


def make_expansion(form: int, ahead: int) -> Callable[..., None]:
    """`(w, w_stride, scales, s_stride, group_bits, narrow, first, count, target)`: bfloat16 [16, 32 count] of `count`
    blocks of 16 rows from block `first` on; see `codes.make_code_products`."""
    size = BLOCK if form == Form.INT8 else BLOCK // 2

    @intrinsic
    def expansion(_context, w, w_stride, scales, s_stride, group_bits, narrow, first, count, target):  # type: ignore[no-untyped-def]
        def generate(context, builder, _signature, arguments):  # type: ignore[no-untyped-def]
            w, w_stride, scales, s_stride, group_bits, narrow, first, count, target = arguments
            pairs = Pairs(builder, narrow) if form == Form.INT4 else None
            with cgutils.for_range(builder, _I64(TILE)) as rows:
                start = builder.add(w, builder.mul(w_stride, rows.index))
                line = builder.add(scales, builder.mul(s_stride, rows.index))
                written = builder.add(target, builder.shl(builder.mul(count, rows.index), _I64(6)))
                with cgutils.for_range(builder, count) as loop:
                    block = builder.add(first, loop.index)
                    address = builder.add(start, builder.mul(block, _I64(size)))
                    if pairs is None:
                        made = _int8_words(builder, address)
                    else:
                        place = builder.add(line, pairs.offset(builder.lshr(block, group_bits)))
                        made = _paired(builder, *int4_block(builder, address, *pairs.read(place)), half=0x8000)
                    prefetch(builder, builder.add(address, _I64(ahead)))
                    store(builder, made, builder.add(written, builder.shl(loop.index, _I64(6))))
            return context.get_dummy_value()

        return types.void(*[types.int64] * 9), generate

    return expansion
