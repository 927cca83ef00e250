"""Queued copies stay within bounds, and whatever memory the host gives, the same numbers arrive."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from octavo.engine import sending
from octavo.engine.sending import Backlog, host_room, pieces, send

CPU = torch.device("cpu")


class Markers:
    """Stands in for recorded events, and notes which were waited for."""

    def __init__(self) -> None:
        self.made = 0
        self.waited: list[int] = []

    def __call__(self) -> Any:
        number, self.made = self.made, self.made + 1
        waited = self.waited

        class Marker:
            def synchronize(self) -> None:
                waited.append(number)

        return Marker()


def test_the_oldest_copies_are_waited_for_once_more_than_the_limit_is_on_its_way() -> None:
    markers = Markers()
    backlog = Backlog(CPU, 100, markers)
    backlog.add(60)
    backlog.add(40)
    assert markers.waited == []
    backlog.add(30)
    assert markers.waited == [0]
    backlog.add(60)
    assert markers.waited == [0, 1]
    backlog.add(500)  # larger than the limit: alone on its way
    assert markers.waited == [0, 1, 2, 3]


def test_nothing_is_waited_for_where_copies_are_done_at_once() -> None:
    backlog = Backlog(CPU, 1)
    for _ in range(3):
        backlog.add(1 << 40)


@pytest.fixture
def page_locked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """The shapes of what was asked for in page-locked memory, which is given as if there were a device."""
    asked: list[tuple[int, ...]] = []
    empty: Callable[..., torch.Tensor] = torch.empty

    def given(shape: tuple[int, ...], *, dtype: torch.dtype, pin_memory: bool = False) -> torch.Tensor:
        if pin_memory:
            asked.append(shape)
        return empty(shape, dtype=dtype)

    monkeypatch.setattr(sending.torch, "empty", given)
    return asked


def test_room_is_page_locked_where_asked_for_and_not_too_large(
    page_locked: list[tuple[int, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sending, "PINNED_BYTES", 64)
    assert host_room((4, 8), torch.bfloat16, True).shape == (4, 8)
    assert host_room((4, 9), torch.bfloat16, True).shape == (4, 9)
    assert host_room((4, 8), torch.bfloat16, False).dtype == torch.bfloat16
    assert page_locked == [(4, 8)]


def test_room_is_ordinary_memory_where_the_system_has_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    empty = torch.empty

    def refused(shape: tuple[int, ...], *, dtype: torch.dtype, pin_memory: bool = False) -> torch.Tensor:
        if pin_memory:
            raise RuntimeError("CUDA error: out of memory")
        return empty(shape, dtype=dtype)

    monkeypatch.setattr(sending.torch, "empty", refused)
    assert host_room((3,), torch.float32, True).shape == (3,)


@pytest.mark.parametrize(("rows", "row_bytes"), [(1, 1000), (7, 100), (10, 30), (3, 1), (64, 64)])
def test_pieces_cover_every_row_once_and_none_is_larger_than_a_piece(
    rows: int, row_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sending, "PIECE_BYTES", 100)
    runs = pieces(rows, rows * row_bytes)
    assert [row for begin, end in runs for row in range(begin, end)] == list(range(rows))
    assert all(end - begin == 1 or (end - begin) * row_bytes <= 100 for begin, end in runs)


def test_what_stays_on_the_host_is_copied_at_once() -> None:
    target = torch.zeros(3, 2, dtype=torch.bfloat16)
    send(target, torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]))
    assert target.tolist() == [[1, 2], [3, 4], [5, 6]]
