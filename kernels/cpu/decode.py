"""One decoding step of a dense decoder, all layers, in one call: few rows, one new token each, keys in pages.

Every thread of the team runs the same function. A layer has five phases, each cut into units of work: the q, k and v
products; attention of a row and a KV head; the o product; the gate and up products with the activation; the down
product. A thread takes units from its own share first (neighbouring weights, so that fetching ahead pays), then from
the others', and goes on when all units of the phase are done, whoever did them: a thread that comes late or not at all
is not waited for. What is cheap (the residual addition and the norm) every thread computes for itself before it takes
a unit of a phase that needs it; a thread that is too late for that finds no unit either.

What bounds it is reading the weights once; without the tile unit, from eight rows on, arithmetic as much. Between
products everything stays float32; weights, keys and values are read as stored. See fields.py for the tables.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from octavo.kernels.cpu.attention import attend, inverse_rms
from octavo.kernels.cpu.fields import LINE, PARTED, PHASES, WHOLE, Factor, Layer, Linear, Step
from octavo.kernels.cpu.numbers import EXACT, apart, floats, gate, get, longs, parted, put
from octavo.kernels.cpu.products import (
    is_whole,
    keep,
    keep_tile,
    make_whole,
    product,
    spacing_of,
    tile,
    unit_outputs,
    way_of,
    widen,
)
from octavo.kernels.cpu.team import claim, finish, is_open
from octavo.kernels.cpu.tiles import TILE, begin_tiles, end_tiles
from octavo.kernels.cpu.whole import add_sums, pairs_place

_ONE = np.float32(1.0)


@njit(**EXACT)
def _pack(way, linear, rows, blocks, source, factors, weight, size, target):  # type: ignore[no-untyped-def]
    """Rows [rows, size] times a factor a row and a weight a column (if its address is not 0), for the products."""
    apart()
    x, y, scale = floats(source), floats(target), floats(weight)
    first, block = 0, 0
    whole = pairs_place(target, size)
    for row in range(rows):
        if row == first + block:
            first, block = row, longs(blocks)[row]
        factor = floats(factors)[row]
        if is_whole(way):
            _scale(source + row * size * 4, factor, weight, size, whole)
            make_whole(way, linear, target, size, row, whole)
            continue
        if way > PARTED:
            for i in range(size):
                value = x[row * size + i] * factor
                keep(way, target, size, row, first, block, i, value * scale[i] if weight else value)
            continue
        for begin in range(0, size, 32):
            place = first * size + begin * block + (row - first) * 32
            for i in range(32):
                at = parted(i) if way == PARTED else i
                value = x[row * size + begin + i] * factor
                if weight:
                    value *= scale[begin + i]
                y[place + at] = value


@njit(**EXACT)
def _scale(source, factor, weight, size, target):  # type: ignore[no-untyped-def]
    x, y, scale = floats(source), floats(target), floats(weight)
    if weight:
        for i in range(size):
            y[i] = x[i] * factor * scale[i]
    else:
        for i in range(size):
            y[i] = x[i] * factor


@njit(**EXACT)
def _join(step, linear, hidden, delta, post_norm, norm, total, factors, x):  # type: ignore[no-untyped-def]
    """The residual stream and what a block adds to it, and its norm for the products: private copies, all rows.

    total [R, H] = hidden + residual factor * (delta, normed if there is a weight for it); x = norm of total, or total,
    as a weight's products look for it.
    """
    apart()
    rows, width = step[Step.ROWS], step[Step.WIDTH]
    factor = floats(step[Step.FACTORS])
    eps, residual = factor[Factor.NORM_EPS], factor[Factor.RESIDUAL]
    stream, added, weight = floats(hidden), floats(delta), floats(post_norm)
    result, scales = floats(total), floats(factors)
    for row in range(rows):
        first = row * width
        if delta == 0:
            for i in range(width):
                result[first + i] = stream[first + i]
        elif post_norm == 0:
            for i in range(width):
                result[first + i] = stream[first + i] + residual * added[first + i]
        else:
            scale = inverse_rms(added, first, width, eps) * residual
            for i in range(width):
                result[first + i] = stream[first + i] + scale * (added[first + i] * weight[i])
        scales[row] = inverse_rms(result, first, width, eps) if norm else _ONE
    if x:
        way = way_of(step, linear)
        _pack(way, linear, rows, step[Step.BLOCK_ROWS], total, factors, norm, width, x)
        if way == WHOLE:
            add_sums(linear, x, width, rows)


@njit(**EXACT)
def _gated(kind, step, layer, x, own, first, last):  # type: ignore[no-untyped-def]
    """Inner channels [first, last) of all rows: both products, then act(gate) * up, for the next product."""
    apart()
    rows, width, inner = step[Step.ROWS], step[Step.WIDTH], step[Step.INNER_WIDTH]
    blocks, line, act = step[Step.BLOCK_ROWS], TILE * 4, step[Step.ACT]
    linear, next_way = longs(layer[Layer.GATE_UP]), way_of(step, longs(layer[Layer.DOWN]))
    way, bias = way_of(step, linear), linear[Linear.BIAS]
    gates, ups = own + TILE * line, own + 2 * TILE * line
    gated, up = floats(gates), floats(ups)
    for output in range(first, last, TILE):
        at, spacing = spacing_of(linear, rows, output // TILE, inner)
        tile(kind, linear, at, spacing, way, rows, blocks, x, width, gates, line, own)
        tile(kind, linear, inner + at, spacing, way, rows, blocks, x, width, ups, line, own)
        if bias:
            for i in range(rows * TILE):
                gated[i] += get(kind, bias, at + i % TILE * spacing)
                up[i] += get(kind, bias, inner + at + i % TILE * spacing)
        gate(act, gates, ups, rows * TILE)
        begin, block = 0, 0
        for row in range(rows):
            if row == begin + block:
                begin, block = row, longs(blocks)[row]
            keep_tile(next_way, step[Step.INNER], inner, row, begin, block, at, spacing, gates + row * line)


@njit(**EXACT)
def _products(kind, step, counters, thread, linear, x, size, y, outputs, whole, own):  # type: ignore[no-untyped-def]
    """A phase that is one product with rows which are already in place, or of which whole numbers are made first."""
    apart()
    rows, team, blocks, way = step[Step.ROWS], step[Step.TEAM], step[Step.BLOCK_ROWS], way_of(step, linear)
    chunk = unit_outputs(linear, size, 1)
    units, done = (outputs + chunk - 1) // chunk, 0
    if is_whole(way) and is_open(counters, units, team):
        for row in range(rows):
            make_whole(way, linear, whole, size, row, x + row * size * 4)
        if way == WHOLE:
            add_sums(linear, whole, size, rows)
        x = whole
    unit = claim(counters, units, team, thread)
    while unit >= 0:
        last = min(outputs, unit * chunk + chunk)
        product(kind, linear, way, rows, blocks, x, size, y, outputs, unit * chunk, last, own)
        done += 1
        unit = claim(counters, units, team, thread)
    finish(counters, units, team, done)


@njit(**EXACT)
def _layers(kind, step, thread):  # type: ignore[no-untyped-def]
    apart()
    rows, team, width = step[Step.ROWS], step[Step.TEAM], step[Step.WIDTH]
    inner, kv_heads = step[Step.INNER_WIDTH], step[Step.KV_HEADS]
    blocks = step[Step.BLOCK_ROWS]
    q_width = step[Step.Q_HEADS] * step[Step.HEAD_SIZE]
    merged = q_width + 2 * kv_heads * step[Step.HEAD_SIZE]
    numbers = rows * width
    x = step[Step.SCRATCH] + thread * step[Step.SCRATCH_SIZE]
    total = x + max(rows, step[Step.COLUMNS]) * width * 4
    whole = total + numbers * 4
    own = whole + step[Step.WHOLE]
    counters, phase = step[Step.COUNTERS], (team + 1) * LINE
    old, new = step[Step.HIDDEN], step[Step.HIDDEN] + numbers * 4
    delta, post_norm, added = 0, 0, step[Step.DELTA]

    for index in range(step[Step.NUM_LAYERS]):
        layer = longs(step[Step.LAYERS] + index * len(Layer) * 8)

        linear = longs(layer[Layer.QKV])
        way, chunk = way_of(step, linear), unit_outputs(linear, width, 1)
        place = whole if is_whole(way) else x
        units, done, unit = (merged + chunk - 1) // chunk, 0, -1
        if is_open(counters, units, team):
            _join(step, linear, old, delta, post_norm, layer[Layer.ATTN_NORM], total, own, place)
            unit = claim(counters, units, team, thread)
        while unit >= 0:
            if unit == 0:
                _copy(total, new, numbers)
            first, last, y = unit * chunk, min(merged, unit * chunk + chunk), step[Step.QKV]
            product(kind, linear, way, rows, blocks, place, width, y, merged, first, last, own)
            done += 1
            unit = claim(counters, units, team, thread)
        finish(counters, units, team, done)
        counters += phase
        old, new = new, old

        together = rows if step[Step.ORDERED] else 1  # rows of a unit, one after the other
        units, done = rows // together * kv_heads, 0
        unit = claim(counters, units, team, thread)
        while unit >= 0:
            for row in range(unit // kv_heads, unit // kv_heads + together):
                attend(kind, step, layer, own, row, unit % kv_heads)
            done += 1
            unit = claim(counters, units, team, thread)
        finish(counters, units, team, done)
        counters += phase

        linear, source = longs(layer[Layer.O]), step[Step.ATTENDED]
        _products(kind, step, counters, thread, linear, source, q_width, added, width, whole, own)
        counters += phase
        delta, post_norm = added, layer[Layer.ATTN_POST_NORM]

        linear = longs(layer[Layer.GATE_UP])
        chunk, place = unit_outputs(linear, width, 2), whole if is_whole(way_of(step, linear)) else x
        units, done, unit = (inner + chunk - 1) // chunk, 0, -1
        if is_open(counters, units, team):
            _join(step, linear, old, delta, post_norm, layer[Layer.MLP_NORM], total, own, place)
            unit = claim(counters, units, team, thread)
        while unit >= 0:
            if unit == 0:
                _copy(total, new, numbers)
            _gated(kind, step, layer, place, own, unit * chunk, min(inner, unit * chunk + chunk))
            done += 1
            unit = claim(counters, units, team, thread)
        finish(counters, units, team, done)
        counters += phase
        old, new = new, old

        linear, source = longs(layer[Layer.DOWN]), step[Step.INNER]
        _products(kind, step, counters, thread, linear, source, inner, added, width, whole, own)
        counters += phase
        post_norm = layer[Layer.MLP_POST_NORM]

    done = 0
    if claim(counters, 1, team, thread) == 0:
        _join(step, linear, old, delta, post_norm, 0, total, own, 0)
        _write_normed(kind, step, total)
        done = 1
    finish(counters, 1, team, done)


@njit(**EXACT)
def _copy(source, target, numbers):  # type: ignore[no-untyped-def]
    x, y = floats(source), floats(target)
    for i in range(numbers):
        y[i] = x[i]


@njit(**EXACT)
def _write_normed(kind, step, total):  # type: ignore[no-untyped-def]
    """The last norm, as stored numbers."""
    width = step[Step.WIDTH]
    x, weight, eps = floats(total), floats(step[Step.FINAL_NORM]), floats(step[Step.FACTORS])[Factor.NORM_EPS]
    for row in range(step[Step.ROWS]):
        scale = inverse_rms(x, row * width, width, eps)
        for i in range(width):
            put(kind, step[Step.OUT], row * width + i, x[row * width + i] * scale * weight[i])


@njit(**EXACT)
def decode(kind, table, thread):  # type: ignore[no-untyped-def]
    """A member of the team's part of a step, and of the head's product if there is a place for it at Step.LOGITS.
    `kind` is of the type that means how plain weights, keys and values are stored (vectors.py), `table` is the address
    of Step's numbers."""
    step = longs(table)
    if step[Step.TILES]:
        begin_tiles(step[Step.TILES])
    _layers(kind, step, thread)
    if step[Step.LOGITS]:
        phases = step[Step.NUM_LAYERS] * PHASES + 1
        _score(kind, step, step[Step.COUNTERS] + phases * (step[Step.TEAM] + 1) * LINE, thread)
    if step[Step.TILES]:
        end_tiles()


