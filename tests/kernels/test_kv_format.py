"""8-bit keys and values: what a head is rounded to, by plain torch."""

import pytest
import torch

from octavo.kernels.kv_format import dequantize, head_bytes, is_quantized, quantize

FORMATS = [torch.int8, torch.float8_e4m3fn]


def heads_of_all_sizes() -> torch.Tensor:
    """Heads whose magnitudes span float32's range, ordinary ones among them."""
    sizes = torch.logspace(-28, 30, 59)[:, None, None]
    return torch.randn(59, 7, 64) * sizes


def test_an_int8_head_is_off_by_half_a_step_of_its_own_at_most():
    x = heads_of_all_sizes()
    codes, scales = quantize(x, torch.int8)
    assert (codes.abs().amax(-1) == 127).all()
    error = (dequantize(codes, scales) - x).abs()
    assert (error <= 0.5 * (1 + 1e-4) * scales[..., None]).all()


def test_an_fp8_head_keeps_four_significant_bits_of_all_but_its_smallest_numbers():
    x = heads_of_all_sizes()
    codes, scales = quantize(x, torch.float8_e4m3fn)
    largest = codes.float().abs().amax(-1)
    assert (largest > 216).all()
    assert (largest <= 448).all()
    error = (dequantize(codes, scales) - x).abs()
    assert (error <= torch.maximum(x.abs() * 2.0**-4, scales[..., None] * 2.0**-10)).all()


def test_fp8_scales_are_powers_of_two_so_that_values_are_exact_in_16_bits():
    codes, scales = quantize(torch.randn(500, 64), torch.float8_e4m3fn)
    assert (torch.frexp(scales).mantissa == 0.5).all()
    values = dequantize(codes, scales)
    assert torch.equal(values.bfloat16().float(), values)
    again, same = quantize(values, torch.float8_e4m3fn)
    assert torch.equal(dequantize(again, same), values)


@pytest.mark.parametrize("dtype", FORMATS)
def test_a_head_does_not_depend_on_its_neighbours(dtype):
    x = torch.randn(6, 3, 32) * torch.logspace(-3, 3, 18).view(6, 3, 1)
    codes, scales = quantize(x, dtype)
    for token in range(6):
        for head in range(3):
            alone, scale = quantize(x[token, head], dtype)
            assert torch.equal(alone.float(), codes[token, head].float())
            assert torch.equal(scale, scales[token, head])


@pytest.mark.parametrize("dtype", FORMATS)
def test_heads_of_zeros_and_of_next_to_nothing_are_zeros(dtype):
    x = torch.zeros(4, 32)
    x[1], x[2, 0], x[3] = -0.0, 1e-38, 1e-45
    codes, scales = quantize(x, dtype)
    assert scales.isfinite().all()
    assert (dequantize(codes, scales) == 0).all()


@pytest.mark.parametrize("dtype", FORMATS)
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_a_number_that_is_not_finite_spoils_its_own_head_only(dtype, bad):
    x = torch.randn(5, 2, 32)
    clean = dequantize(*quantize(x, dtype))
    x[3, 1, 7] = bad
    values = dequantize(*quantize(x, dtype))
    assert values[3, 1].isnan().all()
    values[3, 1] = clean[3, 1]
    assert torch.equal(values, clean)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("code", FORMATS)
def test_16_bit_heads_at_the_ends_of_their_range_survive(dtype, code):
    info = torch.finfo(dtype)
    largest = info.max / 4  # what bfloat16's last two powers of two round to may be beyond float32
    x = torch.tensor([[largest, -largest, 1.0, 0.0], [info.smallest_normal, 0.0, 0.0, 0.0]], dtype=dtype)
    values = dequantize(*quantize(x, code))
    assert values.isfinite().all()
    torch.testing.assert_close(values[0, :2], x[0, :2].float(), rtol=2.0**-4, atol=0)


def error_of_attention(loud: float, dtype: torch.dtype, keys: int = 512) -> float:
    """Per cent of a layer's results; four channels of the keys are `loud` times as loud, of the queries as quiet."""
    torch.manual_seed(0)
    q, k, v = torch.randn(8, 64, 128) * 2, torch.randn(8, keys, 128) * 2, torch.randn(8, keys, 128)
    q[..., 5:100:30] /= loud
    k[..., 5:100:30] *= loud
    results = [
        (q @ one.transpose(-1, -2) * 128**-0.5).softmax(-1) @ other
        for one, other in ((k, v), (dequantize(*quantize(k, dtype)), dequantize(*quantize(v, dtype))))
    ]
    return ((results[1] - results[0]).norm() / results[0].norm()).item() * 100


def test_int8_loses_less_on_even_heads_and_fp8_on_heads_with_loud_channels():
    assert 1 < error_of_attention(1, torch.int8) < 2
    assert 6 < error_of_attention(1, torch.float8_e4m3fn) < 8
    assert error_of_attention(30, torch.int8) > 15
    assert 6 < error_of_attention(30, torch.float8_e4m3fn) < 8


def test_a_head_takes_a_byte_a_channel_and_four_for_its_scale():
    assert [head_bytes(128, dtype) for dtype in (torch.int8, torch.float8_e4m3fn)] == [132, 132]
    assert [head_bytes(128, dtype) for dtype in (torch.bfloat16, torch.float32)] == [256, 512]
    assert [dtype for dtype in (torch.int8, torch.float8_e4m3fn, torch.float16) if is_quantized(dtype)] == FORMATS
