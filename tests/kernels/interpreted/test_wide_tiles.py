"""Products of some tens of rows: programs that share a block of outputs, and codes decoded into wide products."""

import pytest
import torch
from kernel_cases import assert_as_good_as_torch

from octavo.kernels.linear_tiles import DotTile
from octavo.kernels.quant_weight import CodedWeight, coded_reference, interleave_bytes, interleave_codes, separate_bytes
from octavo.kernels.skinny_linear import skinny_linear, skinny_linear_add, skinny_linear_reference

EPS = 1e-5
SHARED = [DotTile(32, 16, 32, 2, 4, split=3), DotTile(16, 16, 32, 2, 4, slices=2, split=2)]


def wide_tile(split=1):
    return DotTile(32, 32, 128, 2, 4, split=split, wide=True)


def four_bit(outs, size, group, kind):
    group = group or size
    groups = -(-size // group)
    scale = (torch.rand(outs, groups) * 0.1 + 0.01).half()
    words = interleave_codes(torch.randint(0, 256, (outs, size // 2), dtype=torch.uint8), size)
    zero = torch.randint(0, 17, (outs, groups), dtype=torch.uint8) if kind == "zero" else None
    shift = torch.randn(outs, groups).half() if kind == "shift" else None
    return CodedWeight("int4", words, scale, size, group, 8 if kind == "offset" else 0, zero, shift)


def eight_bit(outs, size):
    codes = torch.randint(-128, 128, (outs, size), dtype=torch.int8)
    return CodedWeight("int8", interleave_bytes(codes), torch.rand(outs, 1) * 0.01 + 0.001, size, size)


def check(weight, rows, tile, dtype=torch.float16, act=None):
    """With bias and residual; outputs that nobody writes stay NaN, and decoded weights are rounded to `dtype`."""
    outs, size = weight.shape
    wide = coded_reference(weight, torch.float64) if isinstance(weight, CodedWeight) else weight.double()
    residual = torch.randn(rows, outs // 2 if act else outs).to(dtype)
    arguments = {"x": torch.randn(rows, size).to(dtype), "bias": torch.randn(outs).to(dtype), "residual": residual}
    out = torch.full(residual.shape, float("nan"), dtype=dtype)
    skinny_linear(**arguments, weight=weight, act=act, out=out, tile=tile)
    exact = skinny_linear_reference(**{name: each.double() for name, each in arguments.items()}, weight=wide, act=act)
    rounded = skinny_linear_reference(**arguments, weight=wide.to(dtype), act=act)
    assert_as_good_as_torch(out, rounded, exact, factor=4.0)


@pytest.mark.parametrize("tile", SHARED)
def test_programs_that_share_a_block_add_up_to_the_product(tile):
    check((torch.randn(26, 200) / 14).half(), 20, tile, act="silu")


@pytest.mark.parametrize("tile", SHARED)
def test_programs_that_share_a_block_prepare_the_next_norm_and_leave_their_tickets_as_they_were(tile):
    weight, following = torch.randn(40, 200) / 14, torch.randn(13, 40) / 6
    norm = torch.rand(40)
    for _ in range(2):
        x, before = torch.randn(20, 200), torch.randn(20, 40)
        stream = before.clone()
        normed = skinny_linear_add(x, weight, None, stream, norm, tile=tile)
        torch.testing.assert_close(stream, skinny_linear_reference(x, weight, residual=before))
        expected = skinny_linear_reference(stream, following, norm=norm, eps=EPS)
        out = skinny_linear(normed.x, following, squares=normed.squares, eps=EPS, tile=tile)
        torch.testing.assert_close(out, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("group", "kind"),
    [(128, "offset"), (128, "zero"), (128, "shift"), (64, "shift"), (32, "zero"), (256, "shift"), (0, "offset")],
)
def test_wide_products_by_four_bit_codes(group, kind):
    check(four_bit(84, 576, group, kind), 20, wide_tile(), act="silu")


def test_wide_products_whose_programs_share_blocks_and_whose_rows_need_two():
    check(four_bit(42, 392, 128, "shift"), 40, wide_tile(split=3))


@pytest.mark.parametrize("size", [200, 256])
def test_wide_products_by_interleaved_eight_bit_codes(size):
    check(eight_bit(40, size), 20, wide_tile(split=2))


@pytest.mark.parametrize("size", [8, 128, 200])
def test_interleaved_bytes_are_the_codes_and_a_word_holds_two_columns_64_apart(size):
    codes = torch.randint(-128, 128, (3, size), dtype=torch.int8)
    words = interleave_bytes(codes)
    assert words.shape == (3, -(-size // 128) * 64)
    assert torch.equal(separate_bytes(words, size), codes)
    one = torch.zeros(1, 128, dtype=torch.int8)
    one[0, 64 + 5] = 3
    assert interleave_bytes(one)[0].nonzero().flatten().tolist() == [5]
    assert int(interleave_bytes(one)[0, 5]) == 0x0300