@njit(**EXACT)
def project(kind, table, thread):  # type: ignore[no-untyped-def]
    """A member of the team's part of the head's product; `table` is the address of Step's numbers, of which only HEAD,
    VOCABULARY, OUT (the rows, as stored), LOGITS and what decides how rows are kept are looked at."""
    step = longs(table)
    if step[Step.TILES]:
        begin_tiles(step[Step.TILES])
    _score(kind, step, step[Step.COUNTERS], thread)
    if step[Step.TILES]:
        end_tiles()


@njit(**EXACT)
def _score(kind, step, counters, thread):  # type: ignore[no-untyped-def]
    """The head's product with the rows at Step.OUT."""
    apart()
    rows, size, blocks, linear = step[Step.ROWS], step[Step.WIDTH], step[Step.BLOCK_ROWS], longs(step[Step.HEAD])
    way = way_of(step, linear)
    x = step[Step.SCRATCH] + thread * step[Step.SCRATCH_SIZE]
    whole = x + max(rows, step[Step.COLUMNS]) * size * 4
    own = whole + step[Step.WHOLE]
    first, block = 0, 0
    for row in range(rows):
        if row == first + block:
            first, block = row, longs(blocks)[row]
        for i in range(size):
            keep(way, x, size, row, first, block, i, get(kind, step[Step.OUT], row * size + i))
    y, outputs = step[Step.LOGITS], step[Step.VOCABULARY]
    _products(kind, step, counters, thread, linear, x, size, y, outputs, whole, own)


@njit(**EXACT)
def expand(table, thread):  # type: ignore[no-untyped-def]
    """A member of the team's part of making rows [Step.FIRST, Step.FIRST + Step.VOCABULARY) of the weight at Step.HEAD,
    which is held as codes, bfloat16 [Step.VOCABULARY, Step.WIDTH] at Step.OUT; at least 16 rows."""
    apart()
    step = longs(table)
    size, outputs, linear, team = step[Step.WIDTH], step[Step.VOCABULARY], longs(step[Step.HEAD]), step[Step.TEAM]
    chunk = unit_outputs(linear, size, 1)
    units, done = (outputs + chunk - 1) // chunk, 0
    unit = claim(step[Step.COUNTERS], units, team, thread)
    while unit >= 0:
        for output in range(unit * chunk, min(outputs, unit * chunk + chunk), TILE):
            at = min(output, outputs - TILE)
            widen(linear, step[Step.FIRST] + at, size, step[Step.OUT] + at * size * 2)
        done += 1
        unit = claim(step[Step.COUNTERS], units, team, thread)
    finish(step[Step.COUNTERS], units, team, done)
