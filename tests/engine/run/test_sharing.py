"""Rows that begin with the same pages."""

from __future__ import annotations

import numpy as np

from octavo.engine.run.sharing import LEAST_TOKENS, find_sharing

PAGE = 16
LEAST = LEAST_TOKENS // PAGE


def rows(*tables: list[int], tokens: list[int] | None = None) -> tuple[np.ndarray, np.ndarray]:
    width = max(map(len, tables))
    table = np.array([[*row, *[0] * (width - len(row))] for row in tables], dtype=np.int32)
    return table, np.array(tokens or [len(row) * PAGE for row in tables], dtype=np.int64)


def test_rows_of_one_prefix_form_a_span_and_share_what_all_have_in_common() -> None:
    prefix = list(range(1, LEAST + 5))
    table, cached = rows([*prefix, 100, 101], [200] * (LEAST + 6), [*prefix, 102, 103], [*prefix[:-1], 104, 105, 106])
    found = find_sharing(table, cached, PAGE, 4)
    assert found is not None
    assert found.order.tolist() == [0, 2, 3, 1]
    assert found.starts.tolist() == [0, 3, 3, 3, 3]
    assert found.shared.tolist() == [(LEAST + 3) * PAGE, 0, (LEAST + 3) * PAGE, (LEAST + 3) * PAGE]


def test_two_prefixes_are_two_spans() -> None:
    a, b = list(range(1, LEAST + 1)), list(range(100, LEAST + 103))
    table, cached = rows([*a, 50, 51, 52], [*b, 60], [*a, 53, 54, 55], [*b, 61])
    found = find_sharing(table, cached, PAGE, 2)
    assert found is not None
    assert found.order.tolist() == [0, 2, 1, 3]
    assert found.starts.tolist() == [0, 2, 4]
    assert found.shared.tolist() == [LEAST * PAGE, (LEAST + 3) * PAGE] * 2


def test_a_page_that_is_not_full_yet_is_not_shared() -> None:
    prefix = list(range(1, LEAST + 3))
    table, cached = rows(prefix, prefix, tokens=[len(prefix) * PAGE, len(prefix) * PAGE - 1])
    found = find_sharing(table, cached, PAGE, 1)
    assert found is not None
    assert found.shared.tolist() == [(LEAST + 1) * PAGE] * 2


def test_short_or_single_prefixes_are_none() -> None:
    short = list(range(1, LEAST))
    assert find_sharing(*rows([*short, 50], [*short, 51]), PAGE, 4) is None
    assert find_sharing(*rows(list(range(1, 60))), PAGE, 4) is None
    long = list(range(1, LEAST + 4))
    assert find_sharing(*rows(long, [9] * len(long)), PAGE, 4) is None
