"""The batched sampler: rows do not touch each other, penalties survive a resume, and a bad row ends alone."""

from __future__ import annotations

import math

import pytest
import torch

from octavo.engine.request import SamplingParams
from octavo.engine.sample import Sampled, Sampler, score_tokens

V = 200
CPU = torch.device("cpu")
GREEDY = SamplingParams(temperature=0)
CHAT = SamplingParams(temperature=1.6, top_p=0.95)


def sampler_with(*params: SamplingParams, valid: int | None = None, prompt: tuple[int, ...] = (1, 2)) -> Sampler:
    sampler = Sampler(V, 16, CPU, valid)
    for row, p in enumerate(params):
        sampler.join(row, p, list(prompt), len(prompt), seed=100 + row)
    return sampler


def run(sampler: Sampler, logits: torch.Tensor, rows: list[int], position: int = 10) -> Sampled:
    return sampler.sample(logits, rows, torch.tensor(rows), torch.full((len(rows),), position))


@pytest.fixture
def logits() -> torch.Tensor:
    return torch.randn(8, V, generator=torch.Generator().manual_seed(0)) * 3


def test_greedy_rows_take_the_best_and_the_lowest_id_of_equals(logits) -> None:
    logits[1, [30, 20, 150]] = 50.0
    out = run(sampler_with(*[GREEDY] * 8), logits, list(range(8)))
    assert out.ids[1] == 20
    assert torch.equal(out.ids, logits.argmax(-1))
    assert out.finite.all()
    assert out.logprobs is None


@pytest.mark.parametrize("temperature", [1e-300, 1e-40, 1e-6, 1e-5])
@pytest.mark.parametrize("row_by_row", [True, False])
def test_the_smallest_temperatures_are_greedy(logits, temperature, row_by_row, monkeypatch) -> None:
    sampler = sampler_with(*[SamplingParams(temperature=temperature, top_p=0.9)] * 8)
    monkeypatch.setattr(sampler, "_row_by_row", row_by_row)
    assert run(sampler, logits, list(range(8))).ids.equal(logits.argmax(-1))


def test_a_seed_draws_the_same_in_any_row_and_any_batch(logits) -> None:
    alone = []
    for position in range(40):
        sampler = Sampler(V, 4, CPU)
        sampler.join(2, CHAT, [1], 1, seed=7)
        alone.append(run(sampler, logits[:1], [2], position).ids.item())
    crowd = Sampler(V, 8, CPU)
    for row, params in enumerate((GREEDY, SamplingParams(top_k=3), SamplingParams(presence_penalty=1), CHAT, CHAT)):
        crowd.join(row, params, [1, 5], 1, seed=7 if row == 3 else row)
    for position in range(40):
        rows = [0, 4, 3, 1, 2] if position % 2 else [3, 2]
        scores = torch.stack([logits[0] if row == 3 else logits[row + 1] for row in rows])
        assert run(crowd, scores, rows, position).ids[rows.index(3)] == alone[position]
    assert len(set(alone)) > 3


def test_the_callers_logits_are_left_as_they_are(logits) -> None:
    before = logits.clone()
    params = (GREEDY, CHAT, SamplingParams(repetition_penalty=2.0, logit_bias=((3, 5.0),)), SamplingParams(logprobs=3))
    run(sampler_with(*params), logits[:4], [0, 1, 2, 3])
    assert torch.equal(logits, before)


def test_penalties_after_a_resume_equal_those_without_one(logits) -> None:
    params = SamplingParams(
        temperature=0.9, repetition_penalty=1.3, presence_penalty=0.7, frequency_penalty=0.4, logit_bias=((4, 3.0),)
    )
    straight, tokens = sampler_with(GREEDY, params), [1, 2]
    resumed = sampler_with(GREEDY, params)
    for step in range(60):
        if step % 7 == 3:  # preempted, and back in another row
            row = 1 + step % 3
            resumed.leave(1 + (step - 7) % 3 if step > 3 else 1)
            resumed.join(row, params, tokens, 2, seed=101)
        row = 1 if step < 3 else 1 + (step - (step - 3) % 7) % 3
        a = run(straight, logits[:2], [0, 1], step)
        b = run(resumed, logits[1:2], [row], step)
        assert a.ids[1] == b.ids[0]
        straight.accept(torch.tensor([0, 1]), a.ids, [0, 1])
        resumed.accept(torch.tensor([row]), b.ids, [row])
        tokens.append(a.ids[1].item())
        want = torch.bincount(torch.tensor(tokens[2:]), minlength=V).int()
        assert torch.equal(straight.reply_counts(1), want)
        assert torch.equal(resumed.reply_counts(row), want)
    assert len(set(tokens)) > 10


