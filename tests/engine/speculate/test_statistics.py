"""Checked guesses are distributed like plain draws."""

from __future__ import annotations

import math

import torch

from octavo.engine.request import SamplingParams
from octavo.engine.sample.sampler import Sampler

VOCAB, DRAWS, WINDOW = 12, 100_000, 500


def drawn(temperature: float) -> tuple[list[int], list[float]]:
    """(ids drawn at DRAWS positions as a checking step does it, WINDOW of one row at once; their probabilities)."""
    logits = torch.linspace(-2, 2, VOCAB)
    sampler = Sampler(VOCAB, 1, torch.device("cpu"))
    sampler.join(0, SamplingParams(temperature=temperature), [], 0, 1234)
    rows, ids = [0] * WINDOW, []
    scores = logits.expand(WINDOW, VOCAB).contiguous()
    for begin in range(0, DRAWS, WINDOW):
        positions = torch.arange(begin, begin + WINDOW)
        ids += sampler.sample(scores, rows, sampler.index(rows), positions, [()] * WINDOW).ids.tolist()
    return ids, torch.softmax(logits / temperature, -1).tolist()


def test_a_hundred_thousand_checked_draws_follow_the_distribution() -> None:
    ids, expected = drawn(0.8)
    counts = [ids.count(token) for token in range(VOCAB)]
    chi = sum((count - DRAWS * p) ** 2 / (DRAWS * p) for count, p in zip(counts, expected, strict=True))
    assert chi < 31.3, "the 99.9th percentile of chi-square with 11 degrees of freedom"


def test_a_guess_is_accepted_as_often_as_the_model_would_say_it() -> None:
    ids, expected = drawn(1.3)
    for token in (0, 5, VOCAB - 1):
        accepted = sum(drawn_id == token for drawn_id in ids) / DRAWS
        assert abs(accepted - expected[token]) < 4 * math.sqrt(expected[token] / DRAWS)
