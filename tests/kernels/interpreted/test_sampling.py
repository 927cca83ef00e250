import math

import torch

from octavo.engine.sample import noise
from octavo.engine.sample.draw import Filters, draw_numpy
from octavo.kernels.sampling import argmax, argmax_reference, draw, draw_reference

NAN = float("nan")


def test_argmax_takes_the_lowest_of_equal_scores_in_any_block():
    scores = torch.randn(4, 5001)
    scores[0, [17, 4100, 5000]] = 9.0
    scores[1, [2047, 2048]] = 9.0
    scores[2, 5000] = 9.0
    scores[3] = -torch.inf
    best, ids = argmax(scores)
    assert ids.tolist() == argmax_reference(scores)[1].tolist() == [17, 2047, 5000, 0]
    assert best.tolist() == [9.0, 9.0, 9.0, -math.inf]


def test_a_row_with_nan_says_so_and_gives_an_id_of_the_row():
    scores = torch.randn(4, 3000)
    scores[0, 5], scores[1], scores[2, 2999] = NAN, NAN, torch.inf
    best, ids = argmax(scores)
    assert best.isnan().tolist() == argmax_reference(scores)[0].isnan().tolist() == [True, True, False, False]
    assert ((ids >= 0) & (ids < 3000)).all()
    assert ids[2:].tolist() == [2999, scores[3].argmax().item()]
    assert best[2] == torch.inf


def test_a_small_vocabulary_a_view_and_no_rows():
    scores = torch.randn(5, 40)
    assert torch.equal(argmax(scores[:, 3:10])[1], scores[:, 3:10].argmax(-1))
    assert argmax(scores[:0])[1].shape == (0,)


def test_a_draw_is_the_one_the_cpu_makes():
    rows, size = 6, 4500
    scores = torch.randn(rows, size) * 3
    streams, positions = [noise.stream(987654321012345 + row) for row in range(rows)], torch.arange(rows) * 12345
    temperature = torch.tensor([0.3, 0.7, 1.0, 1.0, 2.0, 5.0])
    min_weight = torch.tensor([0.0, 0.0, 0.1, 0.9, 0.05, 1.0])
    expected = [
        draw_numpy(
            scores[row].numpy(),
            scores[row].max().item(),
            Filters(temperature[row].item(), min_p=min_weight[row].item()),
            noise.position_key(streams[row], row * 12345),
        )
        for row in range(rows)
    ]
    arguments = scores, scores.amax(-1), temperature, min_weight, torch.tensor(streams), positions
    assert draw_reference(*arguments).tolist() == expected
    assert draw(*arguments).tolist() == expected


def test_draws_follow_the_softmax():
    rows = 4000
    scores = torch.tensor([0.0, 1.0, 2.0, -torch.inf]).expand(rows, 4).contiguous()
    streams, positions = torch.tensor([noise.stream(5)] * rows), torch.arange(rows)
    row = torch.ones(rows)
    drawn = draw_reference(scores, 2 * row, row, 0 * row, streams, positions)
    few = slice(50)
    assert torch.equal(draw(scores[few], 2 * row, row, 0 * row, streams[few], positions[few]), drawn[few])
    expected = torch.softmax(scores[0], -1)[:3] * rows
    counts = torch.bincount(drawn, minlength=4)
    assert counts[3] == 0
    assert ((counts[:3] - expected) ** 2 / expected).sum() < 13.8  # chi-square, 2 degrees of freedom, p = 0.001
