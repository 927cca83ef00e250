"""Which captured graph a decode step runs in."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("triton", reason="Triton is not installed")
from octavo.engine.run.graphs import OWN_GRAPHS, DecodeGraphs, GraphParts, bucket_of


@pytest.fixture
def graphs() -> DecodeGraphs:
    nothing: list[Any] = [None] * 6
    return DecodeGraphs(GraphParts(*nothing, 256, 1024))


A_GRAPH: Any = object()


def capture(graphs: DecodeGraphs, *sizes: int, kind: Any = "greedy", found: Any = A_GRAPH) -> None:
    graphs._captured.update({(size, kind, False): found for size in sizes})


def test_a_few_rows_run_in_a_graph_of_their_own(graphs: DecodeGraphs) -> None:
    capture(graphs, 32, 64)
    for rows in range(1, OWN_GRAPHS + 1):
        assert graphs._ready_size(bucket_of(rows, 256), "greedy") == bucket_of(rows, 256)


def test_many_rows_run_in_the_next_larger_graph_there_is(graphs: DecodeGraphs) -> None:
    capture(graphs, 64, 128)
    capture(graphs, 48, kind="draw")
    capture(graphs, 56, found=None)  # there was no memory for it
    assert graphs._ready_size(40, "greedy") == 64
    assert graphs._ready_size(64, "greedy") == 64
    assert graphs._ready_size(96, "greedy") == 128
    assert graphs._ready_size(56, "greedy") == 56


def test_the_first_of_many_rows_get_a_graph_with_room_for_more(graphs: DecodeGraphs) -> None:
    assert graphs._ready_size(24, "greedy") == 48
    assert graphs._ready_size(160, "greedy") == 256
    assert graphs._ready_size(256, "greedy") == 256
