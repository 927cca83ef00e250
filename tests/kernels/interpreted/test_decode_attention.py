"""Decode attention that takes the newest tokens as they are projected, and rows that share pages."""

import pytest
import torch
from decode_cases import attend_decode, hide_prefixes, share_prefixes, with_new_tokens
from kernel_cases import NAN, assert_as_good_as_torch, paged_batch

from octavo.kernels.attention_rope import NewTokens
from octavo.kernels.decode_attention import MAX_RUNS, decode_work
from octavo.kernels.paged_attention import AttentionShape

PAGE = 16


def shape_of(heads: tuple[int, int], dim: int, **more: object) -> AttentionShape:
    return AttentionShape(*heads, dim, dim, dim**-0.5, **more)


@pytest.mark.parametrize(
    ("shape", "rotary", "norm", "dtype"),
    [
        (shape_of((3, 1), 64), 64, False, torch.float32),
        (shape_of((3, 1), 64), 64, False, torch.float16),
        (shape_of((2, 2), 80), 32, True, torch.float32),
        (shape_of((2, 2), 80), 32, True, torch.float16),
        (shape_of((3, 1), 32, window=24), 32, True, torch.float16),
        (shape_of((65, 1), 16), 16, False, torch.float16),  # more heads than a tile holds
        (shape_of((4, 2), 64, softcap=5.0), 64, False, torch.float16),
    ],
)
def test_the_newest_token_is_rotated_attended_and_stored_in_the_same_launch(shape, rotary, norm, dtype):
    batch = paged_batch([(0, 1), (1, 1), (17, 1), (130, 1), (64, 1)], shape, PAGE, dtype)
    new, written = with_new_tokens(batch, shape, rotary, norm)
    exact, exact_lse = written.reference(shape)
    torchs, _ = written.reference(shape, dtype)
    before = batch.k_pages.clone(), batch.v_pages.clone()
    for programs in (1, 12):
        batch.k_pages, batch.v_pages = (plane.clone() for plane in before)
        out, lse = attend_decode(batch, shape, programs, new)
        # the rounding of a rotated channel may fall either way
        assert_as_good_as_torch(out, torchs, exact, factor=2.0 if dtype == torch.float16 else 4.0)
        torch.testing.assert_close(lse.double(), exact_lse, rtol=5e-3, atol=5e-3)
        for plane, wanted in ((batch.k_pages, written.k_pages), (batch.v_pages, written.v_pages)):
            torch.testing.assert_close(plane[1:], wanted[1:], rtol=2e-3, atol=1e-5, equal_nan=True)


@pytest.mark.parametrize("new", [False, True])
def test_a_row_without_tokens_stores_nothing_and_yields_nothing(new):
    shape = shape_of((2, 2), 32)
    batch = paged_batch([(0, 1), (0, 1)], shape, PAGE, torch.float16)
    tokens = torch.full((2, 2, 32), NAN, dtype=torch.float16)
    given = NewTokens(tokens, tokens, torch.ones(8, 32), torch.zeros(2, dtype=torch.int64)) if new else None
    before = batch.k_pages.clone()
    out, lse = attend_decode(batch, shape, new=given)
    assert not out.any()
    assert lse.isneginf().all()
    torch.testing.assert_close(batch.k_pages, before, equal_nan=True)


@pytest.mark.parametrize(("heads", "softcap"), [((3, 1), None), ((4, 2), 8.0)])
def test_pages_that_rows_share_are_read_once_for_all_of_them(heads, softcap):
    shape = shape_of(heads, 32, softcap=softcap)
    batch = paged_batch([(330, 1), (0, 1), (300, 1), (40, 1), (291, 1), (100, 1), (97, 1)], shape, PAGE, torch.float16)
    prefixes = share_prefixes(batch, [([4, 0, 2], 288), ([5, 6], 96)], capacity=4)
    exact, exact_lse = batch.reference(shape)
    torchs, _ = batch.reference(shape, torch.float16)
    hide_prefixes(batch, prefixes)
    for programs in (1, 16):
        out, lse = attend_decode(batch, shape, programs, prefixes=prefixes)
        assert_as_good_as_torch(out, torchs, exact)
        assert torch.equal(lse.isneginf(), exact_lse.isneginf())
        torch.testing.assert_close(lse.double(), exact_lse, rtol=5e-3, atol=5e-3)


def test_more_rows_than_a_tile_holds_share_a_prefix_and_bring_their_newest_tokens():
    shape = shape_of((4, 1), 16)
    batch = paged_batch([(33 + row % 3, 1) for row in range(20)], shape, PAGE, torch.float16)
    prefixes = share_prefixes(batch, [(list(range(1, 20)), 32)], capacity=1)
    new, written = with_new_tokens(batch, shape, 16, False)
    exact, _ = written.reference(shape)
    torchs, _ = written.reference(shape, torch.float16)
    hide_prefixes(batch, prefixes)
    out, _ = attend_decode(batch, shape, prefixes=prefixes, new=new)
    assert_as_good_as_torch(out, torchs, exact)


def test_spans_may_be_empty_and_then_nothing_is_shared():
    shape = shape_of((2, 1), 32)
    batch = paged_batch([(65, 1), (3, 1)], shape, PAGE, torch.float16)
    prefixes = share_prefixes(batch, [], capacity=3)
    exact, _ = batch.reference(shape)
    torchs, _ = batch.reference(shape, torch.float16)
    out, _ = attend_decode(batch, shape, prefixes=prefixes)
    assert_as_good_as_torch(out, torchs, exact)


@pytest.mark.parametrize("wanted", [1, 40, 1000])
def test_a_schedule_covers_every_key_once_within_its_entries(wanted):
    shape = shape_of((1, 1), 64)
    lengths = torch.randint(0, 4000, (33,), dtype=torch.int32)
    positions = (lengths - 1).clamp(min=0).long()
    work = decode_work(shape, torch.float16, positions, lengths, rows=33, programs=wanted)
    assert work.schedule.shape[0] == 33 + wanted
    used = work.schedule[work.schedule[:, 0] >= 0].tolist()
    for row, length in enumerate(lengths.tolist()):
        runs = [entry for entry in used if entry[0] == row]
        assert [entry[4] for entry in runs] == list(range(len(runs)))
        assert {entry[5] for entry in runs} == {len(runs)}
        assert [entry[1] for entry in runs] == [0, *(entry[2] for entry in runs[:-1])]
        assert runs[-1][2] == length
        assert used[runs[0][6]] == runs[0]


def test_few_rows_are_split_many_rows_are_not_and_windows_need_fewer_runs():
    def runs(rows: int, keys: int, **more: object) -> int:
        lengths = torch.full((rows,), keys, dtype=torch.int32)
        shape = shape_of((32, 8), 128, **more)
        work = decode_work(shape, torch.float16, lengths.long() - 1, lengths, rows=rows, programs=264)
        return int((work.schedule[:, 0] == 0).sum())

    assert runs(1, 32768) * 8 > 0.9 * 264
    assert runs(1, 60) == 1
    assert runs(1, 512) == 8
    assert runs(8, 512) == 4
    assert runs(40, 32768) == 1
    assert runs(1, 32768, window=512) <= 9


def test_no_row_has_more_runs_than_one_program_can_weigh_in_time():
    lengths = torch.tensor([500_000, 70], dtype=torch.int32)
    work = decode_work(shape_of((2, 1), 64), torch.float16, lengths.long() - 1, lengths, rows=2, programs=5000)
    assert int((work.schedule[:, 0] == 0).sum()) == MAX_RUNS
