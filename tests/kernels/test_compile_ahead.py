"""A step whose kernels are compiled before it runs: nothing happens, and every kernel is asked for once."""

from __future__ import annotations

import threading

import pytest
import torch
import triton
import triton.language as tl
from triton.runtime.jit import JITFunction

from octavo.kernels import compile_ahead as ahead


@triton.jit
def double_kernel(x_ptr, out_ptr, SIZE: tl.constexpr):
    at = tl.arange(0, SIZE)
    tl.store(out_ptr + at, 2 * tl.load(x_ptr + at))


@pytest.fixture
def launches(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, bool]]:
    """Which thread launched, and whether only to compile."""
    if not isinstance(double_kernel, JITFunction):
        pytest.skip("kernels run in the interpreter")
    seen: list[tuple[str, bool]] = []
    monkeypatch.setattr(
        JITFunction, "run", lambda self, *a, grid, warmup, **k: seen.append((threading.current_thread().name, warmup))
    )
    return seen


def test_a_step_that_is_compiled_changes_nothing(launches):
    x, out = torch.ones(16), torch.full((16,), 5.0)
    kept = []

    def step() -> None:
        y = (x + 1).view(4, 4).t()
        out.mul_(7)
        torch.add(x, 1, out=out)
        best, ids = torch.topk(torch.cat((y, y)), 2)
        double_kernel[(1,)](x, out, SIZE=16)
        kept.extend((y, best, ids, torch.arange(3), x[ids.flatten()]))

    with torch.inference_mode():
        assert ahead.compile_ahead(step, ahead.Idle(("cpu",)))
    assert out.tolist() == [5.0] * 16
    assert launches == [("MainThread", True)]
    y, best, ids, table, picked = kept
    assert (y.shape, y.stride()) == ((4, 4), (1, 4))
    assert (best.shape, best.dtype, ids.dtype) == ((8, 2), torch.float32, torch.int64)
    assert table.tolist() == [0, 1, 2]  # made without a tensor: real, since it may be kept
    assert picked.shape == (16,)
    out.mul_(2)
    assert out.tolist() == [10.0] * 16


def test_other_threads_go_on_launching(launches):
    def step() -> None:
        other = threading.Thread(target=lambda: double_kernel[(1,)](None, None, SIZE=16), name="other")
        other.start()
        other.join()

    assert ahead.compile_ahead(step, ahead.Idle(("cpu",)))
    double_kernel[(1,)](None, None, SIZE=16)
    assert launches == [("other", False), ("MainThread", False)]


def test_a_step_that_looks_at_numbers_is_left_to_itself(launches):
    assert not ahead.compile_ahead(lambda: torch.ones(3).sum().item() + torch.ones(2)[0].item(), ahead.Idle(("cpu",)))
    double_kernel[(1,)](None, None, SIZE=16)
    assert launches == [("MainThread", False)]
