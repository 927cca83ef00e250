import pytest
import torch

from octavo.kernels.rms_norm import add_rms_norm, rms_norm
from octavo.kernels.token_codes import round_tokens
from octavo.kernels.token_norm import norm_tokens, norm_tokens_reference

EPS = 1e-5


@pytest.mark.parametrize("weight_type", [torch.float16, torch.float32])
@pytest.mark.parametrize("added", [True, False])
@pytest.mark.parametrize("size", [40, 2048])
def test_norms_are_rounded_as_those_of_the_kernels_they_stand_for(size, added, weight_type):
    x, residual = torch.randn(2, 3, size).half().unbind()
    weight = torch.rand(size).to(weight_type)
    before = residual.clone()
    codes, scales, total = norm_tokens(x, residual if added else None, weight, EPS, torch.int8)
    if added:
        assert total is residual
        normed, expected_total = add_rms_norm(x.clone(), before.clone(), weight, EPS)
    else:
        normed, expected_total = rms_norm(x, weight, EPS), x
    expected, expected_scales = round_tokens(normed, torch.int8)
    assert torch.equal(codes, expected)
    assert torch.equal(scales, expected_scales)
    assert torch.equal(total, expected_total)
    by_book = norm_tokens_reference(x, before if added else None, weight, EPS, torch.int8)
    torch.testing.assert_close(scales, by_book[1], rtol=2e-3, atol=0)


def test_a_token_that_is_no_number_is_told_and_others_are_not_touched():
    x = torch.randn(2, 64).half()
    x[1, 5] = float("nan")
    scales = norm_tokens(x, None, torch.ones(64).half(), EPS, torch.int8)[1]
    assert scales[0].isfinite()
    assert scales[1].isnan()
