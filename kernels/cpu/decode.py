"""One decoding step of a dense decoder, all layers, in one call: few rows, one new token each, keys in pages.

Every thread of the team runs the same function. A layer has five phases, each cut into units of work: the q, k and v
products; attention of a row and a KV head; the o product; the gate and up products with the activation; the down
product. A thread takes units from its own share first (neighbouring weights, so that fetching ahead pays), then from
the others', and goes on when all units of the phase are done, whoever did them: a thread that comes late or not at all
is not waited for. What is cheap (the residual addition and the norm) every thread computes for itself before it takes
a unit of a phase that needs it; a thread that is too late for that finds no unit either.

What bounds it: at one row reading the weights once; at eight rows about as much arithmetic. Between products everything
stays float32; weights, keys and values are read as stored. See fields.py for the table that all is passed by.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from octavo.kernels.cpu.fields import KEYS, LINE, MAX_ROWS, Factor, Group, Layer, Product, Step
from octavo.kernels.cpu.numbers import (
    EXACT,
    FAST,
    activate,
    apart,
    atomic_add,
    atomic_load,
    exp,
    floats,
    get,
    give_way,
    ints,
    item_size,
    lane,
    longs,
    pause,
    put,
    tanh,
)
from octavo.kernels.cpu.vectors import AHEAD, largest, make_mixture, make_products

_OUTPUTS = 4
_PATIENCE = 1024  # looks at a counter, some 50 us, before the processor is offered to others
_UNIT_BYTES = 65536  # of weights: about 4 us, long beside taking a unit, short beside a phase
_ZERO, _ONE, _NONE = np.float32(0.0), np.float32(1.0), np.float32(-np.inf)

_products_8x2 = make_products(8, 2, ahead=AHEAD)
_products_4x4 = make_products(4, 4, ahead=AHEAD)
_products_3x4 = make_products(3, 4, ahead=AHEAD)
_products_2x4 = make_products(2, 4, ahead=AHEAD)
_products_1x4 = make_products(1, 4, ahead=AHEAD)
_scores_4x4, _scores_4x1 = make_products(4, 4), make_products(4, 1)
_scores_3x4, _scores_3x1 = make_products(3, 4), make_products(3, 1)
_scores_2x4, _scores_2x1 = make_products(2, 4), make_products(2, 1)
_scores_1x4, _scores_1x1 = make_products(1, 4), make_products(1, 1)
_mixture_4, _mixture_3, _mixture_2, _mixture_1 = (make_mixture(heads) for heads in (4, 3, 2, 1))


@njit(**EXACT)
def _claim(counters, units, team, thread):  # type: ignore[no-untyped-def]
    """A unit nobody else has, the own share first; -1 if none is left."""
    for step in range(team):
        share = (thread + step) % team
        first = units * share // team
        size = units * (share + 1) // team - first
        counter = counters + share * LINE
        if atomic_load(counter) < size:
            taken = atomic_add(counter, 1)
            if taken < size:
                return first + taken
    return -1


@njit(**EXACT)
def _is_open(counters, units, team):  # type: ignore[no-untyped-def]
    """Whether a unit may still be there."""
    for share in range(team):
        if atomic_load(counters + share * LINE) < units * (share + 1) // team - units * share // team:
            return True
    return False


@njit(**EXACT)
def _finish(counters, units, team, done):  # type: ignore[no-untyped-def]
    """Counts the own units and waits for all others'."""
    total = counters + team * LINE
    if done:
        atomic_add(total, done)
    turns = 0
    while atomic_load(total) < units:
        pause()
        turns += 1
        if turns % _PATIENCE == 0:
            give_way()


