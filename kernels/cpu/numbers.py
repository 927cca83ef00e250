"""Single numbers: how they are stored, elementary functions in float32, and memory shared between threads."""

from __future__ import annotations

import platform
import sys
from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

EXACT = {"nogil": True, "error_model": "numpy", "fastmath": {"contract"}}
FAST = {"nogil": True, "error_model": "numpy", "fastmath": {"contract", "reassoc", "nsz", "arcp"}}  # NaN stays NaN

_I16, _I32, _I64 = ir.IntType(16), ir.IntType(32), ir.IntType(64)
_F32 = ir.FloatType()


def _pointer_to(element: types.Type) -> Any:
    @intrinsic
    def pointer(_context, address):  # type: ignore[no-untyped-def]
        """An address as a pointer that can be indexed."""

        def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
            return builder.inttoptr(arguments[0], context.get_value_type(signature.return_type))

        return types.CPointer(element)(types.int64), generate

    return pointer


floats = _pointer_to(types.float32)
longs = _pointer_to(types.int64)
ints = _pointer_to(types.int32)
shorts = _pointer_to(types.uint16)
unsigned = _pointer_to(types.uint32)


@intrinsic
def bits(_context, value):  # type: ignore[no-untyped-def]
    """float32 as the uint32 with the same bits."""

    def generate(_context, builder, _signature, arguments):  # type: ignore[no-untyped-def]
        return builder.bitcast(arguments[0], _I32)

    return types.uint32(types.float32), generate


@intrinsic
def from_bits(_context, value):  # type: ignore[no-untyped-def]
    """uint32 as the float32 with the same bits."""

    def generate(_context, builder, _signature, arguments):  # type: ignore[no-untyped-def]
        return builder.bitcast(arguments[0], _F32)

    return types.float32(types.uint32), generate


@intrinsic
def put(_context, kind, address, index, value):  # type: ignore[no-untyped-def]
    """Stores a float32 as the index-th number of `kind` at an address; to bfloat16 rounded to nearest, ties to even."""

    def generate(context, builder, _signature, arguments):  # type: ignore[no-untyped-def]
        _, address, index, value = arguments
        if kind == types.uint16:
            word = builder.bitcast(value, _I32)
            tie = builder.and_(builder.lshr(word, _I32(16)), _I32(1))
            rounded = builder.lshr(builder.add(word, builder.add(tie, _I32(0x7FFF))), _I32(16))
            is_nan = builder.fcmp_unordered("uno", value, value)
            value = builder.trunc(builder.select(is_nan, _I32(0x7FC0), rounded), _I16)
        size = 2 if kind == types.uint16 else 4
        place = builder.add(address, builder.mul(index, _I64(size)))
        builder.store(value, builder.inttoptr(place, value.type.as_pointer()), align=size)
        return context.get_dummy_value()

    if kind not in (types.uint16, types.float32):
        return None
    return types.void(kind, types.int64, types.int64, types.float32), generate


@intrinsic
def get(_context, kind, address, index):  # type: ignore[no-untyped-def]
    """The index-th number of `kind` at an address, as float32."""

    def generate(_context, builder, _signature, arguments):  # type: ignore[no-untyped-def]
        _, address, index = arguments
        if kind != types.uint16:
            place = builder.add(address, builder.mul(index, _I64(4)))
            return builder.load(builder.inttoptr(place, _F32.as_pointer()))
        place = builder.add(address, builder.mul(index, _I64(2)))
        word = builder.zext(builder.load(builder.inttoptr(place, _I16.as_pointer())), _I32)
        return builder.bitcast(builder.shl(word, _I32(16)), _F32)

    if kind not in (types.uint16, types.float32):
        return None
    return types.float32(kind, types.int64, types.int64), generate


@intrinsic
def lane(_context, kind, index):  # type: ignore[no-untyped-def]
    """Where an element stands in its block of 32: as stored, or for bfloat16 16 even ones, then 16 odd ones."""

    def generate(_context, builder, _signature, arguments):  # type: ignore[no-untyped-def]
        index = arguments[1]
        if kind != types.uint16:
            return index
        block = builder.and_(index, _I64(-32))
        odd = builder.shl(builder.and_(index, _I64(1)), _I64(4))
        return builder.or_(builder.or_(block, odd), builder.and_(builder.lshr(index, _I64(1)), _I64(15)))

    return types.int64(kind, types.int64), generate


@njit(**EXACT)
def parted(index):  # type: ignore[no-untyped-def]
    """Where an element stands in a block of 32 that is kept as 16 even ones, then 16 odd ones."""
    return (index >> 1) + ((index & 1) << 4)


@intrinsic
def item_size(_context, kind):  # type: ignore[no-untyped-def]
    """Bytes of a stored number."""

    def generate(_context, _builder, _signature, _arguments):  # type: ignore[no-untyped-def]
        return _I64(2 if kind == types.uint16 else 4)

    return types.int64(kind), generate


