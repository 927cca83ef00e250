"""Where every page is at one moment, in few cells: what a picture of the memory is drawn from."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from octavo.engine.attention.base import TRASH_PAGE
from octavo.engine.memory.pool import PagePool
from octavo.engine.request import Request

NAMED_OWNERS = 8  # of a cell


@dataclass(frozen=True, slots=True)
class PageCensus:
    """Pages of all pools in order, cut into cells of `pages_per_cell` (the last may have fewer).

    Each cell is (used by running requests, of these by more than one, cached for later); the rest of it is free.
    `owners` are the ids of the requests in a cell, the first few.
    """

    total: int
    pages_per_cell: int
    cells: list[tuple[int, int, int]]
    owners: list[tuple[str, ...]]


def take_census(pools: Sequence[PagePool], running: Iterable[Request], most_cells: int) -> PageCensus:
    """Counts in time proportional to the pages in use, and a fast look at the others."""
    starts = [0]
    for pool in pools:
        starts.append(starts[-1] + pool.total)
    total = starts[-1]
    size = max(1, -(-total // max(1, most_cells)))
    count = -(-total // size)
    holders: dict[int, int] = {}
    owners: list[list[str]] = [[] for _ in range(count)]
    for request in running:
        for group, pages in enumerate(request.pages):
            for page in pages:
                if page == TRASH_PAGE:
                    continue
                place = starts[group] + page - 1
                holders[place] = holders.get(place, 0) + 1
                names = owners[place // size]
                if len(names) < NAMED_OWNERS and (not names or names[-1] != request.id):
                    names.append(request.id)
    taken = [0] * count
    for start, pool in zip(starts, pools, strict=False):
        pool.count_taken(taken, start, size)
    used, shared = [0] * count, [0] * count
    for place, held in holders.items():
        used[place // size] += 1
        shared[place // size] += held > 1
    cells = [(used[at], shared[at], max(0, taken[at] - used[at])) for at in range(count)]
    return PageCensus(total, size, cells, [tuple(names) for names in owners])
