"""How single numbers are stored and what the elementary functions give, against torch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

pytest.importorskip("numba")
from numba import float32, int64, njit, uint16

from octavo.kernels.cpu.numbers import EXACT, atomic_add, exp, gate, get, lane, put, tanh

HALF = np.uint16(0)
WILD = [0.0, -0.0, 1.0, -1.0, 3.4e38, -3.4e38, 1e-40, -1e-45, float("inf"), float("-inf"), float("nan")]


@njit([(uint16, int64, int64, int64)], **EXACT)
def _store_all(kind: Any, source: int, target: int, count: int) -> None:
    for i in range(count):
        put(kind, target, i, get(np.float32(0), source, i))


@njit([(uint16, int64, int64, int64)], **EXACT)
def _load_all(kind: Any, source: int, target: int, count: int) -> None:
    for i in range(count):
        put(np.float32(0), target, i, get(kind, source, i))


@njit([int64(uint16, int64)], **EXACT)
def _lane(kind: Any, index: int) -> int:
    return lane(kind, index)


@njit([int64(int64)], **EXACT)
def _count_up(address: int) -> int:
    return atomic_add(address, 5)


@njit([float32(float32)], **EXACT)
def _exp(x: float) -> float:
    return exp(x)


@njit([float32(float32)], **EXACT)
def _tanh(x: float) -> float:
    return tanh(x)


@njit([(int64, int64, int64, int64)], **EXACT)
def _gate(act: int, gates: int, ups: int, count: int) -> None:
    gate(act, gates, ups, count)


def test_bfloat16_is_rounded_as_torch_rounds() -> None:
    torch.manual_seed(0)
    ties = (torch.arange(0x3F800000, 0x3F800000 + (1 << 18), 1 << 14, dtype=torch.int32)).view(torch.float32)
    x = torch.cat((torch.tensor(WILD), ties, torch.randn(5000) * torch.randn(5000).mul(20).exp()))
    stored = torch.zeros(len(x), dtype=torch.bfloat16)
    _store_all(HALF, x.data_ptr(), stored.data_ptr(), len(x))
    assert torch.equal(stored.isnan(), x.isnan())
    assert torch.equal(stored[~x.isnan()].view(torch.int16), x.bfloat16()[~x.isnan()].view(torch.int16))


def test_every_bfloat16_is_read_exactly() -> None:
    stored = torch.arange(-(1 << 15), 1 << 15, dtype=torch.int16).view(torch.bfloat16)
    read = torch.zeros(len(stored))
    _load_all(HALF, stored.data_ptr(), read.data_ptr(), len(stored))
    torch.testing.assert_close(read, stored.float(), rtol=0, atol=0, equal_nan=True)


def test_a_block_has_its_even_elements_first() -> None:
    places = [_lane(HALF, i) for i in range(64)]
    assert places[:4] == [0, 16, 1, 17]
    assert sorted(places[:32]) == list(range(32))
    assert places[32:] == [32 + place for place in places[:32]]


def test_the_exponential_is_right_to_two_units_and_keeps_nan() -> None:
    for x in torch.linspace(-86, 87, 4001).tolist():
        exact = torch.tensor(x, dtype=torch.float32).double().exp().item()
        assert abs(_exp(x) - exact) <= 2.4e-7 * exact
    assert np.isnan(_exp(float("nan")))
    assert 0 <= _exp(float("-inf")) < 1e-37


def test_the_hyperbolic_tangent_is_right_and_keeps_nan() -> None:
    for x in [*torch.linspace(-12, 12, 2001).tolist(), float("inf"), float("-inf")]:
        assert abs(_tanh(x) - np.tanh(x)) < 3e-7
    assert np.isnan(_tanh(float("nan")))


@pytest.mark.parametrize("act", [0, 1])
@pytest.mark.parametrize("count", [1, 16, 1201])
def test_gates_are_those_of_torch_and_keep_nan(act: int, count: int) -> None:
    x = torch.linspace(30, -30, count)
    up = torch.linspace(-2, 3, count)
    x[0], x[count // 3] = float("nan"), 0.5
    gated = x.clone()
    _gate(act, gated.data_ptr(), up.data_ptr(), count)
    expected = (F.gelu(x, approximate="tanh") if act else F.silu(x)) * up
    error = (gated - expected).abs() / x.abs().clamp(min=1.0)
    assert torch.equal(gated.isnan(), x.isnan())
    assert (error[~x.isnan()] < 6e-6).all()


def test_an_atomic_addition_gives_what_was_there() -> None:
    counter = np.array([7], dtype=np.int64)
    assert [_count_up(counter.ctypes.data) for _ in range(2)] == [7, 12]
    assert counter[0] == 17
