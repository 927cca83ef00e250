import torch

from octavo.kernels.rows import CLOSED, NOT_FINITE, advance, advance_reference, patch, prepare, prepare_reference

PAGE = 4


def state(size, pages=6, engine_rows=12):
    rows = torch.randperm(engine_rows)[:size]
    positions = torch.randint(0, PAGE * pages - 1, (size,))
    caps = torch.where(
        torch.rand(size) < 0.3, torch.zeros(size, dtype=torch.int64), positions + torch.randint(0, 3, (size,))
    )
    table = torch.randint(1, 99, (size, pages), dtype=torch.int32)
    last = torch.randint(0, 500, (engine_rows + 1,))
    return rows, positions, caps, table, last


def test_open_rows_get_their_token_and_slot_and_closed_ones_the_trash_page():
    for size in (1, 3, 8, 11):
        rows, positions, caps, table, last = state(size)
        ids, kv_len, slots = (
            torch.full((size,), -7),
            torch.full((size,), -7, dtype=torch.int32),
            torch.full((size,), -7),
        )
        prepare(last, rows, positions, caps, table, PAGE, ids, kv_len, slots)
        expected = prepare_reference(last, rows, positions, caps, table, PAGE)
        for got, wanted in zip((ids, kv_len, slots), expected, strict=True):
            assert torch.equal(got, wanted)
        closed = positions >= caps
        assert (kv_len[closed] == 0).all()
        assert (slots[closed] < PAGE).all()
        assert (slots[~closed] >= PAGE).all()


def test_a_position_past_the_table_is_read_only_where_the_row_is_closed():
    rows, caps, table, last = (
        torch.tensor([0]),
        torch.tensor([0]),
        torch.ones(1, 2, dtype=torch.int32),
        torch.zeros(2, dtype=torch.int64),
    )
    ids, kv_len, slots = (
        torch.zeros(1, dtype=torch.int64),
        torch.ones(1, dtype=torch.int32),
        torch.ones(1, dtype=torch.int64),
    )
    prepare(last, rows, torch.tensor([1_000_000]), caps, table, PAGE, ids, kv_len, slots)
    assert kv_len.item() == 0
    assert slots.item() == 0


def test_advancing_takes_tokens_closes_ended_rows_and_leaves_closed_ones_alone():
    for size in (1, 3, 8, 11):
        rows, positions, caps, _, last = state(size)
        ids, best = torch.randint(0, 500, (size,)), torch.randn(size)
        best[torch.rand(size) < 0.2] = float("nan")
        best[torch.rand(size) < 0.1] = float("inf")
        stops = torch.full((size, 4), -1)
        stops[::2, 1] = ids[::2]
        ring, turn = torch.full((4, size), -9), torch.tensor([6])
        mine = [part.clone() for part in (last, positions, caps, ring, turn)]
        reference = [part.clone() for part in (last, positions, caps, ring, turn)]
        advance(ids, best, mine[0], rows, mine[1], mine[2], stops, mine[3], mine[4])
        advance_reference(ids, best, reference[0], rows, reference[1], reference[2], stops, reference[3], reference[4])
        for got, wanted in zip(mine, reference, strict=True):
            assert torch.equal(got, wanted)
        closed = positions >= caps
        assert (mine[3][2][closed] == CLOSED).all()
        assert (mine[3][2][~closed & ~best.isfinite()] == NOT_FINITE).all()
        assert torch.equal(mine[1][closed], positions[closed])
        assert (mine[3][[0, 1, 3]] == -9).all()


def test_a_patch_changes_the_places_it_names_and_no_other():
    table = torch.zeros(5, 200, dtype=torch.int32)
    places = torch.randperm(1000)[:700].int()
    patch(table, torch.stack([places, places + 1]))
    expected = torch.zeros(1000, dtype=torch.int32)
    expected[places.long()] = places + 1
    assert torch.equal(table.view(-1), expected)
    patch(table, torch.empty(2, 0, dtype=torch.int32))
