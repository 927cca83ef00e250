"""The noise is exactly the documented hash, on every side, and behaves like independent exponential variates."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from octavo.engine.sample import noise

M = 0xFFFFFFFF


def plain_mix(x: int) -> int:
    x ^= x >> 16
    x = (x * 0x85EBCA6B) & M
    x ^= x >> 13
    x = (x * 0xC2B2AE35) & M
    return x ^ (x >> 16)


def plain_bits(seed: int, position: int, token: int, choice: int = 0) -> int:
    """The hash written out in Python integers from its definition."""
    seed %= 1 << 64
    low, high = seed & M, seed >> 32
    a = plain_mix((plain_mix((plain_mix(low ^ 0x243F6A88) + high) & M) + choice) & M)
    b = plain_mix((plain_mix((plain_mix(high ^ 0x85A308D3) + low) & M) + choice) & M)
    k0, k1 = (plain_mix((word + position * 0x9E3779B1) & M) for word in (a, b))
    h = (token * 0x9E3779B1 + k0) & M
    h ^= h >> 16
    h = (h * 0x85EBCA6B) & M
    h ^= h >> 13
    h ^= k1
    h = (h * 0xC2B2AE35) & M
    return h ^ (h >> 16)


def keys_of(seed: int, positions: list[int], choice: int = 0) -> torch.Tensor:
    streams = torch.tensor([noise.stream(seed, choice)]).expand(len(positions), 2)
    return noise.position_keys(streams, torch.tensor(positions))


@pytest.mark.parametrize("seed", [0, 7, -1, 2**63 + 5, 2**64 - 1])
@pytest.mark.parametrize("choice", [0, 3])
def test_all_implementations_follow_the_definition(seed: int, choice: int) -> None:
    positions, ids = [0, 1, 4095, 2**31 + 3], [0, 1, 49151, 151_935, 2**18]
    keys = keys_of(seed, positions, choice)
    got = noise.variates(keys, torch.tensor(ids))
    for row, position in enumerate(positions):
        fast = noise.variates_numpy(*keys[row].tolist(), np.array(ids, dtype=np.uint32))
        for column, token in enumerate(ids):
            u = min((plain_bits(seed, position, token, choice) + 0.5) / 2**32, 1 - 2**-24)
            assert got[row, column].item() == pytest.approx(-math.log1p(-u), rel=3e-6)
            assert fast[column] == pytest.approx(-math.log1p(-u), rel=3e-6)


def test_the_extremes_of_the_hash_stay_within_the_stated_range() -> None:
    u = np.minimum((np.array([0, M], dtype=np.uint32).astype(np.float32) + 0.5) * np.float32(2**-32), 1 - 2**-24)
    low, high = -np.log1p(-u.astype(np.float64))
    assert low == pytest.approx(noise.MIN_VARIATE, rel=1e-6)
    assert high == pytest.approx(noise.MAX_VARIATE, rel=1e-6)
    assert noise.MIN_VARIATE / noise.MAX_VARIATE > noise.NEGLIGIBLE


@pytest.mark.parametrize("along", ["ids", "positions", "seeds"])
def test_variates_are_exponential_and_uncorrelated_along_each_axis(along: str) -> None:
    count = 40_000
    if along == "ids":
        x = noise.variates(keys_of(5, [100]), torch.arange(count)).view(-1)
    elif along == "positions":
        x = noise.variates(keys_of(5, list(range(count))), torch.tensor([11])).view(-1)
    else:
        streams = torch.tensor([noise.stream(seed) for seed in range(count)])
        keys = noise.position_keys(streams, torch.full((count,), 9))
        x = noise.variates(keys, torch.tensor([11])).view(-1)
    uniform = torch.exp(-x.double())
    expected, cells = count / 64, torch.histc(uniform, 64, 0, 1)
    chi_square = ((cells - expected) ** 2 / expected).sum().item()
    assert 25 < chi_square < 115  # 63 degrees of freedom: outside once in a hundred thousand
    centred = uniform - 0.5
    for lag in (1, 2, 7, 64):
        correlation = (centred[:-lag] * centred[lag:]).mean().item() * 12
        assert abs(correlation) < 4.5 / math.sqrt(count)


def test_neighbouring_positions_share_no_shifted_noise() -> None:
    rows = noise.variates(keys_of(0, list(range(64))), torch.arange(2000))
    values = rows.flatten().tolist()
    assert len(set(values)) > len(values) * 0.99
