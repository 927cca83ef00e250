"""The picture of the pages: every page is in one cell, and counted as what it is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from octavo.engine.memory.census import take_census
from octavo.engine.memory.pool import PagePool
from octavo.engine.request import Request, SamplingParams


def request(name: str, pages: list[int]) -> Request:
    made = Request(name, (1,), SamplingParams(), 0.0)
    made.pages = [pages]
    return made


def test_used_shared_cached_and_free_pages_are_told_apart() -> None:
    pool = PagePool(13)  # 12 pages beside the trash page
    first, second = pool.allocate(3), pool.allocate(2)
    pool.share(first[:1])  # the second request has it too
    cached = pool.allocate(2)
    census = take_census([pool], [request("a", first), request("b", [first[0], *second])], most_cells=100)
    assert (census.total, census.pages_per_cell, len(census.cells)) == (12, 1, 12)
    expected = {page: (1, int(page == first[0]), 0) for page in (*first, *second)} | dict.fromkeys(cached, (0, 0, 1))
    assert {at + 1: cell for at, cell in enumerate(census.cells) if any(cell)} == expected
    assert census.owners[first[0] - 1] == ("a", "b")
    assert census.owners[cached[0] - 1] == ()


@pytest.mark.parametrize("most", [1, 2, 3, 5, 7, 16, 1000])
def test_cells_add_up_however_coarse_the_picture_is(most: int) -> None:
    pools = [PagePool(18), PagePool(8)]  # two groups: their pages follow each other
    held = [pools[0].allocate(9), pools[1].allocate(4)]
    cached = [pools[0].allocate(2), pools[1].allocate(1)]
    made = request("a", held[0])
    made.pages = held
    census = take_census(pools, [made], most)
    assert len(census.cells) <= most
    assert len(census.cells) == -(-census.total // census.pages_per_cell)
    assert sum(used for used, _, _ in census.cells) == 13
    assert sum(kept for _, _, kept in census.cells) == sum(map(len, cached))
    for used, shared, kept in census.cells:
        assert shared <= used
        assert used + kept <= census.pages_per_cell


def test_a_hole_where_a_window_has_passed_is_no_page() -> None:
    pool = PagePool(5)
    page = pool.allocate(1)[0]
    assert sum(used for used, _, _ in take_census([pool], [request("a", [0, 0, page])], 10).cells) == 1


def test_the_engine_counts_while_it_works_and_declines_when_closed(harness: Callable[..., Any]) -> None:
    from octavo.engine.config import EngineConfig
    from octavo.engine.core import EngineCore
    from octavo.engine.engine import Engine, EngineParts, ModelInfo

    h = harness(cache="tree", chunk=16, max_running=2)
    info = ModelInfo("fake", "Fake", "none", "none", "CPU", 128, 97, 0, 0)
    engine = Engine(EngineParts(lambda emit: EngineCore(h.core.scheduler, h.runner, emit), EngineConfig(), info, 4, 2))
    try:
        list(engine.submit(list(range(1, 30)), SamplingParams(max_tokens=4)))
        census = engine.census(64)
        assert census is not None
        assert sum(kept for _, _, kept in census.cells) == engine.status().pages["cached"] > 0
    finally:
        engine.close()
    assert engine.census(64) is None
