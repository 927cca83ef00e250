"""News for every tab: the newest value of each name, in the order it came, to whoever has not seen it."""

from __future__ import annotations

from octavo.app.ui.board import Board


def test_a_tab_gets_what_it_has_not_seen_and_the_newest_of_it() -> None:
    board = Board()
    board.put("a", 1)
    board.put("b", 2)
    seen = board.version
    board.put("a", 3)
    board.put("c", {"x": 4})
    assert [(m["name"], m["value"]) for m in board.since(seen)] == [("a", 3), ("c", {"x": 4})]
    assert [(m["name"], m["value"]) for m in board.since(0)] == [("b", 2), ("a", 3), ("c", {"x": 4})]
    assert board.since(board.version) == []
    assert (board.get("a"), board.get("z")) == (3, None)


def test_news_that_is_none_disturbs_nobody() -> None:
    board, told = Board(), []
    unwatch = board.watch(lambda: told.append(board.version))
    board.put("a", [1])
    board.put("a", [1])
    assert told == [1]
    unwatch()
    board.put("a", [2])
    assert told == [1]