def test_rows_without_penalties_keep_no_counts() -> None:
    assert sampler_with(GREEDY, CHAT).reply_counts(1) is None


def test_a_row_taken_over_keeps_nothing_of_the_one_before(logits) -> None:
    sampler = sampler_with(SamplingParams(temperature=0, logit_bias=((9, 100.0),), presence_penalty=2))
    assert run(sampler, logits[:1], [0]).ids[0] == 9
    sampler.leave(0)
    sampler.join(0, SamplingParams(temperature=0, frequency_penalty=0.1), [1], 1, seed=0)
    assert run(sampler, logits[:1], [0]).ids[0] == logits[0].argmax()


@pytest.mark.parametrize("poison", [math.nan, math.inf])
@pytest.mark.parametrize("params", [GREEDY, CHAT, SamplingParams(repetition_penalty=1.2, logprobs=2)])
def test_a_poisoned_row_is_reported_and_its_neighbours_draw_as_before(logits, poison, params) -> None:
    sampler, rows = sampler_with(GREEDY, params, CHAT, SamplingParams(presence_penalty=1)), [0, 1, 2, 3]
    clean = run(sampler, logits[:4], rows)
    logits[1, 77] = poison
    broken = run(sampler, logits[:4], rows)
    assert broken.finite.tolist() == [True, False, True, True]
    assert broken.ids[[0, 2, 3]].equal(clean.ids[[0, 2, 3]])
    assert 0 <= broken.ids[1] < V


def test_minus_infinity_is_a_ban_and_not_a_fault(logits) -> None:
    logits[0, 10:] = -math.inf
    out = run(sampler_with(CHAT), logits[:1], [0])
    assert out.finite.all()
    assert out.ids[0] < 10


@pytest.mark.parametrize("temperature", [0.0, 1.0, 5.0])
def test_the_last_token_left_is_taken_whatever_the_filters(logits, temperature) -> None:
    bans = tuple((token, -100.0) for token in range(V) if token != 55)
    params = SamplingParams(temperature=temperature, top_k=1, top_p=0.01, min_p=1.0, logit_bias=bans)
    logits[0, 55] = -300.0
    out = run(sampler_with(params), logits[:1], [0])
    assert out.ids[0] == 55
    assert out.finite.all()


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_row_whose_every_token_is_banned_ends_with_an_error(logits, temperature) -> None:
    bans = SamplingParams(temperature=temperature, logit_bias=tuple((token, -100.0) for token in range(V)))
    out = run(sampler_with(CHAT, bans), logits[:2], [0, 1])
    assert out.finite.tolist() == [True, False]


def test_a_banned_end_token_gives_way_to_the_next_best(logits) -> None:
    best, second = logits[0].topk(2).indices.tolist()
    params = SamplingParams(temperature=5, top_k=1, logit_bias=((best, -100.0),))
    assert run(sampler_with(params), logits[:1], [0]).ids[0] == second


def test_padded_ids_are_never_drawn() -> None:
    logits = torch.zeros(4, V)
    logits[:, 150:] = 30.0
    rows = [0, 1, 2, 3]
    hot = SamplingParams(temperature=5)
    sampler = sampler_with(GREEDY, hot, SamplingParams(logit_bias=((170, 50.0),), logprobs=20), hot, valid=150)
    for position in range(300):
        out = run(sampler, logits, rows, position)
        assert (out.ids < 150).all()
        sampler.accept(torch.tensor(rows), out.ids, rows)
        assert (out.top_ids < 150).all()