@intrinsic
def atomic_add(_context, address, value):  # type: ignore[no-untyped-def]
    """Adds to an int64 that other threads see and returns what it was."""

    def generate(_context, builder, _signature, arguments):  # type: ignore[no-untyped-def]
        return builder.atomic_rmw("add", builder.inttoptr(arguments[0], _I64.as_pointer()), arguments[1], "seq_cst")

    return types.int64(types.int64, types.int64), generate


@intrinsic
def atomic_load(_context, address):  # type: ignore[no-untyped-def]
    """An int64 that other threads write."""

    def generate(_context, builder, _signature, arguments):  # type: ignore[no-untyped-def]
        return builder.load_atomic(builder.inttoptr(arguments[0], _I64.as_pointer()), "seq_cst", 8)

    return types.int64(types.int64), generate


@intrinsic
def atomic_store(_context, address, value):  # type: ignore[no-untyped-def]
    """Writes an int64 that other threads read."""

    def generate(context, builder, _signature, arguments):  # type: ignore[no-untyped-def]
        builder.store_atomic(arguments[1], builder.inttoptr(arguments[0], _I64.as_pointer()), "seq_cst", 8)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), generate


@intrinsic
def apart(_context):  # type: ignore[no-untyped-def]
    """Keeps the function that says it from being copied into its callers: machine code is made a third as long."""

    def generate(context, builder, _signature, _arguments):  # type: ignore[no-untyped-def]
        builder.function.attributes.add("noinline")
        return context.get_dummy_value()

    return types.void(), generate


@intrinsic
def pause(_context):  # type: ignore[no-untyped-def]
    """Says that this thread only waits for another one."""

    def generate(context, builder, _signature, _arguments):  # type: ignore[no-untyped-def]
        if platform.machine().lower() in ("x86_64", "amd64"):
            builder.call(_external(builder, "llvm.x86.sse2.pause", ir.VoidType()), [])
        return context.get_dummy_value()

    return types.void(), generate


@intrinsic
def give_way(_context):  # type: ignore[no-untyped-def]
    """Lets another thread have the processor: the one waited for may be queued behind this one."""

    def generate(context, builder, _signature, _arguments):  # type: ignore[no-untyped-def]
        builder.call(_external(builder, "SwitchToThread" if sys.platform == "win32" else "sched_yield", _I32), [])
        return context.get_dummy_value()

    return types.void(), generate


def _external(builder: Any, name: str, result: ir.Type) -> Any:
    module = builder.module
    return module.globals.get(name) or ir.Function(module, ir.FunctionType(result, []), name)


_LOW, _HIGH = np.float32(-87.0), np.float32(88.0)
_LOG2E = np.float32(1.44269504088896341)
_LN2_HIGH, _LN2_LOW = np.float32(0.693359375), np.float32(-2.12194440e-4)
_E0, _E1, _E2 = np.float32(1.9875691500e-4), np.float32(1.3981999507e-3), np.float32(8.3334519073e-3)
_E3, _E4, _E5 = np.float32(4.1665795894e-2), np.float32(1.6666665459e-1), np.float32(5.0000001201e-1)
_HALF, _ONE, _TWO = np.float32(0.5), np.float32(1.0), np.float32(2.0)


@njit(**EXACT)
def exp(x: float) -> float:
    """e^x to 2 units in the last place: x = k ln 2 + r, and Cephes' polynomial for e^r (S. Moshier, expf). At least
    e^-87; NaN stays NaN."""
    y = x if x > _LOW else _LOW
    y = y if y < _HIGH else _HIGH
    k = np.floor(y * _LOG2E + _HALF)
    r = (y - k * _LN2_HIGH) - k * _LN2_LOW
    p = ((((_E0 * r + _E1) * r + _E2) * r + _E3) * r + _E4) * r + _E5
    power = from_bits(np.uint32((np.int32(k) + np.int32(127)) << np.int32(23)))
    result = ((p * r) * r + r + _ONE) * power
    return result if x == x else x


@njit(**EXACT)
def tanh(x: float) -> float:
    """Absolute error under 2e-7."""
    e = exp(-_TWO * abs(x))
    size = (_ONE - e) / (_ONE + e)
    return size if x >= np.float32(0.0) else -size


_GELU_A, _GELU_B = np.float32(0.7978845608028654), np.float32(0.044715)


@njit(**EXACT)
def silu(x: float) -> float:
    """x / (1 + e^-x)."""
    return x / (_ONE + exp(-x))


@njit(**EXACT)
def gelu(x: float) -> float:
    """GELU by tanh (Hendrycks and Gimpel, arXiv 1606.08415)."""
    return _HALF * x * (_ONE + tanh(_GELU_A * (x + _GELU_B * x * x * x)))


@njit(**EXACT)
def gate(act, gates, ups, count):  # type: ignore[no-untyped-def]
    """Multiplies float32 numbers at `ups` by SiLU (`act` 0) or GELU of those at `gates`, which get the results. A loop
    for each: one with a choice in it is not made of vectors, and takes seventeen times as long."""
    apart()
    x, y = floats(gates), floats(ups)
    if act == 0:
        for i in range(count):
            x[i] = silu(x[i]) * y[i]
    else:
        for i in range(count):
            x[i] = gelu(x[i]) * y[i]
