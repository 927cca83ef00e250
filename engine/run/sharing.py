"""Which rows begin with the same physical pages, so that attention may read those once for all of them.

The prefix tree gives requests with the same beginning the same pages; whoever keeps the rows' page tables on the host
finds the spans here when rows join or leave. Between that nothing changes: rows grow by pages of their own.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

MAX_SPANS = 8
LEAST_SAVED_PAGES = 64  # fewer page reads saved than this do not pay for the launch that reads the shared ones


@dataclass(frozen=True, slots=True)
class Span:
    """Rows whose tables begin with the same `pages` pages."""

    rows: tuple[int, ...]
    pages: int

    @property
    def saved(self) -> int:
        """Page reads that are not repeated."""
        return (len(self.rows) - 1) * self.pages


@dataclass(frozen=True, slots=True)
class SpanArrays:
    """Spans in the form of attention's `Cascade`, int32: order [rows], starts [max_spans + 1], shared [rows]."""

    order: NDArray[np.int32]
    starts: NDArray[np.int32]
    shared: NDArray[np.int32]


def shared_spans(
    table: NDArray[np.int32],
    whole_pages: Sequence[int],
    *,
    least_saved: int = LEAST_SAVED_PAGES,
    max_spans: int = MAX_SPANS,
) -> list[Span]:
    """The spans that save most, none overlapping, the greatest first.

    table int32 [R, P]; of row r only the first whole_pages[r] entries count: pages full before the step.
    """
    if len(np.unique(table[:, :1])) == len(table):
        return []  # as with most batches, no two rows begin with the same page
    keys = [row[:count].astype(">i4").tobytes() for row, count in zip(table, whole_pages, strict=True)]
    order = sorted(range(len(keys)), key=keys.__getitem__)
    common = [0]  # [i]: pages that the i-th row in this order shares with the one before it
    for before, row in itertools.pairwise(order):
        count = min(whole_pages[before], whole_pages[row])
        differ = np.flatnonzero(table[before, :count] != table[row, :count])
        common.append(int(differ[0]) if len(differ) else count)
    spans = [span for span in _best(order, common, 0, len(order)) if span.saved >= max(least_saved, 1)]
    return sorted(spans, key=lambda span: -span.saved)[:max_spans]


def span_arrays(spans: Sequence[Span], rows: int, page_size: int, max_spans: int = MAX_SPANS) -> SpanArrays:
    """What is uploaded for a step of so many rows."""
    members = [row for span in spans for row in span.rows]
    rest = sorted(set(range(rows)) - set(members))
    ends = np.cumsum([len(span.rows) for span in spans] + [0] * (max_spans - len(spans)))
    shared = np.zeros(rows, dtype=np.int32)
    for span in spans:
        shared[list(span.rows)] = span.pages * page_size
    return SpanArrays(
        order=np.array(members + rest, dtype=np.int32),
        starts=np.concatenate(([0], ends)).astype(np.int32),
        shared=shared,
    )


def _best(order: Sequence[int], common: Sequence[int], begin: int, end: int) -> list[Span]:
    """Spans of rows order[begin:end]: all of them as one, or parts of them that share more, whichever saves more."""
    if end - begin < 2:
        return []
    shortest = min(common[begin + 1 : end])
    cuts = [begin, *(at for at in range(begin + 1, end) if common[at] == shortest), end]
    parts = [span for left, right in itertools.pairwise(cuts) for span in _best(order, common, left, right)]
    whole = Span(tuple(order[begin:end]), shortest)
    return [whole] if whole.saved >= sum(span.saved for span in parts) else parts
