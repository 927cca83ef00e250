"""Rounding to 8-bit codes inside kernels, and back, against plain torch."""

import pytest
import torch
import triton
import triton.language as tl

from octavo.kernels import kv_format
from octavo.kernels.kv_codes import decode, encode, even_codes, odd_codes, pairs
from octavo.kernels.kv_format import as_bytes, as_pairs, dequantize, kind, quantize

FORMATS = [torch.int8, torch.float8_e4m3fn]
FACTOR = {torch.int8: 1.0, torch.float8_e4m3fn: 2.0**120}


@triton.jit
def round_trip(x_ptr, codes_ptr, scale_ptr, read_ptr, words_ptr, M: tl.constexpr, D: tl.constexpr, KV: tl.constexpr):
    row = tl.arange(0, M)
    at = row[:, None] * D + tl.arange(0, D)[None, :]
    codes, scale = encode(tl.load(x_ptr + at), KV)
    tl.store(codes_ptr + at, codes)
    tl.store(scale_ptr + row, scale)
    tl.store(read_ptr + at, decode(codes, KV) * scale[:, None])
    tl.store(words_ptr + row[:, None] * (D // 2) + tl.arange(0, D // 2)[None, :], pairs(codes))


@triton.jit
def open_words(words_ptr, even_ptr, odd_ptr, N: tl.constexpr, KV: tl.constexpr):
    at = tl.arange(0, N)
    words = tl.load(words_ptr + at)
    tl.store(even_ptr + at, even_codes(words, KV, True))
    tl.store(odd_ptr + at, odd_codes(words, KV, True))


def run(x: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
    """(codes, scales, values as read) of heads [M, D] by the kernel; words are checked on the way."""
    codes = torch.empty(x.shape, dtype=torch.uint8)
    scales, read = torch.empty(len(x)), torch.empty(x.shape)
    words = torch.empty((len(x), x.shape[1] // 2), dtype=torch.uint16)
    round_trip[(1,)](x, codes, scales, read, words, *x.shape, kind(dtype))
    assert torch.equal(words.view(torch.uint8), codes)
    return codes.view(dtype), scales, read


@pytest.mark.parametrize("dtype", FORMATS)
@pytest.mark.parametrize("source", [torch.float32, torch.float16])
def test_kernels_round_heads_to_the_codes_of_plain_torch(dtype, source):
    sizes = torch.logspace(-4, 3, 512) if source == torch.float16 else torch.logspace(-25, 30, 512)
    x = (torch.randn(512, 32) * sizes[:, None]).to(source)
    x[5], x[6, 3:] = 0, 0
    x[9, 4] = float("nan")
    x[10, 0] = float("-inf")
    codes, scales, read = run(x, dtype)
    wanted, wanted_scales = quantize(x, dtype)
    finite = wanted_scales.isfinite()
    assert finite.sum() == 510
    assert torch.equal(as_bytes(codes)[finite], as_bytes(wanted)[finite])
    torch.testing.assert_close(scales, wanted_scales, rtol=0, atol=0, equal_nan=True)
    torch.testing.assert_close(read, dequantize(wanted, wanted_scales), rtol=0, atol=0, equal_nan=True)


def test_every_number_between_two_fp8_codes_goes_to_the_nearer_one_and_ties_to_even():
    grid = torch.arange(0x7F, dtype=torch.uint8).view(torch.float8_e4m3fn).float()
    middle = (grid[1:] + grid[:-1]) / 2
    near = torch.stack([middle, middle.nextafter(torch.tensor(0.0)), middle.nextafter(torch.tensor(1e9))])
    x = torch.cat((grid, near.flatten()))
    x = torch.nn.functional.pad(x, (0, 511 - len(x)))
    heads = torch.stack((x, -x)).reshape(-1, 1)
    heads = torch.cat((heads, torch.full_like(heads, 448.0)), 1)  # the head's largest number: its scale is one
    heads = torch.nn.functional.pad(heads, (0, 0, 0, 1024 - len(heads)))
    codes, scales, _ = run(heads, torch.float8_e4m3fn)
    assert (scales[:-2] == 1).all()
    assert torch.equal(as_bytes(codes), as_bytes(heads.to(torch.float8_e4m3fn)))


@pytest.mark.parametrize("dtype", FORMATS)
def test_words_open_into_the_values_of_both_their_codes(dtype):
    code = torch.arange(256, dtype=torch.uint8)
    if dtype == torch.float8_e4m3fn:
        code[[0x7F, 0xFF]] = 0  # not a number; never written
    both = torch.stack((code, code.flip(0)), 1).contiguous()
    even, odd = torch.empty(2, 256)
    open_words[(1,)](both.view(torch.uint16).view(-1), even, odd, 256, kind(dtype))
    for found, wanted in ((even, code), (odd, code.flip(0))):
        assert torch.equal(found * FACTOR[dtype], wanted.view(dtype).float())


def test_pairs_are_read_with_the_first_code_in_the_low_byte():
    codes = torch.tensor([[1, 2, 3, 4]], dtype=torch.int8)
    assert as_pairs(codes).tolist() == [[0x0201, 0x0403]]
    assert kv_format.kind(torch.bfloat16) == kv_format.PLAIN
