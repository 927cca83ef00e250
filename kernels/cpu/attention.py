"""Attention of one decode row over keys and values in pages, for the query heads of one KV head.

Rotary, the write of the new key and value, then the keys in runs of at most KEYS: scores, weights relative to the
largest score so far, and the weighted sum of values, rescaled when a larger score comes (Milakov and Gimelshein, arXiv
1805.02867). Only slots that hold keys of the row are read, whatever the others contain.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from octavo.kernels.cpu.fields import KEYS, Factor, Group, Layer, Step
from octavo.kernels.cpu.numbers import EXACT, FAST, apart, exp, floats, ints, item_size, lane, longs, put, tanh
from octavo.kernels.cpu.products import block_of, keep, way_of
from octavo.kernels.cpu.vectors import fetch, largest, make_mixture, make_products

_ZERO, _ONE, _NONE = np.float32(0.0), np.float32(1.0), np.float32(-np.inf)

_scores_4x4, _scores_4x1 = make_products(4, 4), make_products(4, 1)
_scores_3x4, _scores_3x1 = make_products(3, 4), make_products(3, 1)
_scores_2x4, _scores_2x1 = make_products(2, 4), make_products(2, 1)
_scores_1x4, _scores_1x1 = make_products(1, 4), make_products(1, 1)
_mixture_4, _mixture_3, _mixture_2, _mixture_1 = (make_mixture(heads) for heads in (4, 3, 2, 1))


@njit(**FAST)
def inverse_rms(x, first, size, eps):  # type: ignore[no-untyped-def]
    """1 / sqrt(mean of squares + eps) of floats from `first` on."""
    total = _ZERO
    for i in range(size):
        total += x[first + i] * x[first + i]
    return _ONE / np.sqrt(total / np.float32(size) + eps)


@njit(**EXACT)
def _turned(source, first, norm, rope, pairs, size, eps, factor, target):  # type: ignore[no-untyped-def]
    """One head: normed if there is a weight, its first pairs of adjacent channels turned, times a factor."""
    x, y, weight, cos_sin = floats(source), floats(target), floats(norm), floats(rope)
    scale = factor
    if norm:
        scale = factor * inverse_rms(x, first, size, eps)
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
def _place(table, key, page_size, kv_heads, head):  # type: ignore[no-untyped-def]
    """Which of all cached vectors is a head's for the key at a position."""
    page = np.int64(ints(table)[key // page_size])
    return (page * kv_heads + head) * page_size + key % page_size


@njit(**EXACT)
def _rotate_and_write(kind, step, layer, pages, row, head, turned, q):  # type: ignore[no-untyped-def]
    """The row's new key and value go into their slot; its queries, scaled, into q in blocks of up to four heads."""
    apart()
    size, page_size, kv_heads = step[Step.HEAD_SIZE], step[Step.PAGE_SIZE], step[Step.KV_HEADS]
    q_heads, factor = step[Step.Q_HEADS], floats(step[Step.FACTORS])
    group, eps, pairs = q_heads // kv_heads, factor[Factor.NORM_EPS], layer[Layer.ROPE_PAIRS]
    rope = layer[Layer.ROPE] + longs(step[Step.POSITIONS])[row] * pairs * 8
    qkv = step[Step.QKV] + row * (q_heads + 2 * kv_heads) * size * 4
    natural, packed, values = floats(turned), floats(q), (q_heads + kv_heads + head) * size
    slot = longs(pages[Group.SLOTS])[row]
    cached = ((slot // page_size * kv_heads + head) * page_size + slot % page_size) * size * item_size(kind)
    _turned(qkv, (q_heads + head) * size, layer[Layer.K_NORM], rope, pairs, size, eps, _ONE, turned)
    for i in range(size):
        put(kind, layer[Layer.K] + cached, i, natural[i])
        put(kind, layer[Layer.V] + cached, i, floats(qkv)[values + i])
    for member in range(group):
        source = (head * group + member) * size
        _turned(qkv, source, layer[Layer.Q_NORM], rope, pairs, size, eps, factor[Factor.ATTN_SCALE], turned)
        begin, heads = member & ~3, min(4, group - (member & ~3))
        for i in range(size):
            place = begin * size + (i & ~31) * heads + (member - begin) * 32 + lane(kind, i & 31)
            packed[place] = natural[i]


@njit(**EXACT)
def _score_run(kind, step, layer, table, head, key, count, end, q, scores):  # type: ignore[no-untyped-def]
    """Scores of `count` keys from a position on; the values beside them and the next keys are fetched meanwhile."""
    size, page_size, kv_heads = step[Step.HEAD_SIZE], step[Step.PAGE_SIZE], step[Step.KV_HEADS]
    group, line, at = step[Step.Q_HEADS] // kv_heads, size * item_size(kind), 0
    while at < count:
        run = min(count - at, page_size - (key + at) % page_size)
        place = _place(table, key + at, page_size, kv_heads, head) * line
        fetch(layer[Layer.V] + place, run * line)
        following = key + at + run
        if following < end:
            k = layer[Layer.K] + _place(table, following, page_size, kv_heads, head) * line
            fetch(k, min(end - following, page_size, KEYS) * line)
        for begin in range(0, group, 4):
            target = scores + (begin * KEYS + at) * 4
            _score(kind, min(4, group - begin), q + begin * size * 4, size, layer[Layer.K] + place, run, target)
        at += run


@njit(**EXACT)
def _mix_run(kind, step, layer, table, head, key, count, weights, sums):  # type: ignore[no-untyped-def]
    """Adds the weighted values of `count` keys."""
    size, page_size, kv_heads = step[Step.HEAD_SIZE], step[Step.PAGE_SIZE], step[Step.KV_HEADS]
    group, line, at = step[Step.Q_HEADS] // kv_heads, size * item_size(kind), 0
    while at < count:
        run = min(count - at, page_size - (key + at) % page_size)
        v = layer[Layer.V] + _place(table, key + at, page_size, kv_heads, head) * line
        for begin in range(0, group, 4):
            shares = weights + (begin * KEYS + at) * 4
            _mix(kind, min(4, group - begin), v, size, run, shares, sums + begin * size * 4)
        at += run


@njit(**EXACT)
def attend(kind, step, layer, scratch, row, head):  # type: ignore[no-untyped-def]
    """Rotary, the write of k and v, and attention of the query heads of one KV head over one row's pages. The result
    is kept where the next product looks for it; a row without keys gets zeros."""
    apart()
    size, group = step[Step.HEAD_SIZE], step[Step.Q_HEADS] // step[Step.KV_HEADS]
    pages = longs(step[Step.GROUPS] + layer[Layer.GROUP] * len(Group) * 8)
    q = scratch + size * 4
    sums = q + group * size * 4
    scores = sums + group * size * 4
    state = scores + group * KEYS * 4
    _rotate_and_write(kind, step, layer, pages, row, head, scratch, q)

    mixed, best = floats(sums), floats(state)
    for i in range(group * size):
        mixed[i] = _ZERO
    for member in range(group):
        best[2 * member], best[2 * member + 1] = _NONE, _ZERO
    end, window = np.int64(ints(step[Step.KV_LENGTHS])[row]), layer[Layer.WINDOW]
    table = pages[Group.TABLE] + row * pages[Group.PAGES] * 4
    softcap = floats(step[Step.FACTORS])[Factor.SOFTCAP]
    key = max(0, end - window) if window else 0
    while key < end:
        count = min(KEYS, end - key)
        _score_run(kind, step, layer, table, head, key, count, end, q, scores)
        for member in range(group):
            line, values = scores + member * KEYS * 4, sums + member * size * 4
            so_far, total = best[2 * member], best[2 * member + 1]
            so_far, total = _weigh(line, count, softcap, so_far, total, values, size)
            best[2 * member], best[2 * member + 1] = so_far, total
        _mix_run(kind, step, layer, table, head, key, count, scores, sums)
        key += count

    first = block_of(step[Step.BLOCK_ROWS], row)
    block, out = longs(step[Step.BLOCK_ROWS])[first], step[Step.ATTENDED]
    way = way_of(step, longs(layer[Layer.O]))
    width = step[Step.Q_HEADS] * size
    for member in range(group):
        share = _ONE / best[2 * member + 1] if end > 0 else _ZERO
        for i in range(size):
            value = mixed[member * size + lane(kind, i)] * share
            keep(way, out, width, row, first, block, (head * group + member) * size + i, value)
