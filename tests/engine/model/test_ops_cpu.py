"""The CPU's fused operations compute what the textbook ones do."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
import torch

from octavo.engine.model.ops import TextbookOps, split_heads
from octavo.engine.model.ops_cpu import CpuOps
from octavo.engine.model.parameters import interleave
from octavo.engine.model.rotary import RopeSpec, cos_sin_table

TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 4e-2, torch.float16: 4e-3}
DTYPES = list(TOLERANCE)


@dataclass(slots=True)
class Recorder:
    """Stands for an attention step: keeps what is written."""

    written: list[tuple[int, torch.Tensor, torch.Tensor]] = field(default_factory=list)

    def write(self, layer: int, k: torch.Tensor, v: torch.Tensor) -> None:
        self.written.append((layer, k.clone(), v.clone()))


def close(actual: torch.Tensor, expected: torch.Tensor) -> None:
    assert actual.dtype == expected.dtype
    tolerance = TOLERANCE[actual.dtype]
    torch.testing.assert_close(actual, expected, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(1, 40), (7, 40), (3, 5, 16)])
def test_norms_agree_and_leave_their_input_alone(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    x = torch.randn(shape).mul(3).to(dtype)
    weight = torch.rand(shape[-1]) + 0.5
    before = x.clone()
    close(CpuOps().rms_norm(x, weight, 1e-5), TextbookOps().rms_norm(x, weight, 1e-5))
    assert torch.equal(x, before)


def test_the_norm_of_nothing_is_nothing() -> None:
    assert torch.equal(CpuOps().rms_norm(torch.zeros(2, 8), torch.ones(8), 1e-6), torch.zeros(2, 8))


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_residual_is_added_before_the_norm(dtype: torch.dtype) -> None:
    x, residual, weight = torch.randn(5, 24).to(dtype), torch.randn(5, 24).to(dtype), torch.rand(24)
    expected = TextbookOps().add_rms_norm(x.clone(), residual.clone(), weight, 1e-6)
    for ours, theirs in zip(CpuOps().add_rms_norm(x, residual, weight, 1e-6), expected):
        close(ours, theirs)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("act", ["silu", "gelu", "gelu_pytorch_tanh"])
def test_gated_activations_agree(dtype: torch.dtype, act: str) -> None:
    gate_up = torch.randn(6, 2 * 20).to(dtype)
    close(CpuOps().gated(gate_up, act), TextbookOps().gated(gate_up.clone(), act))


@pytest.mark.parametrize("normed", [False, True], ids=["plain", "head-norms"])
@pytest.mark.parametrize("rot_dim", [16, 12])
@pytest.mark.parametrize("dtype", DTYPES)
def test_rotary_of_interleaved_heads_is_the_textbooks_interleaved(
    dtype: torch.dtype, rot_dim: int, normed: bool
) -> None:
    tokens, q_heads, size = 5, 6, 16
    spec = RopeSpec.from_parameters(
        {"partial_rotary_factor": rot_dim / size}, head_size=size, max_positions=64, theta=100.0
    )
    table, positions = cos_sin_table(spec, 64), torch.tensor([3, 0, 63, 7, 20])
    qkv = torch.randn(tokens, q_heads + 4, size).to(dtype)
    norms = (torch.rand(size) + 0.5, torch.rand(size) + 0.5) if normed else (None, None)

    def mixed(x: torch.Tensor) -> torch.Tensor:
        return interleave(x.flatten(1).T, size, rot_dim).T.reshape(x.shape)

    steps: list[Any] = [Recorder(), Recorder()]
    expected = TextbookOps().qkv_rope_write(qkv.clone(), q_heads, *norms, 1e-6, table, positions, steps[0], 3)
    q, k, v = split_heads(qkv.clone(), q_heads)
    ours = torch.cat((mixed(q), mixed(k), v), 1)
    mixed_norms = [None if w is None else interleave(w, size, rot_dim) for w in norms]
    ops = CpuOps()
    result = ops.qkv_rope_write(
        ours, q_heads, *mixed_norms, 1e-6, ops.rope_table(table, positions), positions, steps[1], 3
    )
    close(result, mixed(expected))
    (layer, k_written, v_written), (_, k_expected, v_expected) = steps[1].written[0], steps[0].written[0]
    assert layer == 3
    close(k_written, mixed(k_expected))
    assert torch.equal(v_written, v_expected)
