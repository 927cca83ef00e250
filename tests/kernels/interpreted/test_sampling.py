import torch

from octavo.engine.sample import noise
from octavo.kernels.sampling import argmax, argmax_reference, sample, sample_reference

NAN = float("nan")


def keys(rows: int) -> torch.Tensor:
    return torch.tensor([noise.position_key(noise.stream(987654321012345 + row), row * 11) for row in range(rows)])


def test_argmax_takes_the_lowest_of_equal_scores_in_any_block():
    scores = torch.randn(4, 5001)
    scores[0, [17, 4100, 5000]] = 9.0
    scores[1, [2047, 2048]] = 9.0
    scores[2, 5000] = 9.0
    scores[3] = -torch.inf
    assert argmax(scores).tolist() == argmax_reference(scores).tolist() == [17, 2047, 5000, 0]


def test_nan_never_wins_and_all_nan_still_gives_an_id():
    scores = torch.randn(3, 3000)
    scores[0, 5], scores[1], scores[2, 2900] = NAN, NAN, torch.inf
    expected = [scores[0].nan_to_num(-1e9).argmax().item(), 0, 2900]
    assert argmax(scores).tolist() == argmax_reference(scores).tolist() == expected


def test_a_small_vocabulary_a_view_and_no_rows():
    scores = torch.randn(5, 40)
    assert torch.equal(argmax(scores[:, 3:10]), scores[:, 3:10].argmax(-1))
    assert argmax(scores[:0]).shape == (0,)


def test_a_draw_uses_the_samplers_noise():
    scores, temperature = torch.randn(6, 4500) * 3, torch.tensor([0.3, 0.7, 1.0, 1.0, 2.0, 5.0])
    weights = torch.log_softmax(scores / temperature[:, None], -1)
    expected = (weights - noise.variates(keys(6), torch.arange(4500)).log()).argmax(-1)
    assert torch.equal(sample_reference(scores, temperature, keys(6)), expected)
    assert torch.equal(sample(scores, temperature, keys(6)), expected)


def test_temperature_zero_is_the_highest_score_beside_rows_that_draw():
    scores = torch.randn(3, 2500)
    drawn = sample(scores, torch.tensor([0.0, 1.0, 0.0]), keys(3))
    assert drawn[[0, 2]].tolist() == scores[[0, 2]].argmax(-1).tolist()
    assert drawn[1] == sample_reference(scores, torch.tensor([0.0, 1.0, 0.0]), keys(3))[1]


def test_draws_follow_the_softmax():
    rows = 4000
    scores = torch.tensor([0.0, 1.0, 2.0, -torch.inf]).expand(rows, 4).contiguous()
    words = noise.position_keys(
        torch.tensor([noise.stream(5)]).expand(rows, 2).contiguous(), torch.arange(rows)
    )  # one stream, many positions
    drawn = sample_reference(scores, torch.ones(rows), words)
    assert torch.equal(sample(scores[:50], torch.ones(50), words[:50]), drawn[:50])
    expected = torch.softmax(scores[0], -1)[:3] * rows
    counts = torch.bincount(drawn, minlength=4)
    assert counts[3] == 0
    assert ((counts[:3] - expected) ** 2 / expected).sum() < 13.8  # chi-square, 2 degrees of freedom, p = 0.001
