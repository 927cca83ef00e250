"""The filters keep what transformers' processors keep, and draws follow the filtered distribution exactly."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from transformers import (
    LogitsProcessorList,
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from octavo.engine.request import SamplingParams
from octavo.engine.sample import Sampler, noise
from octavo.engine.sample.adjust import Adjustments
from octavo.engine.sample.draw import Filters, draw_numpy, draw_torch

V = 128
SETTINGS = [
    Filters(0.7, top_p=0.95),
    Filters(1.0, top_p=0.3),
    Filters(1.0, top_k=1),
    Filters(1.3, top_k=17),
    Filters(0.4, min_p=0.1),
    Filters(2.0, top_k=40, top_p=0.9),
    Filters(1.5, top_k=30, top_p=0.8, min_p=0.02),
    Filters(5.0, min_p=1.0),
    Filters(1.0),
]


def transformers_distribution(logits: torch.Tensor, filters: Filters) -> torch.Tensor:
    processors = LogitsProcessorList([TemperatureLogitsWarper(filters.temperature)])
    if filters.min_p:
        processors.append(MinPLogitsWarper(filters.min_p))
    if filters.top_k:
        processors.append(TopKLogitsWarper(filters.top_k))
    if filters.top_p < 1:
        processors.append(TopPLogitsWarper(filters.top_p))
    return processors(torch.zeros(1, 0, dtype=torch.long), logits[None].double()).softmax(-1)[0]


def draw_many_torch(logits: torch.Tensor, filters: Filters, keys: torch.Tensor) -> torch.Tensor:
    n = len(keys)
    rows = logits.expand(n, -1)
    return draw_torch(
        rows,
        rows.amax(-1),
        torch.full((n,), filters.temperature),
        torch.full((n,), filters.top_k),
        torch.full((n,), filters.top_p),
        torch.full((n,), filters.min_p),
        keys,
        any_top_k=filters.top_k > 0,
        any_top_p=filters.top_p < 1,
    )


def chi_square(draws: torch.Tensor, probabilities: torch.Tensor) -> tuple[float, int]:
    """Pearson's statistic over cells of at least 5 expected draws, and its degrees of freedom."""
    expected = probabilities * len(draws)
    counts = torch.bincount(draws, minlength=len(probabilities)).double()
    assert (counts[probabilities == 0] == 0).all(), "a token that the filters removed was drawn"
    large = expected >= 5
    cells = torch.cat((expected[large], expected[~large].sum()[None]))
    seen = torch.cat((counts[large], counts[~large].sum()[None]))
    cells, seen = cells[cells > 0], seen[cells > 0]
    return ((seen - cells) ** 2 / cells).sum().item(), len(cells) - 1


@pytest.mark.parametrize("filters", SETTINGS, ids=str)
def test_a_hundred_thousand_draws_follow_the_distribution_transformers_filters_to(filters: Filters) -> None:
    logits = torch.randn(V, generator=torch.Generator().manual_seed(1)) * 2.5
    streams = torch.tensor([noise.stream(99)]).expand(100_000, 2)
    keys = noise.position_keys(streams, torch.arange(100_000))
    draws = torch.cat([draw_many_torch(logits, filters, part) for part in keys.split(10_000)])
    statistic, freedom = chi_square(draws, transformers_distribution(logits, filters))
    assert statistic < freedom + 5 * math.sqrt(2 * max(freedom, 1)) + 10


@pytest.mark.parametrize("filters", SETTINGS, ids=str)
@pytest.mark.parametrize("shape", ["smooth", "tied", "peaked", "flat"])
def test_both_ways_of_drawing_pick_the_same_token(filters: Filters, shape: str) -> None:
    torch.manual_seed(3)
    logits = {
        "smooth": torch.randn(64, V) * 3,
        "tied": (torch.randn(64, V) * 3).round(),
        "peaked": torch.randn(64, V) * 3 + 40 * torch.nn.functional.one_hot(torch.arange(64), V),
        "flat": torch.zeros(64, V),
    }[shape]
    keys = noise.position_keys(torch.tensor([noise.stream(s) for s in range(64)]), torch.arange(64) * 7)
    for row in range(64):
        best = logits[row].max().item()
        fast = draw_numpy(logits[row].numpy(), best, filters, tuple(keys[row].tolist()))
        plain = draw_many_torch(logits[row], filters, keys[row : row + 1])
        assert fast == plain.item()


