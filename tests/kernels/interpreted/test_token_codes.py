import pytest
import torch
from token_cases import assert_rounded, loud_tokens

from octavo.kernels.activation import gated
from octavo.kernels.token_codes import gated_sums, round_tokens, round_tokens_reference, scale_sums


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize(("tokens", "size"), [(1, 40), (3, 2048), (2, 5000)])
def test_tokens_are_rounded_by_their_own_largest(tokens, size, dtype):
    x = torch.randn(tokens, size).to(dtype)
    x[0, 7] = 300.0
    codes, scales = round_tokens(x, torch.int8)
    expected, expected_scales = round_tokens_reference(x, torch.int8)
    torch.testing.assert_close(scales, expected_scales, rtol=1e-6, atol=0)
    assert codes.dtype == torch.int8
    assert int((codes.int() - expected.int()).abs().max()) <= 1
    assert float((codes != expected).float().mean()) < 1e-3  # numbers half way between two codes
    assert codes[0, 7] == 127


@pytest.mark.parametrize("kind", [torch.int8, torch.float8_e4m3fn])
def test_every_number_gets_the_nearest_code(kind):
    x = loud_tokens()
    codes, scales = round_tokens_reference(x, kind)
    assert_rounded(codes, scales, x)
    with pytest.raises(AssertionError, match="as far from its code"):
        assert_rounded(codes.view(torch.uint8).add(1).view(kind), scales, x)
    if kind == torch.int8:  # the interpreter does not round to E4M3
        few = x[:3, :600]
        assert_rounded(*round_tokens(few, kind), few)


def test_a_token_of_zeros_stays_zero_and_one_that_is_no_number_is_told():
    x = torch.zeros(2, 64).half()
    codes, scales = round_tokens(x, torch.int8)
    assert not codes.any()
    assert (scales > 0).all()
    x[1, 5] = float("nan")
    assert round_tokens(x, torch.int8)[1][1].isnan()


def test_no_tokens_are_no_launch():
    codes, scales = round_tokens(torch.empty(0, 64).half(), torch.int8)
    assert codes.shape == (0, 64)
    assert scales.shape == (0, 1)


@pytest.mark.parametrize("with_bias", [False, True])
def test_sums_are_scaled_by_token_and_output(with_bias):
    sums = torch.randint(-(1 << 20), 1 << 20, (3, 2500), dtype=torch.int32)
    by_token, by_output, bias = torch.rand(3, 1), torch.rand(2500, 1), torch.randn(2500).half() * 100
    out = scale_sums(sums, by_token * 1e-3, by_output, bias if with_bias else None, torch.float32)
    expected = sums.double() * by_token.double() * 1e-3 * by_output.double().T
    expected = expected + bias.double() if with_bias else expected
    torch.testing.assert_close(out.double(), expected, rtol=1e-5, atol=1e-3)


@pytest.mark.parametrize("with_bias", [False, True])
def test_gates_of_sums_are_those_of_scaled_sums(with_bias):
    sums = torch.randint(-(1 << 12), 1 << 12, (3, 2 * 2100), dtype=torch.int32)
    by_token, by_output, bias = torch.rand(3, 1) * 1e-3, torch.rand(4200, 1), torch.randn(4200).half()
    bias = bias if with_bias else None
    out = gated_sums(sums, by_token, by_output, bias, "silu", torch.float16)
    assert torch.equal(out, gated(scale_sums(sums, by_token, by_output, bias, torch.float16), "silu"))
