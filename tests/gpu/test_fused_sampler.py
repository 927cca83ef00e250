"""The sampler with its kernels draws what it draws on the CPU."""

import torch

from octavo.engine.request import SamplingParams
from octavo.engine.sample import Sampler

VOCAB, PADDED = 32_003, 32_064
ROWS = (
    SamplingParams(temperature=0),
    SamplingParams(temperature=0.7),
    SamplingParams(temperature=1.0, min_p=0.05),
    SamplingParams(temperature=1.5, frequency_penalty=0.5),
    SamplingParams(temperature=0, repetition_penalty=1.2),
)


def sampler_on(device: str) -> Sampler:
    sampler = Sampler(PADDED, len(ROWS), torch.device(device), VOCAB, fused=True)
    for row, params in enumerate(ROWS):
        sampler.join(row, params, [5, 6, 7, 8], 3, seed=2**40 + row)
    return sampler


def test_fused_draws_are_those_of_the_cpu_and_broken_rows_are_reported():
    here, there = sampler_on("cpu"), sampler_on("cuda")
    rows, index = list(range(len(ROWS))), torch.arange(len(ROWS))
    same = total = 0
    for position in range(60):
        logits = torch.randn(len(ROWS), PADDED) * 4
        logits[:, VOCAB:] = 1e9  # rows of the head that no token has
        logits[position % len(ROWS), 777] = float("nan")
        at = torch.full((len(ROWS),), position)
        on_cpu = here.sample(logits, rows, index, at)
        on_gpu = there.sample(logits.cuda(), rows, index.cuda(), at.cuda())
        assert on_gpu.finite.cpu().equal(on_cpu.finite)
        assert not on_gpu.finite[position % len(ROWS)]
        assert (on_gpu.ids < VOCAB).all()
        sound = on_cpu.finite
        same += (on_cpu.ids == on_gpu.ids.cpu())[sound].sum().item()
        total += int(sound.sum())
        here.accept(index, on_cpu.ids, rows)
        there.accept(index.cuda(), on_cpu.ids.cuda(), rows)
    assert total == 60 * (len(ROWS) - 1)
    assert same >= total - 2  # the two devices' logarithms may round one close race differently
