"""Activations as digits, and products that multiply whole numbers only, against the decoded weight in float64."""

import pytest
import torch
from kernel_cases import assert_as_good_as_torch

from octavo.kernels.compile_all import TARGETS
from octavo.kernels.head_argmax import head_argmax, head_argmax_reference
from octavo.kernels.linear_tiles import DigitRowTile, DigitTile, DotTile, tickets_of
from octavo.kernels.quant_linear import coded_tile
from octavo.kernels.quant_weight import CodedWeight, coded_reference, interleave_bytes, interleave_codes
from octavo.kernels.row_digits import row_digits
from octavo.kernels.skinny_linear import folds_norm, skinny_linear, skinny_linear_reference

EPS = 1e-5
KINDS = [("offset", 128), ("zero", 128), ("shift", 256), ("shift", 0), ("int8", 0)]
ONE_ROW = DigitRowTile(4, 1, 2)
SLICED = DigitTile(4, 16, 2, 2, slices=2)


def weight_of(kind, outs, size, group=128, dtype=torch.float16):
    if kind == "int8":
        codes = torch.randint(-127, 128, (outs, size), dtype=torch.int8)
        return CodedWeight("int8", interleave_bytes(codes), torch.rand(outs, 1) * 0.01 + 0.001, size, size)
    group = group or size
    scale = (torch.rand(outs, -(-size // group)) * 0.1 + 0.01).to(dtype)
    words = interleave_codes(torch.randint(0, 256, (outs, size // 2), dtype=torch.uint8), size)
    zero = torch.randint(0, 17, scale.shape, dtype=torch.uint8) if kind == "zero" else None
    shift = torch.randn(scale.shape).to(dtype) if kind == "shift" else None
    return CodedWeight("int4", words, scale, size, group, 8 if kind == "offset" else 0, zero, shift)


def check(weight, rows, tile, dtype=torch.float16, x=None, **around):
    """With everything around the product that `around` names; outputs that nobody writes stay NaN."""
    outs = weight.shape[0] // (2 if around.get("act") else 1)
    x = torch.randn(rows, weight.size).to(dtype) if x is None else x
    arguments = {"x": x, "eps": EPS, "act": around.get("act")}
    if around.get("bias"):
        arguments["bias"] = torch.randn(weight.shape[0]).to(dtype)
    if around.get("norm"):
        arguments["norm"] = torch.rand(weight.size).to(around["norm"])
    if around.get("residual"):
        arguments["residual"] = torch.randn(rows, outs).to(dtype)
    out = torch.full((rows, outs), float("nan"), dtype=dtype)
    skinny_linear(**arguments, weight=weight, out=out, tile=tile)
    wide = {key: value.double() if isinstance(value, torch.Tensor) else value for key, value in arguments.items()}
    exact = skinny_linear_reference(**wide, weight=coded_reference(weight, torch.float64))
    assert_as_good_as_torch(out, exact.to(dtype), exact, factor=4.0)


def numbers(found, rows, size):
    """What digits stand for, [rows, size], and the sums that were written with them."""
    pairs = found.digits.view(rows, 2, -1, 64, 2).transpose(3, 4).reshape(rows, 2, -1).double()
    sums = found.sums.double()
    totals = (sums[:, 0] + 256 * sums[:, 1]).view(rows, 2, -1)
    step = found.step.double()[:, None]
    blocks = pairs.view(rows, 2, -1, 128).sum(3)
    assert torch.equal(blocks, totals)
    return ((256 * pairs[:, 0] + pairs[:, 1]) * step)[:, :size], step


@pytest.mark.parametrize("size", [128, 200])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_digits_are_within_half_a_step_of_every_number(size, dtype):
    x = torch.randn(3, size).to(dtype)
    x[0, 7] = 1000.0
    x[1] = 0.0
    found, step = numbers(row_digits(x, sums=True), 3, size)
    assert ((found - x.double()).abs() <= 0.5001 * step).all()
    torch.testing.assert_close(step[:, 0], x.abs().amax(1).double().clamp(min=1e-30) / 32512, rtol=1e-6, atol=0)
    norm = torch.rand(size).to(dtype)
    normed, step = numbers(row_digits(x, norm, EPS, sums=True), 3, size)
    exact = x.double() * torch.rsqrt(x.double().pow(2).mean(1, keepdim=True) + EPS) * norm.double()
    assert ((normed - exact).abs() <= 0.5001 * step + 1e-5 * exact.abs()).all()


@pytest.mark.parametrize(("kind", "group"), KINDS)
def test_one_row_with_all_that_stands_around(kind, group):
    check(weight_of(kind, 12, 392, group), 1, ONE_ROW, act="silu", norm=torch.float16, bias=True)


@pytest.mark.parametrize("kind", ["shift", "int8"])
def test_one_row_longer_than_a_turn_and_norms_in_float32(kind):
    weight = weight_of(kind, 10, 1352, dtype=torch.bfloat16)
    check(weight, 1, DigitRowTile(8, 1, 1, ahead=True), torch.bfloat16, norm=torch.float32, residual=True)


@pytest.mark.parametrize(("kind", "group"), KINDS)
@pytest.mark.parametrize(
    ("rows", "tile"),
    [(3, SLICED), (11, DigitTile(8, 32, 2, 4, split=2, blocks=2))],
    ids=["sliced", "shared"],
)
def test_more_rows_with_all_that_stands_around(rows, tile, kind, group):
    check(weight_of(kind, 42, 392, group), rows, tile, bias=True, residual=True, norm=torch.float16)
    assert not tickets_of(torch.device("cpu")).any()


@pytest.mark.parametrize("kind", ["shift", "zero", "int8"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_gates_whose_scales_are_read_in_pairs(kind, dtype):
    check(weight_of(kind, 40, 512, dtype=dtype), 2, SLICED, dtype, act="gelu_pytorch_tanh")


@pytest.mark.parametrize("large", [1.0, 1000.0])
@pytest.mark.parametrize("kind", ["shift", "int8"])
@pytest.mark.parametrize("rows", [1, 2])
def test_a_channel_a_thousand_times_as_large_costs_less_than_the_rounding_of_the_result(rows, kind, large):
    weight = weight_of(kind, 16, 1024)
    x = torch.randn(rows, 1024).bfloat16()
    x[:, 300] *= large
    found = skinny_linear(x, weight, tile=ONE_ROW if rows == 1 else SLICED, out_dtype=torch.float32)
    exact = x.double() @ coded_reference(weight, torch.float64).T
    assert (found.double() - exact).norm() <= 0.5 * (exact.bfloat16().double() - exact).norm()


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("kind", ["shift", "int8"])
def test_a_row_that_is_not_finite_says_so_and_leaves_its_neighbours_alone(kind, bad):
    weight = weight_of(kind, 16, 256)
    x = torch.randn(3, 256).half()
    healthy = skinny_linear(x, weight, tile=SLICED)
    x[1, 40] = bad
    found = skinny_linear(x, weight, tile=SLICED)
    assert not found[1].isfinite().any()
    assert torch.equal(found[[0, 2]], healthy[[0, 2]])
    assert not skinny_linear(x[1:2], weight, tile=ONE_ROW).isfinite().any()


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("kind", ["offset", "int8"])
def test_the_greedy_choice_of_a_head(kind, rows):
    head = weight_of(kind, 30, 128)
    hidden = torch.randn(rows, 128).half()
    tile = ONE_ROW if rows == 1 else DigitTile(4, 16, 2, 2)
    best, ids = head_argmax(hidden, head, tile=tile)
    expected, expected_ids = head_argmax_reference(hidden, coded_reference(head))
    assert torch.equal(ids, expected_ids)
    torch.testing.assert_close(best, expected, rtol=1e-3, atol=1e-3)


def test_digits_are_taken_where_they_were_faster_and_as_exact():
    def tile(kind, rows, traits, group=128, dtype=torch.bfloat16):
        return coded_tile(weight_of(kind, 64, 4096, group), rows, False, traits, dtype)

    for traits in TARGETS.values():
        for kind in ("shift", "int8"):
            assert isinstance(tile(kind, 1, traits), DigitRowTile) == traits.tensor_cores
        for kind, rows in (("shift", 2), ("shift", 8), ("shift", 16), ("int8", 2), ("int8", 16)):
            assert isinstance(tile(kind, rows, traits), DigitTile) == traits.tensor_cores
        assert isinstance(tile("shift", 8, traits, dtype=torch.float16), DotTile)
        assert isinstance(tile("int8", 8, traits), DotTile)
        assert not isinstance(tile("shift", 1, traits, group=64), DigitRowTile)
    weight = weight_of("shift", 64, 256)
    assert folds_norm(torch.randn(1, 256).half(), weight, False)
    assert folds_norm(torch.randn(2, 256).bfloat16(), weight, False)
    assert not folds_norm(torch.randn(2, 256).half(), weight, False)
