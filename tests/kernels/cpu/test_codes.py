"""Products of rows with weights in 8 and 4 bits, on vectors and on the tile unit, against float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("numba")
from numba import int64, njit

from octavo.kernels.cpu import tiles
from octavo.kernels.cpu.fields import BYTES, NATURAL, PARTED, WHOLE, Form, Linear, row_blocks, whole_bytes
from octavo.kernels.cpu.numbers import EXACT, floats, longs
from octavo.kernels.cpu.products import is_whole, keep, make_whole, product
from octavo.kernels.cpu.tiles import begin_tiles, end_tiles
from octavo.kernels.cpu.whole import add_sums

OUTPUTS = 75  # three tiles of every third, one of neighbours, and one that overlaps it


@njit([(int64,) * 10], **EXACT)
def _run(
    linear: int, way: int, rows: int, blocks: int, x: int, size: int, y: int, room: int, whole_size: int, layout: int
) -> None:
    kept, whole, first, block = room, room + 16 * size * 4, 0, 0
    own = whole + whole_size
    if way > PARTED:
        begin_tiles(layout)
    for row in range(rows):
        if row == first + block:
            first, block = row, longs(blocks)[row]
        for i in range(size):
            keep(way, kept, size, row, first, block, i, floats(x)[row * size + i])
    if is_whole(way):
        for row in range(rows):
            make_whole(way, longs(linear), whole, size, row, kept + row * size * 4)
        if way == WHOLE:
            add_sums(longs(linear), whole, size, rows)
        kept = whole
    for begin in range(0, OUTPUTS, 16):
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
            group = group or size
            pairs = random.normal(size=(OUTPUTS, size // group, 2)).astype(np.float32)
            words = pairs.view(np.uint32) & np.uint32(0xFFFF0000) if narrow else pairs.view(np.uint32)
            exact = words.view(np.float32).astype(np.float64)
            self.scales = (words >> 16).astype(np.uint16) if narrow else words
            codes = np.stack([self.codes & 15, self.codes >> 4], -1).reshape(OUTPUTS, size).astype(np.float64)
            scale, shift = (np.repeat(exact[..., i], group, axis=1) for i in range(2))
            self.numbers = codes * scale + shift
            self.linear[Linear.GROUP_BITS] = 32 if group == size else (group // 32).bit_length() - 1
        self.linear[Linear.FORM], self.linear[Linear.ROWS] = form, self.codes.ctypes.data
        self.linear[Linear.STRIDE], self.linear[Linear.BIAS] = self.codes.strides[0], self.bias.ctypes.data
        self.linear[Linear.SCALES], self.linear[Linear.SCALE_STRIDE] = self.scales.ctypes.data, self.scales.strides[0]
        self.linear[Linear.NARROW] = narrow

    def times(self, x: np.ndarray, way: int | None = None) -> np.ndarray:
        """What the kernels make of float32 rows [R, size], by vectors if no way is named."""
        rows = len(x)
        blocks = np.array(row_blocks(rows), dtype=np.int64)
        room = np.zeros(16 * self.size + whole_bytes(self.size) // 4 + 27 * 256, dtype=np.float32)
        layout = tiles.configuration(8)
        y = np.full((rows, OUTPUTS), np.nan, dtype=np.float32)
        way, places = self.order if way is None else way, (self.linear, blocks, x, y, room, layout)
        linear, block, at, out, own, shape = (place.ctypes.data for place in places)
        _run(linear, way, rows, block, at, self.size, out, own, whole_bytes(self.size), shape)
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
    "int4-32-short": {"form": Form.INT4, "size": 32, "group": 32},
    "int4-64-long": {"form": Form.INT4, "size": 1216, "group": 64},
    "int4-512-narrow": {"form": Form.INT4, "size": 1024, "group": 512, "narrow": True},
    "int4-row": {"form": Form.INT4, "size": 224, "group": 0},
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


needs_tiles = pytest.mark.skipif(not tiles.available(), reason="the processor has no tile unit")


@needs_tiles
@pytest.mark.parametrize("name", sorted(WEIGHTS))
@pytest.mark.parametrize("rows", [1, 4, 5, 8, 9, 16])
def test_the_tile_unit_multiplies_by_codes_up_to_the_steps_of_whole_numbers(name: str, rows: int) -> None:
    weight = Weight(**WEIGHTS[name])
    x = rows_of(rows, weight.size) * 10.0 ** np.arange(-8, rows - 8, dtype=np.float32)[:, None]
    expected, bound = weight.expected(x)
    assert (np.abs(weight.times(x, WHOLE) - expected) < 2**-14 * bound).all()
    even = np.rint(4 * rows_of(rows, weight.size))  # such rows are whole numbers of any step
    expected, bound = weight.expected(even)
    assert (np.abs(weight.times(even, WHOLE) - expected) < 1e-6 * bound).all()


@needs_tiles
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_what_is_no_number_stays_in_its_row(bad: float) -> None:
    for name in ("int8", "int4-32"):
        weight = Weight(**WEIGHTS[name])
        x = rows_of(9, weight.size)
        x[0], x[3, 7] = 0, bad
        found = weight.times(x, WHOLE)
        assert np.isnan(found[3]).all()
        assert np.array_equal(found[0], weight.bias), "a row of zeros"
        assert np.isfinite(np.delete(found, 3, axis=0)).all()


INT4 = sorted(name for name in WEIGHTS if name.startswith("int4"))


@needs_tiles
@pytest.mark.parametrize("name", INT4)
@pytest.mark.parametrize("loudness", [1e-9, 1.0, 1e9])
def test_vectors_of_bytes_multiply_one_row_up_to_the_steps_of_whole_numbers(name: str, loudness: float) -> None:
    weight = Weight(**WEIGHTS[name])
    x = rows_of(1, weight.size) * np.float32(loudness)
    expected, bound = weight.expected(x)
    assert (np.abs(weight.times(x, BYTES) - expected) < 2**-14 * bound).all()
    even = np.rint(4 * rows_of(1, weight.size))
    expected, bound = weight.expected(even)
    assert (np.abs(weight.times(even, BYTES) - expected) < 1e-6 * bound).all()


@needs_tiles
@pytest.mark.parametrize("name", INT4)
def test_vectors_of_bytes_count_a_row_in_the_steps_of_the_tile_unit(name: str) -> None:
    weight = Weight(**WEIGHTS[name])
    x = rows_of(1, weight.size)
    _, bound = weight.expected(x)
    assert (np.abs(weight.times(x, BYTES) - weight.times(x, WHOLE)) < 1e-6 * bound).all()


@needs_tiles
def test_what_is_no_number_shows_in_every_output_of_one_row() -> None:
    weight = Weight(**WEIGHTS["int4-32"])
    x = rows_of(1, weight.size)
    x[0, 7] = np.inf
    assert np.isnan(weight.times(x, BYTES)).all()
    assert np.array_equal(weight.times(np.zeros_like(x), BYTES)[0], weight.bias), "a row of zeros"


@pytest.mark.parametrize("way", [None, pytest.param(WHOLE, marks=needs_tiles)])
@pytest.mark.parametrize("name", sorted(WEIGHTS))
def test_a_row_gives_the_same_bits_in_any_company(name: str, way: int | None) -> None:
    weight = Weight(**WEIGHTS[name])
    x = rows_of(16, weight.size)
    for rows in (2, 3, 4, 8, 16):
        alone = np.concatenate([weight.times(x[row : row + 1], way) for row in range(rows)])
        assert np.array_equal(alone, weight.times(x[:rows], way))
