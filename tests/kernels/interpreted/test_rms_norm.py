import pytest
import torch
from kernel_cases import assert_as_good_as_torch

from octavo.kernels.rms_norm import add_rms_norm, rms_norm, rms_norm_reference

EPS = 1e-5


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("weight_dtype", ["same", torch.float32])
@pytest.mark.parametrize(("rows", "size"), [(1, 1), (3, 96), (5, 576), (2, 1025)])
def test_rms_norm_is_as_good_as_torch(rows, size, dtype, weight_dtype):
    x = torch.randn(rows, size).mul(3).to(dtype)
    weight = torch.randn(size).to(dtype if weight_dtype == "same" else weight_dtype)
    exact = rms_norm_reference(x.double(), weight.double(), EPS)
    out = rms_norm(x, weight, EPS)
    assert out.dtype == dtype
    assert_as_good_as_torch(out, rms_norm_reference(x, weight, EPS), exact)


def test_rms_norm_reads_heads_of_a_merged_projection_in_place():
    merged = torch.randn(7, 6 * 64)
    q = merged[:, 64 : 4 * 64].unflatten(1, (3, 64))
    weight = torch.randn(64)
    torch.testing.assert_close(rms_norm(q, weight, EPS), rms_norm_reference(q, weight, EPS))
    flat = merged[:, 64 : 4 * 64]
    wide = torch.randn(3 * 64)
    torch.testing.assert_close(rms_norm(flat, wide, EPS), rms_norm_reference(flat, wide, EPS))
    swapped = torch.randn(5, 9).t()
    torch.testing.assert_close(rms_norm(swapped, torch.ones(5), EPS), rms_norm_reference(swapped, torch.ones(5), EPS))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_add_rms_norm_returns_the_norm_and_the_sum_and_keeps_rounding(dtype):
    x, residual = torch.randn(4, 200).to(dtype), torch.randn(4, 200).to(dtype)
    weight = torch.randn(200).to(dtype)
    total = x + residual
    exact = rms_norm_reference(total.double(), weight.double(), EPS)
    normed, summed = add_rms_norm(x.clone(), residual.clone(), weight, EPS)
    assert torch.equal(summed, total)
    assert_as_good_as_torch(normed, rms_norm_reference(total, weight, EPS), exact)
    dense = torch.randn(200, 4).to(dtype).t()
    normed, summed = add_rms_norm(dense, residual.clone(), weight, EPS)
    assert torch.equal(summed, dense + residual)


def test_no_rows_are_no_work():
    empty = torch.empty(0, 64)
    assert rms_norm(empty, torch.ones(64), EPS).shape == (0, 64)
    assert add_rms_norm(empty, empty.clone(), torch.ones(64), EPS)[0].shape == (0, 64)
