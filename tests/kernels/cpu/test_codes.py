"""Products of rows with weights in 8 and 4 bits, on vectors and on the tile unit, against float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("numba")
from numba import int64, njit

from octavo.kernels.cpu import tiles
from octavo.kernels.cpu.fields import NATURAL, PARTED, Form, Linear, row_blocks
from octavo.kernels.cpu.numbers import EXACT, floats, longs
from octavo.kernels.cpu.products import keep, product
from octavo.kernels.cpu.tiles import begin_tiles, end_tiles

OUTPUTS = 37  # the last tile overlaps the one before it


@njit([(int64,) * 9], **EXACT)
def _run(linear: int, way: int, rows: int, blocks: int, x: int, size: int, y: int, room: int, layout: int) -> None:
    kept, own, first, block = room, room + 16 * size * 4, 0, 0
    if way > PARTED:
        begin_tiles(layout)
    for row in range(rows):
        if row == first + block:
            first, block = row, longs(blocks)[row]
        for i in range(size):
            keep(way, kept, size, row, first, block, i, floats(x)[row * size + i])
    for begin in (0, 16, 32):
        last = min(OUTPUTS, begin + 16)
        product(np.float32(0), longs(linear), way, rows, blocks, kept, size, y, OUTPUTS, begin, last, own)
    if way > PARTED:
        end_tiles()


class Weight:
    """Random codes, the Linear that describes them, and the numbers they mean in float64."""

    def __init__(self, form: int, size: int, group: int = 0, narrow: bool = False, seed: int = 3) -> None:
        random = np.random.default_rng(seed)
        self.size, self.order = size, NATURAL if form == Form.INT8 else PARTED
        self.linear = np.zeros(len(Linear), dtype=np.int64)
        self.bias = random.normal(size=OUTPUTS).astype(np.float32)
        if form == Form.INT8:
            self.codes = random.integers(-128, 128, (OUTPUTS, size), dtype=np.int8)
            self.scales = random.normal(size=(OUTPUTS, 1)).astype(np.float32)
            self.numbers = self.codes.astype(np.float64) * self.scales
        else:
            self.codes = random.integers(0, 256, (OUTPUTS, size // 2), dtype=np.uint8)
            pairs = random.normal(size=(OUTPUTS, size // group, 2)).astype(np.float32)
            words = pairs.view(np.uint32) & np.uint32(0xFFFF0000) if narrow else pairs.view(np.uint32)
            exact = words.view(np.float32).astype(np.float64)
            self.scales = (words >> 16).astype(np.uint16) if narrow else words
            codes = np.stack([self.codes & 15, self.codes >> 4], -1).reshape(OUTPUTS, size).astype(np.float64)
            scale, shift = (np.repeat(exact[..., i], group, axis=1) for i in range(2))
            self.numbers = codes * scale + shift
            self.linear[Linear.GROUP_BITS] = (group // 32).bit_length() - 1
        self.linear[Linear.FORM], self.linear[Linear.ROWS] = form, self.codes.ctypes.data
        self.linear[Linear.STRIDE], self.linear[Linear.BIAS] = self.codes.strides[0], self.bias.ctypes.data
        self.linear[Linear.SCALES], self.linear[Linear.SCALE_STRIDE] = self.scales.ctypes.data, self.scales.strides[0]
        self.linear[Linear.NARROW] = narrow

    def times(self, x: np.ndarray, columns: int = 0) -> np.ndarray:
        """What the kernels make of float32 rows [R, size]."""
        rows = len(x)
        blocks = np.array(row_blocks(rows), dtype=np.int64)
        room = np.zeros(16 * self.size + 3 * 256 + 4096, dtype=np.float32)
        layout = tiles.configuration(columns or 8)
        y = np.full((rows, OUTPUTS), np.nan, dtype=np.float32)
        way, places = columns or self.order, (self.linear, blocks, x, y, room, layout)
        linear, block, at, out, own, shape = (place.ctypes.data for place in places)
        _run(linear, way, rows, block, at, self.size, out, own, shape)
        return y

    def expected(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The exact results, and the sums of magnitudes that bound their rounding."""
        exact = x.astype(np.float64)
        return exact @ self.numbers.T + self.bias, np.abs(exact) @ np.abs(self.numbers.T) + np.abs(self.bias)


WEIGHTS: dict[str, dict[str, Any]] = {
    "int8": {"form": Form.INT8, "size": 96},
    "int8-long": {"form": Form.INT8, "size": 416},
    "int4-32": {"form": Form.INT4, "size": 160, "group": 32},
    "int4-32-narrow": {"form": Form.INT4, "size": 416, "group": 32, "narrow": True},
    "int4-64-narrow": {"form": Form.INT4, "size": 192, "group": 64, "narrow": True},
    "int4-128": {"form": Form.INT4, "size": 384, "group": 128},
}


def rows_of(count: int, size: int) -> np.ndarray:
    return np.random.default_rng(count).normal(size=(count, size)).astype(np.float32)


@pytest.mark.parametrize("name", sorted(WEIGHTS))
@pytest.mark.parametrize("rows", [1, 2, 3, 4, 5, 8, 15, 16])
def test_vectors_multiply_by_codes_up_to_the_rounding_of_float32(name: str, rows: int) -> None:
    weight = Weight(**WEIGHTS[name])
    x = rows_of(rows, weight.size)
    expected, bound = weight.expected(x)
    assert (np.abs(weight.times(x) - expected) < 1e-6 * bound).all()


@pytest.mark.skipif(not tiles.available(), reason="the processor has no tile unit")
@pytest.mark.parametrize("name", sorted(WEIGHTS))
@pytest.mark.parametrize(("rows", "columns"), [(5, 8), (8, 8), (9, 16), (16, 16)])
def test_the_tile_unit_multiplies_by_codes_up_to_the_rounding_of_bfloat16(name: str, rows: int, columns: int) -> None:
    weight = Weight(**WEIGHTS[name])
    x = rows_of(rows, weight.size)
    expected, bound = weight.expected(x)
    assert (np.abs(weight.times(x, columns) - expected) < 2**-8 * bound).all()
    whole = np.rint(4 * x).astype(np.float32)  # rows that bfloat16 holds exactly
    if name.startswith("int8"):
        expected, bound = weight.expected(whole)
        assert (np.abs(weight.times(whole, columns) - expected) < 1e-6 * bound).all()


@pytest.mark.parametrize("name", sorted(WEIGHTS))
def test_a_row_gives_the_same_bits_in_any_company(name: str) -> None:
    weight = Weight(**WEIGHTS[name])
    x = rows_of(16, weight.size)
    for rows in (2, 3, 4, 8, 16):
        alone = np.concatenate([weight.times(x[row : row + 1]) for row in range(rows)])
        assert np.array_equal(alone, weight.times(x[:rows]))
