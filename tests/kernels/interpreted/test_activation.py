import pytest
import torch
from kernel_cases import assert_as_good_as_torch

from octavo.engine.model.ops import TextbookOps
from octavo.kernels.activation import ACTIVATIONS, gated, gated_reference


@pytest.mark.parametrize("act", sorted(ACTIVATIONS))
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_gated_activation_is_as_good_as_torch(act, dtype):
    merged = torch.randn(3, 2 * 2100).mul(4).to(dtype)
    exact = gated_reference(merged.double(), act)
    assert_as_good_as_torch(gated(merged, act), gated_reference(merged, act), exact)
    torch.testing.assert_close(gated_reference(merged, act), TextbookOps().gated(merged, act))


def test_extreme_gates_neither_overflow_nor_lose_nan():
    gate = torch.tensor([[-1e4, -200.0, -0.0, 0.0, 200.0, 1e4, float("nan")]])
    merged = torch.cat((gate, torch.ones_like(gate)), 1)
    for act in ("silu", "gelu", "gelu_pytorch_tanh", "relu"):
        torch.testing.assert_close(gated(merged, act), gated_reference(merged, act), equal_nan=True)


def test_views_no_rows_and_unknown_names():
    wide = torch.randn(4, 100)
    torch.testing.assert_close(gated(wide[:, 10:74], "silu"), gated_reference(wide[:, 10:74], "silu"))
    torch.testing.assert_close(gated(wide.t(), "silu"), gated_reference(wide.t(), "silu"))
    assert gated(torch.empty(0, 32), "silu").shape == (0, 16)
    with pytest.raises(ValueError, match="unknown activation"):
        gated(wide, "mish")
