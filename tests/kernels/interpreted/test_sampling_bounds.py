import torch

from octavo.engine.sample import noise
from octavo.kernels.sampling_bounds import LEAST, bounds, bounds_reference


def settings(rows: int) -> tuple[torch.Tensor, ...]:
    """temperature, min_weight, top_k, top_p, all of them different for neighbours."""
    temperature = torch.tensor([0.3, 0.7, 1.0, 2.0, 5.0])
    min_weight = torch.tensor([0.0, 0.0, 0.02])
    top_k = torch.tensor([0, 1, 40, 0, 7, 10**6, 2999])
    top_p = torch.tensor([1.0, 0.95, 0.5, 0.9, 0.999, 1e-6])
    return tuple(part.repeat(rows)[:rows] for part in (temperature, min_weight, top_k, top_p))


def check(scores: torch.Tensor) -> None:
    arguments = (scores, scores.amax(-1), *settings(len(scores)))
    torch.testing.assert_close(bounds(*arguments), bounds_reference(*arguments), rtol=1e-6, atol=0)


def test_the_least_weight_is_the_one_that_sorting_finds():
    torch.manual_seed(0)
    check(torch.randn(30, 2500) * 3)


def test_equal_scores_stand_or_fall_together():
    torch.manual_seed(1)
    check((torch.randn(30, 900) * 4).round())
    check(torch.zeros(6, 300))


def test_banned_tokens_and_rows_of_a_view_do_not_count():
    torch.manual_seed(2)
    scores = torch.randn(12, 700) * 2
    scores[:, ::3] = -torch.inf
    check(scores[:, 5:600])


def test_a_broken_row_leaves_its_neighbours_alone():
    torch.manual_seed(3)
    scores = torch.randn(12, 600)
    arguments = settings(12)
    expected = bounds(scores, scores.amax(-1), *arguments)
    scores[4, 7], scores[5, 8], scores[6] = torch.nan, torch.inf, -torch.inf
    found = bounds(scores, scores.amax(-1), *arguments)
    sound = [row for row in range(12) if row not in (4, 5, 6)]
    assert torch.equal(found[sound], expected[sound])


def test_the_floor_is_the_noises_own():
    assert LEAST.value == noise.NEGLIGIBLE
    assert bounds(torch.zeros(0, 10), *(torch.zeros(0) for _ in range(5))).shape == (0,)
