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
    SamplingParams(temperature=0.8, top_p=0.9),
    SamplingParams(temperature=1.2, top_k=40, top_p=0.95, min_p=0.01),
    SamplingParams(temperature=5.0, top_k=20_000, top_p=0.5),
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


def test_a_step_of_fixed_shapes_draws_what_the_batch_does():
    """As captured graphs do: whole settings on the device, rows of other kinds beside."""
    there = sampler_on("cuda")
    plain = [0, 1, 2, 5, 6, 7]
    index = torch.tensor(plain, device="cuda")
    assert [there.kind(rows) for rows in ([0], [0, 2], plain, [3])] == ["greedy", "draw", "filter", "any"]
    for position in range(20):
        logits = torch.randn(len(plain), PADDED, device="cuda") * 4
        at = torch.full((len(plain),), position, device="cuda")
        expected = there.sample(logits, plain, index, at).ids
        assert torch.equal(there.choose(logits, index, at, "filter")[0], expected)
        assert torch.equal(there.choose(logits[:3], index[:3], at[:3], "draw")[0], expected[:3])
        assert torch.equal(there.choose(logits[:1], index[:1], at[:1], "greedy")[0], expected[:1])
