"""The prefix tree against a brute-force dictionary of every page-aligned beginning it was offered."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.engine.memory import PagePool, RadixTree

SIZE = 4


def insert(tree: RadixTree, tokens: list[int]) -> None:
    """A request computes all of `tokens` and ends."""
    match = tree.match(tokens)
    pool = tree.pools[0]
    pages = list(match.pages[0])
    pages += pool.allocate(-(-len(tokens) // SIZE) - len(pages))
    tree.finish(match.handle, tokens, [pages], len(tokens))


def make(pages: int = 64) -> RadixTree:
    return RadixTree([PagePool(pages + 1)], SIZE)


def test_a_match_leaves_at_least_one_token_to_compute() -> None:
    tree = make()
    insert(tree, list(range(8)))
    assert tree.peek(list(range(8))) == 4
    assert tree.peek(list(range(9))) == 8


def test_a_node_is_split_where_two_prompts_part() -> None:
    tree = make()
    insert(tree, [1] * 16)
    insert(tree, [1] * 8 + [2] * 8)
    tree.check_integrity()
    assert tree.peek([1] * 16 + [0]) == 16
    assert tree.peek([1] * 8 + [2] * 8 + [0]) == 16
    assert tree.pools[0].total - tree.pools[0].num_free == 6


def test_a_long_reply_grows_one_node_and_another_chat_may_still_part_from_it() -> None:
    tree = make()
    pool = tree.pools[0]
    tokens = list(range(40))
    pages = pool.allocate(10)
    handle = tree.extend(None, tokens, [pages], 8)
    for certain in (12, 16, 29, 40):
        handle = tree.extend(handle, tokens, [pages], certain)
        tree.check_integrity()
    assert len(list(tree._nodes())) == 1
    insert(tree, [*range(20), 90, 91, 92, 93])
    tree.check_integrity()
    more = [*tokens, 50, 51, 52, 53]
    pages += pool.allocate(1)
    handle = tree.extend(handle, more, [pages], 44)
    tree.check_integrity()
    tree.finish(handle, more, [pages], 44)
    tree.check_integrity()
    assert tree.peek([*more, 0]) == 44
    assert tree.peek([*range(20), 90, 91, 92, 93, 0]) == 24


def test_a_locked_path_survives_eviction_and_an_unlocked_leaf_does_not() -> None:
    tree = make(16)
    insert(tree, [1] * 16)
    insert(tree, [2] * 16)
    held = tree.match([1] * 17)
    assert tree.evict(0, 100) == 4
    assert tree.peek([1] * 17) == 16
    assert tree.peek([2] * 17) == 0
    tree.finish(held.handle, [1] * 17, held.pages, 0)
    assert tree.evict(0, 100) == 4
    assert tree.pools[0].num_free == 16


def test_the_least_recently_used_leaf_goes_first_from_its_tail() -> None:
    tree = make()
    insert(tree, [1] * 16)
    insert(tree, [2] * 16)
    insert(tree, [1] * 17)
    assert tree.evict(0, 2) == 2
    assert tree.peek([2] * 17) == 8
    assert tree.peek([1] * 17) == 16


def test_a_page_computed_twice_is_kept_once() -> None:
    tree = make()
    pool = tree.pools[0]
    first, second = pool.allocate(2), pool.allocate(2)
    tokens = list(range(8))
    handle = tree.extend(None, tokens, [first], 8)
    other = tree.extend(None, tokens, [second], 8)
    tree.finish(handle, tokens, [first], 8)
    tree.finish(other, tokens, [second], 8)
    assert pool.num_free == pool.total - 2
    tree.check_integrity()


def test_a_windowed_group_matches_only_where_its_window_is_whole() -> None:
    pools = [PagePool(33), PagePool(33)]
    tree = RadixTree(pools, SIZE, [None, 6])
    tokens = list(range(16))
    full, windowed = pools[0].allocate(4), pools[1].allocate(4)
    pools[1].release(windowed[:2])
    tree.finish(None, tokens, [full, [0, 0, *windowed[2:]]], 16)
    assert tree.peek([*tokens, 99]) == 16
    assert tree.peek([*tokens[:12], 99]) == 0, "page 2 alone holds 4 of the 5 tokens that position 12 sees"
    match = tree.match([*tokens, 99])
    assert match.pages[1][:2] == [0, 0]
    tree.finish(match.handle, tokens, match.pages, 0)
    tree.check_integrity()


def test_pages_a_window_has_passed_can_be_taken_from_a_running_chat() -> None:
    pools = [PagePool(33), PagePool(5)]
    tree = RadixTree(pools, SIZE, [None, 4])
    tokens = list(range(16))
    full, windowed = pools[0].allocate(4), pools[1].allocate(4)
    handle = tree.extend(None, tokens, [full, windowed], 16)
    pools[1].release(windowed[:3])
    held = [0, 0, 0, windowed[3]]
    assert pools[1].num_free == 0
    assert tree.num_evictable(1) == 3
    assert tree.evict(1, 2) == 2
    tree.check_integrity()
    tree.finish(handle, tokens, [full, held], 16)
    tree.check_integrity()


@settings(max_examples=80, deadline=None)
@given(
    st.lists(
        st.tuples(st.lists(st.integers(0, 2), min_size=1, max_size=24), st.booleans(), st.integers(0, 5)),
        min_size=1,
        max_size=25,
    )
)
def test_matches_are_the_longest_common_beginnings(history: list[tuple[list[int], bool, int]]) -> None:
    tree = make(400)
    known: set[tuple[int, ...]] = set()
    held: list[tuple[object, list[int], list[list[int]]]] = []
    evicted = False
    for tokens, hold, evict in history:
        usable = (len(tokens) - 1) // SIZE * SIZE
        best = max((n for n in range(0, usable + 1, SIZE) if n == 0 or tuple(tokens[:n]) in known), default=0)
        assert tree.peek(tokens) == best or (evicted and tree.peek(tokens) < best)
        insert(tree, tokens)
        known.update(tuple(tokens[:n]) for n in range(SIZE, len(tokens) + 1, SIZE))
        if hold:
            match = tree.match(tokens)
            held.append((match.handle, tokens, match.pages))
        if evict == 5:
            tree.evict(0, 3)
            evicted = True
        tree.check_integrity()
        for _, held_tokens, pages in held:
            assert tree.peek(held_tokens) >= len(pages[0]) * SIZE
    for handle, tokens, pages in held:
        tree.finish(handle, tokens, pages, 0)
    tree.clear()
    tree.check_integrity()
    assert tree.pools[0].num_free == tree.pools[0].total


def test_the_pool_notices_a_page_that_is_released_twice() -> None:
    pool = PagePool(4)
    (page,) = pool.allocate(1)
    pool.release([page])
    with pytest.raises(IndexError):
        pool.release([page])
    with pytest.raises(RuntimeError):
        pool.check_integrity({1: 1})
