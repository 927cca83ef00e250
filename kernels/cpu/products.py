"""Products of a few rows with row-major weights, and the order in which the rows are kept for them.

Without the tile unit rows are float32 in blocks of 8, 4, 3, 2 or 1 (vectors.py); with it, `columns` is not 0 and they
are bfloat16 in its order (tiles.py).
"""

from __future__ import annotations

import numpy as np
from numba import njit

from octavo.kernels.cpu.numbers import EXACT, apart, floats, get, item_size, lane, longs, put
from octavo.kernels.cpu.tiles import TILE, tile_products
from octavo.kernels.cpu.vectors import AHEAD, make_products

OUTPUTS = 4  # of a tile of vectors
_UNIT_BYTES = 65536  # of weights: about 4 us, long beside taking a unit, short beside a phase
_HALF = np.uint16(0)

_products_8x2 = make_products(8, 2, ahead=AHEAD)
_products_4x4 = make_products(4, 4, ahead=AHEAD)
_products_3x4 = make_products(3, 4, ahead=AHEAD)
_products_2x4 = make_products(2, 4, ahead=AHEAD)
_products_1x4 = make_products(1, 4, ahead=AHEAD)


@njit(**EXACT)
def unit_outputs(kind, size, parts):  # type: ignore[no-untyped-def]
    """Outputs of a unit of a product with rows of so many weights, of which `parts` are read for one output."""
    return max(TILE, _UNIT_BYTES // (parts * size * item_size(kind)) // TILE * TILE)


@njit(**EXACT)
def keep(kind, columns, base, size, row, first, block, index, value):  # type: ignore[no-untyped-def]
    """Puts element `index` of a row of `size` where the products look for it; the row's block begins at `first`."""
    if columns:
        pair = (index >> 5) * 16 + ((index & 31) >> 1)
        put(_HALF, base, (pair * columns + row) * 2 + (index & 1), value)
    else:
        place = first * size + (index & ~31) * block + (row - first) * 32
        floats(base)[place + lane(kind, index & 31)] = value


@njit(**EXACT)
def block_of(blocks, row):  # type: ignore[no-untyped-def]
    """The first row of a row's block."""
    first = 0
    while row >= first + longs(blocks)[first]:
        first += longs(blocks)[first]
    return first


@njit(**EXACT)
def _vector_tile(kind, rows, w, stride, x, size, y, y_stride):  # type: ignore[no-untyped-def]
    """Four outputs for a block of rows."""
    apart()
    if rows == 8:
        _products_8x2(kind, w, stride, x, size, y, y_stride)
        _products_8x2(kind, w + 2 * stride, stride, x, size, y + 8, y_stride)
    elif rows == 4:
        _products_4x4(kind, w, stride, x, size, y, y_stride)
    elif rows == 3:
        _products_3x4(kind, w, stride, x, size, y, y_stride)
    elif rows == 2:
        _products_2x4(kind, w, stride, x, size, y, y_stride)
    else:
        _products_1x4(kind, w, stride, x, size, y, y_stride)


@njit(**EXACT)
def tile(kind, columns, rows, blocks, w, x, size, y, y_stride, sums):  # type: ignore[no-untyped-def]
    """y [rows, 16] float32, `y_stride` bytes from row to row, of 16 adjacent rows of weights. `sums`: float32 [16, 16]
    of this thread's own."""
    apart()
    stride = size * item_size(kind)
    if columns:
        tile_products(w, stride, x, columns, size, sums)
        source = floats(sums)
        for row in range(rows):
            target = floats(y + row * y_stride)
            for output in range(TILE):
                target[output] = source[output * columns + row]
        return
    row = 0
    while row < rows:
        block = longs(blocks)[row]
        for output in range(0, TILE, OUTPUTS):
            place = y + row * y_stride + output * 4
            _vector_tile(kind, block, w + output * stride, stride, x + row * size * 4, size, place, y_stride)
        row += block


@njit(**EXACT)
def product(kind, columns, rows, blocks, w, bias, x, size, y, outputs, first, last, sums):  # type: ignore[no-untyped-def]
    """Outputs [first, last) of y [rows, outputs] = x w^T + bias. The last tile may overlap the one before it, which
    writes the same. `sums`: float32 [2, 16, 16] of this thread's own."""
    apart()
    stride = size * item_size(kind)
    for output in range(first, last, TILE):
        at = min(output, outputs - TILE)
        if bias == 0:
            tile(kind, columns, rows, blocks, w + at * stride, x, size, y + at * 4, outputs * 4, sums)
            continue
        own = sums + TILE * TILE * 4
        tile(kind, columns, rows, blocks, w + at * stride, x, size, own, TILE * 4, sums)
        for row in range(rows):
            source, target = floats(own + row * TILE * 4), floats(y + (row * outputs + at) * 4)
            for step in range(TILE):
                target[step] = source[step] + get(kind, bias, at + step)
