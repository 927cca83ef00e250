import pytest
import torch

from octavo.kernels.head_argmax import head_argmax, head_argmax_reference
from octavo.kernels.skinny_linear import DotTile, GemvTile


@pytest.mark.parametrize("tile", [GemvTile(4, 64, 4), DotTile(16, 16, 32, 2, 4), None])
@pytest.mark.parametrize(("rows", "vocabulary"), [(1, 16), (2, 77), (1, 200)])
def test_the_best_id_and_its_score_are_those_of_the_whole_product(tile, rows, vocabulary):
    hidden, weight, bias = torch.randn(rows, 24), torch.randn(vocabulary, 24), torch.randn(vocabulary)
    best, ids = head_argmax(hidden, weight, bias, tile)
    expected, expected_ids = head_argmax_reference(hidden, weight, bias)
    assert torch.equal(ids, expected_ids)
    torch.testing.assert_close(best, expected)


@pytest.mark.parametrize("tile", [GemvTile(4, 64, 4), DotTile(16, 16, 32, 2, 4)])
def test_the_lowest_of_equal_ids_wins_within_and_across_programs(tile):
    hidden, weight = torch.ones(1, 16), torch.zeros(60, 16)
    for places in ((58, 59), (17, 40), (3, 2)):
        weight.zero_()
        weight[list(places)] = 1.0
        assert head_argmax(hidden, weight, tile=tile)[1].item() == min(places)


@pytest.mark.parametrize("tile", [GemvTile(4, 64, 4), DotTile(16, 16, 32, 2, 4)])
def test_a_row_with_nan_says_so_and_leaves_the_others_alone(tile):
    hidden, weight = torch.randn(2, 24), torch.randn(50, 24)
    expected = head_argmax_reference(hidden, weight)
    hidden[0, 3] = float("nan")
    best, ids = head_argmax(hidden, weight, tile=tile)
    assert best[0].isnan()
    assert 0 <= ids[0] < 50
    assert ids[1] == expected[1][1]
