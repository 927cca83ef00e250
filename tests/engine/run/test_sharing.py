import itertools
import random

import numpy as np

from octavo.engine.run.sharing import Span, shared_spans, span_arrays


def table_of(*rows: list[int]) -> tuple[np.ndarray, list[int]]:
    table = np.zeros((len(rows), max(map(len, rows)) + 1), dtype=np.int32)
    for index, row in enumerate(rows):
        table[index, : len(row)] = row
    return table, [len(row) for row in rows]


def test_rows_with_the_same_first_pages_form_a_span_wherever_they_stand():
    table, counts = table_of([1, 2, 3, 10], [7, 8], [1, 2, 3, 11, 12], [1, 2, 3])
    (span,) = shared_spans(table, counts, least_saved=1)
    assert (sorted(span.rows), span.pages, span.saved) == ([0, 2, 3], 3, 6)


def test_the_same_page_at_another_place_is_not_shared():
    table, counts = table_of([1, 2, 3], [4, 2, 3])
    assert shared_spans(table, counts, least_saved=1) == []


def test_pages_that_are_not_full_yet_do_not_count():
    table, _ = table_of([1, 2, 3], [1, 2, 3])
    (span,) = shared_spans(table, [3, 1], least_saved=1)
    assert span.pages == 1
    assert shared_spans(table, [3, 0], least_saved=1) == []


def test_a_short_common_beginning_gives_way_to_long_ones_within():
    """All rows share a system prompt of one page, two groups of them a document each."""
    first = [[1, *range(100, 140), 500 + row] for row in range(3)]
    second = [[1, *range(200, 230), 600 + row] for row in range(4)]
    spans = shared_spans(*table_of(*first, *second, [1, 9]), least_saved=1)
    assert [(sorted(span.rows), span.pages) for span in spans] == [([3, 4, 5, 6], 31), ([0, 1, 2], 41)]
    with_little = [[1, 2, 3, 4, 5 + row // 2, 50 + row] for row in range(4)]
    (span,) = shared_spans(*table_of(*with_little), least_saved=1)
    assert (sorted(span.rows), span.pages) == ([0, 1, 2, 3], 4)


def test_spans_that_save_little_are_left_out_and_the_greatest_kept():
    rows = [[10 * group + page for page in range(group)] for group in range(1, 6) for _ in range(2)]
    spans = shared_spans(*table_of(*rows), least_saved=3, max_spans=2)
    assert [span.pages for span in spans] == [5, 4]


def test_every_choice_is_valid_and_at_least_as_good_as_one_level_of_grouping():
    source = random.Random(5)
    for _ in range(200):
        rows = []
        for _ in range(source.randint(1, 9)):
            parent = source.choice(rows)[: source.randint(0, 8)] if rows and source.random() < 0.7 else []
            rows.append(parent + [source.randint(1, 10**6) for _ in range(source.randint(1, 6))])
        table, counts = table_of(*rows)
        spans = shared_spans(table, counts, least_saved=1, max_spans=100)
        members = list(itertools.chain.from_iterable(span.rows for span in spans))
        assert len(members) == len(set(members))
        for span in spans:
            assert len({tuple(rows[row][: span.pages]) for row in span.rows}) == 1
            assert all(span.pages <= counts[row] for row in span.rows)
        first_pages = {row[0] for row in rows}
        simple = 0
        for page in first_pages:
            group = [row for row in rows if row[0] == page]
            depth = sum(1 for column in zip(*group, strict=False) if len(set(column)) == 1)
            simple += (len(group) - 1) * depth
        assert sum(span.saved for span in spans) >= simple


def test_arrays_name_every_row_once_and_leave_unused_spans_empty():
    arrays = span_arrays([Span((4, 1), 3), Span((0, 5, 2), 2)], rows=7, page_size=16, max_spans=4)
    assert arrays.order.tolist() == [4, 1, 0, 5, 2, 3, 6]
    assert arrays.starts.tolist() == [0, 2, 5, 5, 5]
    assert arrays.shared.tolist() == [32, 48, 32, 0, 48, 32, 0]
    assert {arrays.order.dtype, arrays.starts.dtype, arrays.shared.dtype} == {np.dtype(np.int32)}
    empty = span_arrays([], rows=2, page_size=16)
    assert (empty.order.tolist(), empty.starts.tolist(), empty.shared.tolist()) == ([0, 1], [0] * 9, [0, 0])
