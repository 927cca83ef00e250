"""Compiling a step before it runs, on a real GPU: nothing happens on the device, and the step is right afterwards."""

from __future__ import annotations

import pytest
import torch
import triton
import triton.language as tl

from octavo.kernels import compile_ahead as ahead

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA GPU at hand")]


@triton.jit
def triple_kernel(x_ptr, out_ptr, SIZE: tl.constexpr):
    at = tl.arange(0, SIZE)
    tl.store(out_ptr + at, 3 * tl.load(x_ptr + at))


def test_nothing_runs_while_a_step_is_compiled():
    if ahead.AsyncCompileMode is None:
        pytest.skip("this Triton compiles kernels one by one")
    x, out, weight = (torch.ones(size, device="cuda") for size in ((64,), (64,), (8, 64)))
    made = []

    def step() -> None:
        out.mul_(5)
        triple_kernel[(1,)](x, out, SIZE=64)
        made.append(torch.nn.functional.linear(out[None], weight))

    assert ahead.compile_ahead(step)
    assert out.tolist() == [1.0] * 64
    assert made[0].shape == (1, 8)
    step()
    assert out.tolist() == [3.0] * 64
    assert made[1].tolist() == [[192.0] * 8]
