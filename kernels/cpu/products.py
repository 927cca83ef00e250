"""Products of a few rows with row-major weights, and the order in which the rows are kept for them.

Which one it is depends on the weight (see fields.Linear) and the number of rows, and is called its way: NATURAL and
PARTED rows are float32 in blocks of 8, 4, 3, 2 or 1 (vectors.py, codes.py); WHOLE ones are float32, one after the
other, until a thread makes whole numbers of them for codes (whole.py, code_tiles.py), and so is a single one for 4-bit
codes, BYTES (code_rows.py); any larger number is the columns of the tile unit, and rows are bfloat16 in its order
(tiles.py).
"""

from __future__ import annotations

import numpy as np
from numba import njit

from octavo.kernels.cpu.code_rows import code_row, split_bytes
from octavo.kernels.cpu.code_tiles import code_tile
from octavo.kernels.cpu.codes import make_code_products
from octavo.kernels.cpu.expansion import make_expansion
from octavo.kernels.cpu.fields import BYTES, PARTED, WHOLE, Form, Linear, Step
from octavo.kernels.cpu.numbers import EXACT, apart, floats, get, longs, parted, put
from octavo.kernels.cpu.tiles import TILE, tile_products
from octavo.kernels.cpu.vectors import AHEAD, make_products
from octavo.kernels.cpu.whole import split_row

OUTPUTS = 4  # of a tile of vectors
_UNIT_BYTES = 65536  # of plain weights: about 4 us, long beside taking a unit, short beside a phase
_NEAR = 1536  # bytes between a weight and the one fetched ahead where sixteen rows are read side by side
_HALF = np.uint16(0)

_products_8x2 = make_products(8, 2, ahead=_NEAR)
_products_4x4 = make_products(4, 4, ahead=_NEAR)
_products_3x4 = make_products(3, 4, ahead=_NEAR)
_products_2x4 = make_products(2, 4, ahead=_NEAR)
_products_1x4 = make_products(1, 4, ahead=_NEAR)
_int8_8x2 = make_code_products(Form.INT8, 8, 2, ahead=AHEAD)
_int8_4x4 = make_code_products(Form.INT8, 4, 4, ahead=AHEAD)
_int8_3x4 = make_code_products(Form.INT8, 3, 4, ahead=AHEAD)
_int8_2x4 = make_code_products(Form.INT8, 2, 4, ahead=AHEAD)
_int8_1x4 = make_code_products(Form.INT8, 1, 4, ahead=AHEAD)
_int4_8x2 = make_code_products(Form.INT4, 8, 2, ahead=AHEAD)
_int4_4x4 = make_code_products(Form.INT4, 4, 4, ahead=AHEAD)
_int4_3x4 = make_code_products(Form.INT4, 3, 4, ahead=AHEAD)
_int4_2x4 = make_code_products(Form.INT4, 2, 4, ahead=AHEAD)
_int4_1x4 = make_code_products(Form.INT4, 1, 4, ahead=AHEAD)
_expand_int8 = make_expansion(Form.INT8, AHEAD)
_expand_int4 = make_expansion(Form.INT4, AHEAD)