def test_many_rows_are_drawn_in_slices_with_the_same_result(monkeypatch) -> None:
    torch.manual_seed(8)
    n, logits = 13, torch.randn(13, V) * 3
    keys = noise.position_keys(torch.tensor([noise.stream(s) for s in range(n)]), torch.arange(n))
    settings = (torch.full((n,), 0.9), torch.full((n,), 20), torch.full((n,), 0.9), torch.full((n,), 0.01))
    draw = lambda: draw_torch(logits, logits.amax(-1), *settings, keys, any_top_k=True, any_top_p=True)  # noqa: E731
    whole = draw()
    monkeypatch.setattr("octavo.engine.sample.draw.SLICE", 3 * V)
    assert draw().equal(whole)


def test_equal_logits_stand_or_fall_together() -> None:
    logits = torch.tensor([3.0, 1.0, 1.0, 1.0, 0.0])
    drawn = {
        draw_numpy(logits.numpy(), 3.0, Filters(2.0, top_k=2), noise.position_key(noise.stream(s), 0))
        for s in range(400)
    }
    assert drawn == {0, 1, 2, 3}


def test_a_tiny_temperature_is_greedy_and_overflows_nothing() -> None:
    logits = torch.randn(V)
    with np.errstate(over="raise", invalid="raise"):
        assert draw_numpy(logits.numpy(), logits.max().item(), Filters(1e-6), (1, 2)) == logits.argmax().item()


@pytest.mark.parametrize("penalty", [1.3, 0.7])
def test_repetition_equals_transformers(penalty: float) -> None:
    torch.manual_seed(0)
    logits, history = torch.randn(1, V) * 4, [5, 9, 9, 100, 5, 44]
    adjustments = Adjustments(V, torch.device("cpu"))
    slot = adjustments.join(SamplingParams(repetition_penalty=penalty), history, 3)
    got = adjustments.apply_(logits.clone(), torch.tensor([slot]), [slot])
    want = RepetitionPenaltyLogitsProcessor(penalty)(torch.tensor([history]), logits.clone())
    torch.testing.assert_close(got, want)


def test_presence_and_frequency_count_the_reply_alone() -> None:
    adjustments = Adjustments(10, torch.device("cpu"))
    slot = adjustments.join(SamplingParams(presence_penalty=0.5, frequency_penalty=0.25), [1, 2, 3, 3, 4], 2)
    got = adjustments.apply_(torch.zeros(1, 10), torch.tensor([slot]), [slot])
    assert got[0].tolist() == [0, 0, 0, -1.0, -0.75, 0, 0, 0, 0, 0]


def test_choices_of_one_seed_differ() -> None:
    logits = torch.zeros(V).numpy()
    first, second = (
        [draw_numpy(logits, 0.0, Filters(1.0), noise.position_key(noise.stream(5, choice), p)) for p in range(50)]
        for choice in (0, 1)
    )
    assert sum(a == b for a, b in zip(first, second)) < 5


def test_a_sampler_on_the_cpu_draws_what_the_plain_way_draws() -> None:
    torch.manual_seed(5)
    sampler, logits = Sampler(V, 4, torch.device("cpu")), torch.randn(4, V) * 2
    for row in range(4):
        sampler.join(row, SamplingParams(temperature=0.9, top_p=0.9), [1], 1, seed=row)
    got = sampler.sample(logits, [0, 1, 2, 3], torch.arange(4), torch.arange(4))
    keys = noise.position_keys(torch.tensor([noise.stream(s) for s in range(4)]), torch.arange(4))
    for row in range(4):
        assert got.ids[row] == draw_many_torch(logits[row], Filters(0.9, top_p=0.9), keys[row : row + 1])
