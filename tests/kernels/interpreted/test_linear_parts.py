import pytest
import torch
from kernel_cases import assert_as_good_as_torch

from octavo.kernels.linear_parts import add_parts_norm, add_parts_norm_reference
from octavo.kernels.rms_norm import rms_norm_reference

EPS = 1e-5


@pytest.mark.parametrize("weight_dtype", [torch.float16, torch.float32])
@pytest.mark.parametrize(("count", "rows", "size"), [(1, 3, 96), (4, 2, 576), (9, 5, 1000)])
def test_the_norm_of_a_sum_of_parts_is_as_good_as_torch(count, rows, size, weight_dtype):
    parts, residual = torch.randn(count, rows, size), torch.randn(rows, size).half()
    weight = torch.randn(size).to(weight_dtype)
    exact = rms_norm_reference(residual.double() + parts.double().sum(0), weight.double(), EPS)
    expected, total = add_parts_norm_reference(parts, residual, weight, EPS)
    stream = residual.clone()
    normed, summed = add_parts_norm(parts, stream, weight, EPS)
    assert summed is stream
    assert torch.equal(summed, total)
    assert normed.dtype == torch.float16
    assert_as_good_as_torch(normed, expected, exact)


def test_a_sum_of_parts_has_the_same_bits_in_whatever_company():
    parts, residual, weight = torch.randn(5, 4, 200) * 100, torch.randn(4, 200).half(), torch.ones(200).half()
    whole = add_parts_norm(parts, residual.clone(), weight, EPS)
    alone = add_parts_norm(parts[:, 1:2].contiguous(), residual[1:2].clone(), weight, EPS)
    assert torch.equal(whole[0][1:2], alone[0])
    assert torch.equal(whole[1][1:2], alone[1])