@njit(**EXACT)
def unit_outputs(linear, size, parts):  # type: ignore[no-untyped-def]
    """Outputs of a unit of a product with rows of so many weights, of which `parts` are read for one output."""
    line = max(linear[Linear.STRIDE], 2 * size)  # fewer bits are not less arithmetic
    return max(TILE, _UNIT_BYTES // (parts * line) // TILE * TILE)


@njit(**EXACT)
def way_of(step, linear):  # type: ignore[no-untyped-def]
    """How rows are kept for a weight."""
    form = linear[Linear.FORM]
    if form == Form.PLAIN:
        return step[Step.COLUMNS] if step[Step.COLUMNS] else linear[Linear.ORDER]
    if not step[Step.WHOLE]:
        return linear[Linear.ORDER]
    if form == Form.INT8 or step[Step.COLUMNS]:
        return WHOLE
    return BYTES if step[Step.ROWS] == 1 else linear[Linear.ORDER]


@njit(**EXACT)
def is_whole(way):  # type: ignore[no-untyped-def]
    """Whether each thread makes whole numbers of the rows."""
    return WHOLE <= way <= BYTES


@njit(**EXACT)
def make_whole(way, linear, room, size, row, source):  # type: ignore[no-untyped-def]
    """Keeps float32 [size] at an address as a row's whole numbers."""
    if way == WHOLE:
        split_row(room, size, row, source)
    else:
        split_bytes(linear, room, size, source)


@njit(**EXACT)
def keep(way, base, size, row, first, block, index, value):  # type: ignore[no-untyped-def]
    """Puts element `index` of a row of `size` where the products look for it; the row's block begins at `first`."""
    if is_whole(way):
        floats(base)[row * size + index] = value
    elif way > PARTED:
        pair = (index >> 5) * 16 + ((index & 31) >> 1)
        put(_HALF, base, (pair * way + row) * 2 + (index & 1), value)
    else:
        place = first * size + (index & ~31) * block + (row - first) * 32
        floats(base)[place + (parted(index & 31) if way == PARTED else index & 31)] = value


@njit(**EXACT)
def keep_tile(way, base, size, row, first, block, at, spacing, values):  # type: ignore[no-untyped-def]
    """As `keep`, 16 float32 at an address as every `spacing`-th element from `at` on."""
    x = floats(values)
    if is_whole(way) and spacing == 1:
        y = floats(base + (row * size + at) * 4)
        for i in range(TILE):
            y[i] = x[i]
        return
    for i in range(TILE):
        keep(way, base, size, row, first, block, at + i * spacing, x[i])


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
def _int8_tile(rows, w, stride, scales, scale_line, x, size, y, y_stride):  # type: ignore[no-untyped-def]
    """As `_vector_tile`."""
    apart()
    if rows == 8:
        _int8_8x2(w, stride, scales, scale_line, 0, 0, x, size, y, y_stride)
        _int8_8x2(w + 2 * stride, stride, scales + 2 * scale_line, scale_line, 0, 0, x, size, y + 8, y_stride)
    elif rows == 4:
        _int8_4x4(w, stride, scales, scale_line, 0, 0, x, size, y, y_stride)
    elif rows == 3:
        _int8_3x4(w, stride, scales, scale_line, 0, 0, x, size, y, y_stride)
    elif rows == 2:
        _int8_2x4(w, stride, scales, scale_line, 0, 0, x, size, y, y_stride)
    else:
        _int8_1x4(w, stride, scales, scale_line, 0, 0, x, size, y, y_stride)


@njit(**EXACT)
def _int4_tile(linear, rows, w, stride, scales, line, x, size, y, y_stride):  # type: ignore[no-untyped-def]
    """As `_vector_tile`."""
    apart()
    bits, narrow = linear[Linear.GROUP_BITS], linear[Linear.NARROW]
    if rows == 8:
        _int4_8x2(w, stride, scales, line, bits, narrow, x, size, y, y_stride)
        w, scales, y = w + 2 * stride, scales + 2 * line, y + 8
        _int4_8x2(w, stride, scales, line, bits, narrow, x, size, y, y_stride)
    elif rows == 4:
        _int4_4x4(w, stride, scales, line, bits, narrow, x, size, y, y_stride)
    elif rows == 3:
        _int4_3x4(w, stride, scales, line, bits, narrow, x, size, y, y_stride)
    elif rows == 2:
        _int4_2x4(w, stride, scales, line, bits, narrow, x, size, y, y_stride)
    else:
        _int4_1x4(w, stride, scales, line, bits, narrow, x, size, y, y_stride)


@njit(**EXACT)
def widen(linear, at, size, target):  # type: ignore[no-untyped-def]
    """16 rows of weights that are codes, from `at` on, as bfloat16 [16, size]; of INT8 without their scales."""
    apart()
    stride, line = linear[Linear.STRIDE], linear[Linear.SCALE_STRIDE]
    bits, narrow = linear[Linear.GROUP_BITS], linear[Linear.NARROW]
    w, scales = linear[Linear.ROWS] + at * stride, linear[Linear.SCALES] + at * line
    if linear[Linear.FORM] == Form.INT8:
        _expand_int8(w, stride, scales, line, bits, narrow, 0, size >> 5, target)
    else:
        _expand_int4(w, stride, scales, line, bits, narrow, 0, size >> 5, target)


@njit(**EXACT)
def tile(kind, linear, at, spacing, way, rows, blocks, x, size, y, y_stride, sums):  # type: ignore[no-untyped-def]
    """y [rows, 16] float32, `y_stride` bytes from row to row, of 16 rows of weights, every `spacing`-th from `at`
    on. `sums`: float32 [27, 16, 16] of this thread's own, of which the second and third tile stay as they are."""
    apart()
    if way == WHOLE:
        code_tile(linear, at, spacing, rows, x, size, y, y_stride, sums)
        return
    if way == BYTES:
        code_row(linear, at, spacing, x, size, y)
        return
    stride, form = linear[Linear.STRIDE] * spacing, linear[Linear.FORM]
    w = linear[Linear.ROWS] + at * linear[Linear.STRIDE]
    if way > PARTED:
        later = linear[Linear.STRIDE] if spacing > 1 else TILE * stride  # the row that follows in the same stream
        tile_products(w, stride, x, way, size, sums, later)
        source = floats(sums)
        for row in range(rows):
            target = floats(y + row * y_stride)
            for output in range(TILE):
                target[output] = source[output * way + row]
        return
    scales, scale_line = linear[Linear.SCALES] + at * linear[Linear.SCALE_STRIDE], linear[Linear.SCALE_STRIDE] * spacing
    row = 0
    while row < rows:
        block = longs(blocks)[row]
        rest = x + row * size * 4
        for output in range(0, TILE, OUTPUTS):
            place, line = y + row * y_stride + output * 4, w + output * stride
            scale = scales + output * scale_line
            if form == Form.INT8:
                _int8_tile(block, line, stride, scale, scale_line, rest, size, place, y_stride)
            elif form == Form.INT4:
                _int4_tile(linear, block, line, stride, scale, scale_line, rest, size, place, y_stride)
            else:
                _vector_tile(kind, block, line, stride, rest, size, place, y_stride)
        row += block


@njit(**EXACT)
def spacing_of(linear, rows, index, outputs):  # type: ignore[no-untyped-def]
    """(first, spacing) of the 16 outputs of a product's tile. Sixteen parts of a weight are read side by side: a
    processor brings several pages of memory faster than one after the other (19 GB/s a core instead of 14). The
    spacing is odd, lest all sixteen rows fall into the same lines of the cache. Tiles of neighbours make up for what
    is left over; the last one may overlap the one before it, which writes the same. Codes of several rows are read in
    order: their results lie in too many places for how fast they come."""
    spacing = outputs // TILE - 1 | 1 if rows == 1 or linear[Linear.FORM] == Form.PLAIN else 1
    if index < spacing:
        return index * TILE if spacing == 1 else index, spacing
    return min(index * TILE, outputs - TILE), 1


@njit(**EXACT)
def product(kind, linear, way, rows, blocks, x, size, y, outputs, first, last, sums):  # type: ignore[no-untyped-def]
    """The tiles of outputs [first, last) / 16 of y [rows, outputs] = x w^T + bias. `sums` as for `tile`."""
    apart()
    bias, own = linear[Linear.BIAS], sums + TILE * TILE * 4
    for output in range(first, last, TILE):
        at, spacing = spacing_of(linear, rows, output // TILE, outputs)
        if spacing == 1 and not bias:
            tile(kind, linear, at, spacing, way, rows, blocks, x, size, y + at * 4, outputs * 4, sums)
            continue
        tile(kind, linear, at, spacing, way, rows, blocks, x, size, own, TILE * 4, sums)
        for row in range(rows):
            source, target = floats(own + row * TILE * 4), floats(y + row * outputs * 4)
            for step in range(TILE):
                place = at + step * spacing
                target[place] = source[step] + get(kind, bias, place) if bias else source[step]