@njit(**EXACT)
def _chunk(kind, size):  # type: ignore[no-untyped-def]
    """Outputs a unit of a product with rows of so many weights."""
    return max(_OUTPUTS, _UNIT_BYTES // (size * item_size(kind)) // _OUTPUTS * _OUTPUTS)


@njit(**EXACT)
def _tile(kind, rows, w, stride, x, size, y, y_stride):  # type: ignore[no-untyped-def]
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
def _product(kind, rows, blocks, w, bias, x, size, y, outputs, first, last):  # type: ignore[no-untyped-def]
    """Outputs [first, last) of y [rows, outputs] = x w^T + bias. The last tile may overlap the one before it."""
    apart()
    stride = size * item_size(kind)
    for output in range(first, last, _OUTPUTS):
        at = min(output, outputs - _OUTPUTS)
        row = 0
        while row < rows:
            block = longs(blocks)[row]
            place = y + (row * outputs + at) * 4
            _tile(kind, block, w + at * stride, stride, x + row * size * 4, size, place, outputs * 4)
            row += block
        if bias:
            target = floats(y)
            for row in range(rows):
                for step in range(_OUTPUTS):
                    target[row * outputs + at + step] += get(kind, bias, at + step)


@njit(**FAST)
def _inverse_rms(x, first, size, eps):  # type: ignore[no-untyped-def]
    total = _ZERO
    for i in range(size):
        total += x[first + i] * x[first + i]
    return _ONE / np.sqrt(total / np.float32(size) + eps)


@njit(**EXACT)
def _pack(kind, rows, blocks, source, factors, weight, size, target):  # type: ignore[no-untyped-def]
    """Rows [rows, size] times a factor a row and a weight a column (if its address is not 0), in blocks."""
    apart()
    x, y, scale = floats(source), floats(target), floats(weight)
    row, first, block = 0, 0, 0
    for row in range(rows):
        if row == first + block:
            first, block = row, longs(blocks)[row]
        factor = floats(factors)[row]
        for begin in range(0, size, 32):
            place = first * size + begin * block + (row - first) * 32
            for i in range(32):
                value = x[row * size + begin + i] * factor
                if weight:
                    value *= scale[begin + i]
                y[place + lane(kind, i)] = value


@njit(**EXACT)
def _join(kind, step, hidden, delta, post_norm, norm, total, factors, x):  # type: ignore[no-untyped-def]
    """The residual stream and what a block adds to it, and its norm in blocks: private copies, all rows.

    total [R, H] = hidden + residual factor * (delta, normed if there is a weight for it); x = norm of total, or total.
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
            scale = _inverse_rms(added, first, width, eps) * residual
            for i in range(width):
                result[first + i] = stream[first + i] + scale * (added[first + i] * weight[i])
        scales[row] = _inverse_rms(result, first, width, eps) if norm else _ONE
    _pack(kind, rows, step[Step.BLOCK_ROWS], total, factors, norm, width, x)


@njit(**EXACT)
def _turned(source, first, norm, rope, pairs, size, eps, factor, target):  # type: ignore[no-untyped-def]
    """One head: normed if there is a weight, its first pairs of adjacent channels turned, times a factor."""
    x, y, weight, cos_sin = floats(source), floats(target), floats(norm), floats(rope)
    scale = factor
    if norm:
        scale = factor * _inverse_rms(x, first, size, eps)
        for i in range(size):
            y[i] = x[first + i] * weight[i] * scale
    else:
        for i in range(size):
            y[i] = x[first + i] * scale
    for i in range(pairs):
        cos, sin = cos_sin[i], cos_sin[pairs + i]
        a, b = y[2 * i], y[2 * i + 1]
        y[2 * i] = a * cos - b * sin
        y[2 * i + 1] = b * cos + a * sin


@njit(**EXACT)
def _score(kind, heads, q, size, k, keys, scores):  # type: ignore[no-untyped-def]
    """scores[h, key] for up to four heads and adjacent keys."""
    apart()
    stride, line = size * item_size(kind), KEYS * 4
    whole = keys & ~3
    for key in range(0, whole, 4):
        at, y = k + key * stride, scores + key * 4
        if heads == 4:
            _scores_4x4(kind, at, stride, q, size, y, line)
        elif heads == 3:
            _scores_3x4(kind, at, stride, q, size, y, line)
        elif heads == 2:
            _scores_2x4(kind, at, stride, q, size, y, line)
        else:
            _scores_1x4(kind, at, stride, q, size, y, line)
    for key in range(whole, keys):
        at, y = k + key * stride, scores + key * 4
        if heads == 4:
            _scores_4x1(kind, at, stride, q, size, y, line)
        elif heads == 3:
            _scores_3x1(kind, at, stride, q, size, y, line)
        elif heads == 2:
            _scores_2x1(kind, at, stride, q, size, y, line)
        else:
            _scores_1x1(kind, at, stride, q, size, y, line)


@njit(**EXACT)
def _mix(kind, heads, v, size, keys, weights, sums):  # type: ignore[no-untyped-def]
    apart()
    stride, line = size * item_size(kind), KEYS * 4
    if heads == 4:
        _mixture_4(kind, v, stride, keys, weights, line, sums, size)
    elif heads == 3:
        _mixture_3(kind, v, stride, keys, weights, line, sums, size)
    elif heads == 2:
        _mixture_2(kind, v, stride, keys, weights, line, sums, size)
    else:
        _mixture_1(kind, v, stride, keys, weights, line, sums, size)


@njit(**FAST)
def _weigh(scores, keys, softcap, best, total, sums, size):  # type: ignore[no-untyped-def]
    """Turns scores of one head into weights relative to the largest so far; returns that and the sum of weights."""
    apart()
    s, mixed = floats(scores), floats(sums)
    if softcap != _ZERO:
        for key in range(keys):
            s[key] = softcap * tanh(s[key] / softcap)
    padded = (keys + 15) & ~15
    for key in range(keys, padded):
        s[key] = _NONE
    new = max(best, largest(scores, padded))
    if best != _NONE and new != best:
        shrink = exp(best - new)
        total *= shrink
        for i in range(size):
            mixed[i] *= shrink
    added = _ZERO
    for key in range(keys):
        weight = exp(s[key] - new)
        s[key] = weight
        added += weight
    return new, total + added


@njit(**EXACT)
def _attend(kind, step, layer, scratch, row, first, block, head):  # type: ignore[no-untyped-def]
    """Rotary, the write of k and v, and attention of the query heads of one KV head over one row's pages."""
    apart()
    size, page_size, kv_heads = step[Step.HEAD_SIZE], step[Step.PAGE_SIZE], step[Step.KV_HEADS]
    q_heads = step[Step.Q_HEADS]
    group = q_heads // kv_heads
    factor = floats(step[Step.FACTORS])
    eps, softcap = factor[Factor.NORM_EPS], factor[Factor.SOFTCAP]
    pages = longs(step[Step.GROUPS] + layer[Layer.GROUP] * len(Group) * 8)
    turned, q = scratch, scratch + size * 4
    sums = q + group * size * 4
    scores = sums + group * size * 4
    state = scores + group * KEYS * 4

    position = longs(step[Step.POSITIONS])[row]
    pairs = layer[Layer.ROPE_PAIRS]
    rope = layer[Layer.ROPE] + position * pairs * 8
    qkv = step[Step.QKV] + row * (q_heads + 2 * kv_heads) * size * 4
    natural, packed = floats(turned), floats(q)
    slot = longs(pages[Group.SLOTS])[row]
    cached = ((slot // page_size * kv_heads + head) * page_size + slot % page_size) * size * item_size(kind)
    _turned(qkv, (q_heads + head) * size, layer[Layer.K_NORM], rope, pairs, size, eps, _ONE, turned)
    for i in range(size):
        put(kind, layer[Layer.K] + cached, i, natural[i])
        put(kind, layer[Layer.V] + cached, i, floats(qkv)[(q_heads + kv_heads + head) * size + i])
    for member in range(group):
        source = (head * group + member) * size
        _turned(qkv, source, layer[Layer.Q_NORM], rope, pairs, size, eps, factor[Factor.ATTN_SCALE], turned)
        begin, heads = member & ~3, min(4, group - (member & ~3))
        for i in range(size):
            place = begin * size + (i & ~31) * heads + (member - begin) * 32 + lane(kind, i & 31)
            packed[place] = natural[i]

    mixed, best = floats(sums), floats(state)
    for i in range(group * size):
        mixed[i] = _ZERO
    for member in range(group):
        best[2 * member], best[2 * member + 1] = _NONE, _ZERO
    end = np.int64(ints(step[Step.KV_LENGTHS])[row])
    window = layer[Layer.WINDOW]
    key = max(0, end - window) if window else 0
    table = pages[Group.TABLE] + row * pages[Group.PAGES] * 4
    tile = page_size * size * item_size(kind)
    while key < end:
        count = min(KEYS, end - key)
        for begin in range(0, group, 4):
            heads = min(4, group - begin)
            at = 0
            while at < count:
                offset = (key + at) % page_size
                run = min(count - at, page_size - offset)
                page = np.int64(ints(table)[(key + at) // page_size])
                k = layer[Layer.K] + (page * kv_heads + head) * tile + offset * size * item_size(kind)
                _score(kind, heads, q + begin * size * 4, size, k, run, scores + (begin * KEYS + at) * 4)
                at += run
        for member in range(group):
            best[2 * member], best[2 * member + 1] = _weigh(
                scores + member * KEYS * 4,
                count,
                softcap,
                best[2 * member],
                best[2 * member + 1],
                sums + member * size * 4,
                size,
            )
        for begin in range(0, group, 4):
            heads = min(4, group - begin)
            at = 0
            while at < count:
                offset = (key + at) % page_size
                run = min(count - at, page_size - offset)
                page = np.int64(ints(table)[(key + at) // page_size])
                v = layer[Layer.V] + (page * kv_heads + head) * tile + offset * size * item_size(kind)
                _mix(kind, heads, v, size, run, scores + (begin * KEYS + at) * 4, sums + begin * size * 4)
                at += run
        key += count

    width = q_heads * size
    out = floats(step[Step.ATTENDED])
    for member in range(group):
        share = _ONE / best[2 * member + 1] if end > 0 else _ZERO
        for i in range(size):
            column = (head * group + member) * size + (i & ~31)
            place = first * width + column * block + (row - first) * 32
            out[place + (i & 31)] = mixed[member * size + i] * share


@njit(**EXACT)
def _gated(kind, step, layer, x, tile, first, last):  # type: ignore[no-untyped-def]
    """Inner channels [first, last) of all rows: both products, then act(gate) * up, in blocks."""
    apart()
    rows, width, inner = step[Step.ROWS], step[Step.WIDTH], step[Step.INNER_WIDTH]
    stride = width * item_size(kind)
    act, w, bias = step[Step.ACT], layer[Layer.GATE_UP], layer[Layer.GATE_UP_BIAS]
    target, gate, up = floats(step[Step.INNER]), floats(tile), floats(tile + MAX_ROWS * _OUTPUTS * 4)
    for output in range(first, last, _OUTPUTS):
        at = min(output, inner - _OUTPUTS)
        row = 0
        while row < rows:
            block = longs(step[Step.BLOCK_ROWS])[row]
            source = x + row * width * 4
            other = tile + MAX_ROWS * _OUTPUTS * 4
            _tile(kind, block, w + at * stride, stride, source, width, tile, _OUTPUTS * 4)
            _tile(kind, block, w + (inner + at) * stride, stride, source, width, other, _OUTPUTS * 4)
            if bias:
                for i in range(block * _OUTPUTS):
                    gate[i] += get(kind, bias, at + i % _OUTPUTS)
                    up[i] += get(kind, bias, inner + at + i % _OUTPUTS)
            for i in range(block * _OUTPUTS):
                gate[i] = activate(act, gate[i]) * up[i]
            for i in range(block * _OUTPUTS):
                member, column = i // _OUTPUTS, at + i % _OUTPUTS
                place = row * inner + (column & ~31) * block + member * 32
                target[place + lane(kind, column & 31)] = gate[i]
            row += block


@njit(**EXACT)
def decode(kind, table, thread):  # type: ignore[no-untyped-def]
    """A member of the team's part of a step. `kind` is of the type that means how weights, keys and values are
    stored (vectors.py), `table` is the address of Step's numbers."""
    apart()
    step = longs(table)
    rows, team, width = step[Step.ROWS], step[Step.TEAM], step[Step.WIDTH]
    inner, kv_heads, head_size = step[Step.INNER_WIDTH], step[Step.KV_HEADS], step[Step.HEAD_SIZE]
    q_width, blocks = step[Step.Q_HEADS] * head_size, step[Step.BLOCK_ROWS]
    merged = q_width + 2 * kv_heads * head_size
    x = step[Step.SCRATCH] + thread * step[Step.SCRATCH_SIZE]
    total = x + rows * width * 4
    own = total + rows * width * 4
    counters, next_phase = step[Step.COUNTERS], (team + 1) * LINE
    old, new = step[Step.HIDDEN], step[Step.HIDDEN] + rows * width * 4
    delta, post_norm = 0, 0

    for index in range(step[Step.NUM_LAYERS]):
        layer = longs(step[Step.LAYERS] + index * len(Layer) * 8)
        for block_of_layer in range(2):
            first_block = block_of_layer == 0
            norm = layer[Layer.ATTN_NORM] if first_block else layer[Layer.MLP_NORM]
            outputs = merged if first_block else inner
            chunk = _chunk(kind, width) if first_block else max(_OUTPUTS, _chunk(kind, width) // 2 // 4 * 4)
            units, done, unit = (outputs + chunk - 1) // chunk, 0, -1
            if _is_open(counters, units, team):
                _join(kind, step, old, delta, post_norm, norm, total, own, x)
                unit = _claim(counters, units, team, thread)
            while unit >= 0:
                if unit == 0:
                    for i in range(rows * width):
                        floats(new)[i] = floats(total)[i]
                first, last = unit * chunk, min(outputs, unit * chunk + chunk)
                if first_block:
                    w, bias = layer[Layer.QKV], layer[Layer.QKV_BIAS]
                    _product(kind, rows, blocks, w, bias, x, width, step[Step.QKV], outputs, first, last)
                else:
                    _gated(kind, step, layer, x, own, first, last)
                done += 1
                unit = _claim(counters, units, team, thread)
            _finish(counters, units, team, done)
            counters += next_phase
            old, new = new, old
            if first_block:
                units, done = rows * kv_heads, 0
                unit = _claim(counters, units, team, thread)
                while unit >= 0:
                    row, first = unit // kv_heads, 0
                    while row >= first + longs(blocks)[first]:
                        first += longs(blocks)[first]
                    _attend(kind, step, layer, own, row, first, longs(blocks)[first], unit % kv_heads)
                    done += 1
                    unit = _claim(counters, units, team, thread)
                _finish(counters, units, team, done)
                counters += next_phase
                w, bias, source, size = layer[Layer.O], layer[Layer.O_BIAS], step[Step.ATTENDED], q_width
                post_norm = layer[Layer.ATTN_POST_NORM]
            else:
                w, bias, source, size = layer[Layer.DOWN], layer[Layer.DOWN_BIAS], step[Step.INNER], inner
                post_norm = layer[Layer.MLP_POST_NORM]
            delta = step[Step.DELTA]
            chunk = _chunk(kind, size)
            units, done = (width + chunk - 1) // chunk, 0
            unit = _claim(counters, units, team, thread)
            while unit >= 0:
                first, last = unit * chunk, min(width, unit * chunk + chunk)
                _product(kind, rows, blocks, w, bias, source, size, delta, width, first, last)
                done += 1
                unit = _claim(counters, units, team, thread)
            _finish(counters, units, team, done)
            counters += next_phase

    done, unit = 0, _claim(counters, 1, team, thread)
    if unit == 0:
        _join(kind, step, old, delta, post_norm, 0, total, own, x)
        result, weight = floats(total), floats(step[Step.FINAL_NORM])
        eps = floats(step[Step.FACTORS])[Factor.NORM_EPS]
        for row in range(rows):
            scale = _inverse_rms(result, row * width, width, eps)
            for i in range(width):
                put(kind, step[Step.OUT], row * width + i, result[row * width + i] * scale * weight[i])
        done = 1
    _finish(counters, 1, team, done)


@njit(**EXACT)
def product(kind, table, thread):  # type: ignore[no-untyped-def]
    """A member of the team's part of one product; `table` is the address of Product's numbers."""
    apart()
    task = longs(table)
    rows, team, size, outputs = task[Product.ROWS], task[Product.TEAM], task[Product.IN], task[Product.OUT]
    counters = task[Product.COUNTERS]
    x = task[Product.SCRATCH] + thread * task[Product.SCRATCH_SIZE]
    chunk = _chunk(kind, size)
    units, done = (outputs + chunk - 1) // chunk, 0
    first, block = 0, 0
    for row in range(rows):
        if row == first + block:
            first, block = row, longs(task[Product.BLOCK_ROWS])[row]
        for i in range(size):
            place = first * size + (i & ~31) * block + (row - first) * 32
            floats(x)[place + lane(kind, i & 31)] = get(kind, task[Product.X], row * size + i)
    unit = _claim(counters, units, team, thread)
    while unit >= 0:
        begin, end = unit * chunk, min(outputs, unit * chunk + chunk)
        w, bias, y = task[Product.W], task[Product.BIAS], task[Product.Y]
        _product(kind, rows, task[Product.BLOCK_ROWS], w, bias, x, size, y, outputs, begin, end)
        done += 1
        unit = _claim(counters, units, team, thread)
    _finish(counters, units, team, done)