def test_log_probabilities_are_those_of_the_raw_logits(logits) -> None:
    rows, reference = [0, 1, 2], logits[:3].double().log_softmax(-1)
    params = (
        SamplingParams(temperature=0.3, top_k=2, logit_bias=((8, 40.0),), logprobs=3),
        CHAT,
        SamplingParams(logprobs=5),
    )
    out = run(sampler_with(*params), logits[:3], rows)
    assert out.ids[0] == 8
    for row, top in ((0, 3), (2, 5)):
        assert out.logprobs[row].item() == pytest.approx(reference[row, out.ids[row]].item(), abs=1e-5)
        values, ids = reference[row].topk(top)
        assert out.top_ids[row, :top].equal(ids)
        torch.testing.assert_close(out.top_logprobs[row, :top].double(), values, atol=1e-5, rtol=0)


def test_zero_alternatives_still_give_the_tokens_own(logits) -> None:
    out = run(sampler_with(SamplingParams(temperature=0, logprobs=0)), logits[:1], [0])
    assert out.logprobs[0].item() == pytest.approx(logits[0].log_softmax(-1).max().item(), abs=1e-5)
    assert out.top_ids.shape == (1, 0)


def test_given_tokens_are_scored_with_their_alternatives(logits) -> None:
    ids = torch.tensor([3, 9, 199])
    own, top_ids, top = score_tokens(logits[:3], ids, 4)
    reference = logits[:3].double().log_softmax(-1)
    torch.testing.assert_close(own.double(), reference[torch.arange(3), ids], atol=1e-5, rtol=0)
    values, best = reference.topk(4)
    assert top_ids.equal(best)
    torch.testing.assert_close(top.double(), values, atol=1e-5, rtol=0)


def test_a_row_that_holds_no_request_is_a_fault_of_the_caller(logits) -> None:
    with pytest.raises(ValueError, match="row 5"):
        run(sampler_with(GREEDY), logits[:1], [5])


@pytest.mark.parametrize(
    "params", [CHAT, SamplingParams(temperature=0.7, top_k=20), SamplingParams(frequency_penalty=0.5)]
)
def test_the_way_of_other_devices_gives_the_same_tokens(logits, params, monkeypatch) -> None:
    """On the CPU the drawing is numpy's; here the fixed-shape way of a GPU runs instead."""
    rows, mixed = list(range(8)), [params if row % 3 else GREEDY for row in range(8)]
    fast, plain = sampler_with(*mixed), sampler_with(*mixed)
    monkeypatch.setattr(plain, "_row_by_row", False)
    for position in range(20):
        a, b = run(fast, logits, rows, position), run(plain, logits, rows, position)
        assert a.ids.equal(b.ids)
        fast.accept(torch.tensor(rows), a.ids, rows)
        plain.accept(torch.tensor(rows), b.ids, rows)


def test_penalties_of_assumed_tokens_are_those_of_tokens_that_came() -> None:
    params = SamplingParams(
        temperature=0.7,
        repetition_penalty=1.3,
        presence_penalty=0.4,
        frequency_penalty=0.2,
        logit_bias=((5, 1.5), (9, -100.0)),
    )
    generator = torch.Generator().manual_seed(8)
    logits = torch.randn(5, 40, generator=generator) * 2
    guesses = [5, 7, 5, 11]
    at_once, one_by_one = (Sampler(40, 4, torch.device("cpu")) for _ in range(2))
    for sampler in (at_once, one_by_one):
        sampler.join(1, params, [1, 2, 3, 7], 2, 77)
    positions = torch.arange(4, 9)
    rows = [1] * 5
    assumed = [guesses[:place] for place in range(5)]
    together = at_once.sample(logits, rows, at_once.index(rows), positions, assumed).ids.tolist()
    apart = []
    for place in range(5):
        apart.append(
            one_by_one.sample(
                logits[place : place + 1], [1], torch.tensor([1]), positions[place : place + 1]
            ).ids.item()
        )
        if place < 4:
            one_by_one.accept(torch.tensor([1]), torch.tensor([guesses[place]]), [1])
    assert together == apart
    at_once.accept_all({1: guesses})
    assert torch.equal(at_once.reply_counts(1), one_by_one.reply_counts(1))
