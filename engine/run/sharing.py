"""Which rows of a decode step begin with the same physical pages, so that attention may read those once."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

LEAST_TOKENS = 256  # a shorter prefix is read again from the cache's fast levels for less than a second launch costs


@dataclass(frozen=True, slots=True)
class Sharing:
    """What engine.attention.base.Cascade says, on the host: int32 order [N], starts [S + 1], shared [N] in tokens."""

    order: NDArray[np.int32]
    starts: NDArray[np.int32]
    shared: NDArray[np.int32]


def find_sharing(
    table: NDArray[np.int32], cached_tokens: NDArray[np.int64], page_size: int, max_spans: int
) -> Sharing | None:
    """Spans of rows with a long common beginning, or None if there are none.

    table int32 [N, P]: physical pages of each row; cached_tokens int64 [N]: its tokens before this step. Rows belong
    together if the first LEAST_TOKENS lie in the same pages; a span shares what all of its rows have in common.
    """
    least = -(-LEAST_TOKENS // page_size)
    whole = cached_tokens // page_size
    if len(table) < 2 or table.shape[1] < least:
        return None
    groups: dict[bytes, list[int]] = {}
    for row in np.flatnonzero(whole >= least).tolist():
        groups.setdefault(table[row, :least].tobytes(), []).append(row)
    spans = [rows for rows in groups.values() if len(rows) > 1][:max_spans]
    if not spans:
        return None
    shared = np.zeros(len(table), dtype=np.int32)
    order: list[int] = []
    starts = np.zeros(max_spans + 1, dtype=np.int32)
    for index, rows in enumerate(spans):
        common = int(whole[rows].min())
        differs = (table[rows, :common] != table[rows[0], :common]).any(0)
        if differs.any():
            common = int(differs.argmax())
        shared[rows] = common * page_size
        order += rows
        starts[index + 1] = len(order)
    starts[len(spans) + 1 :] = len(order)
    order += sorted(set(range(len(table))) - set(order))
    return Sharing(np.array(order, dtype=np.int32), starts, shared)
