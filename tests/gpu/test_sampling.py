"""The sampler on a CUDA device: the CPU's tokens, and no wait for the device in a step."""

from __future__ import annotations

import pytest
import torch

from octavo.engine.request import SamplingParams
from octavo.engine.sample import Sampler

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA GPU at hand")]
V, PADDED = 32_003, 32_064
MIXED = (
    SamplingParams(temperature=0),
    SamplingParams(temperature=0.7, top_p=0.95),
    SamplingParams(temperature=1.0),
    SamplingParams(temperature=0.9, top_k=40, top_p=0.9, min_p=0.02),
    SamplingParams(temperature=0, repetition_penalty=1.2),
    SamplingParams(temperature=0.8, presence_penalty=0.5, frequency_penalty=0.3, logprobs=5),
    SamplingParams(temperature=5.0, logit_bias=((7, -100.0), (9, 4.0))),
    SamplingParams(temperature=0, logprobs=2),
)


def sampler_on(device: str) -> Sampler:
    sampler = Sampler(PADDED, 8, torch.device(device), V)
    for row, params in enumerate(MIXED):
        sampler.join(row, params, [5, 6, 7, 8], 3, seed=row)
    return sampler


def test_a_mixed_batch_draws_what_the_cpu_draws() -> None:
    generator = torch.Generator().manual_seed(0)
    here, there = sampler_on("cpu"), sampler_on("cuda")
    rows = list(range(8))
    same = total = 0
    for position in range(60):
        logits = torch.randn(8, PADDED, generator=generator) * 4
        at = torch.full((8,), position)
        a = here.sample(logits, rows, torch.arange(8), at)
        b = there.sample(logits.cuda(), rows, torch.arange(8).cuda(), at.cuda())
        assert b.finite.all()
        assert (b.ids < V).all()
        same += (a.ids == b.ids.cpu()).sum().item()
        total += 8
        here.accept(torch.arange(8), a.ids, rows)
        there.accept(torch.arange(8).cuda(), a.ids.cuda(), rows)
        for row in (5, 7):
            torch.testing.assert_close(a.top_logprobs[row], b.top_logprobs[row].cpu(), atol=1e-4, rtol=1e-4)
    assert same >= total - 2  # the two devices' exponentials may round one close race differently


def test_a_steady_step_never_waits_for_the_device() -> None:
    sampler, rows = sampler_on("cuda"), list(range(8))
    logits = torch.randn(8, PADDED, device="cuda") * 4
    rows_dev, at = torch.arange(8, device="cuda"), torch.full((8,), 9, device="cuda")
    for _ in range(2):
        sampler.accept(rows_dev, sampler.sample(logits, rows, rows_dev, at).ids, rows)
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in range(3):
            sampler.accept(rows_dev, sampler.sample(logits, rows, rows_dev, at).ids, rows)
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_a_poisoned_row_ends_alone() -> None:
    sampler, rows = sampler_on("cuda"), list(range(8))
    logits = torch.randn(8, PADDED, device="cuda") * 4
    rows_dev, at = torch.arange(8, device="cuda"), torch.full((8,), 9, device="cuda")
    clean = sampler.sample(logits, rows, rows_dev, at)
    logits[3, 100], logits[0, 5] = float("nan"), float("inf")
    out = sampler.sample(logits, rows, rows_dev, at)
    assert out.finite.tolist() == [False, True, True, False, True, True, True, True]
    keep = [1, 2, 4, 5, 6, 7]
    assert torch.equal(out.ids[keep], clean.ids[keep])
