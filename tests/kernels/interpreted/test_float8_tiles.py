"""Products with E4M3 weights by E4M3 terms of the activations, and the terms themselves."""

import pytest
import torch
import triton
import triton.language as tl
from kernel_cases import assert_as_good_as_torch

from octavo.kernels.compile_cases import TARGETS
from octavo.kernels.float8_linear import choose_float8, suits_float8
from octavo.kernels.float8_tile import in_terms
from octavo.kernels.head_argmax import head_argmax, head_argmax_reference
from octavo.kernels.linear_tiles import DotTile, GemvTile, tickets_of
from octavo.kernels.quant_weight import CodedWeight, coded_reference
from octavo.kernels.skinny_linear import skinny_linear, skinny_linear_add, skinny_linear_reference

EPS = 1e-5


def weights(outs, size, group=0):
    """Scales of neighbouring groups differ by up to eleven times: another one's would be seen."""
    group = group or size
    codes = (torch.randn(outs, size) * 100).clamp(-448, 448).to(torch.float8_e4m3fn)
    scale = torch.rand(outs, -(-size // group)) * 0.01 + 0.001
    return CodedWeight("e4m3", codes.view(torch.uint8), scale, size, group)


def tile(split=1, block_k=128, terms=2, block_t=8):
    return DotTile(block_t, 32, block_k, 2, 4, split=split, terms=terms)


@triton.jit
def _terms_kernel(x_ptr, terms_ptr, scales_ptr, ROWS: tl.constexpr, SIZE: tl.constexpr, TERMS: tl.constexpr):
    row, col = tl.arange(0, ROWS), tl.arange(0, SIZE)
    x = tl.load(x_ptr + row[:, None] * SIZE + col[None, :]).to(tl.float32)
    terms, scales = in_terms(x, TERMS, False)
    line = tl.arange(0, ROWS * TERMS)
    tl.store(terms_ptr + line[:, None] * SIZE + col[None, :], terms.to(tl.float32))
    tl.store(scales_ptr + line, scales)


def read_back(x, terms=2):
    """What the terms of rows [rows, size] stand for."""
    rows, size = x.shape
    numbers, scales = torch.empty(rows * terms, size), torch.empty(rows * terms)
    _terms_kernel[(1,)](x, numbers, scales, ROWS=rows, SIZE=size, TERMS=terms)
    return (numbers.double() * scales.double()[:, None]).view(rows, terms, size).sum(1)


@pytest.mark.parametrize("largest", [1.0, 1.9921875, 3e4, 2.0**-60])
def test_two_terms_are_a_bfloat16_number_to_the_last_bit(largest):
    x = (torch.randn(4, 256) * 2.0 ** torch.randint(-9, 0, (4, 256))).clamp(-0.99, 0.99) * largest
    x[:, 3] = largest
    x = x.bfloat16().float()
    x = torch.where(x.abs() >= largest / 8192, x, 0.0)
    assert torch.equal(read_back(x), x.double())


def test_what_is_far_below_the_largest_keeps_an_error_far_below_it():
    x = (torch.randn(4, 256) * 2.0**-14).bfloat16().float()
    x[:, 0] = 1.0
    assert float((read_back(x) - x.double()).abs().max()) <= 2.0**-21


def test_one_term_is_a_number_to_its_fourth_bit():
    x = torch.rand(4, 128) + 0.5
    error = (read_back(x, terms=1) - x.double()).abs() / x
    assert 0.03 < float(error.max()) <= 2.0**-4


def test_rows_without_numbers_say_so_and_rows_of_zeros_stay_zero():
    x = torch.randn(4, 128)
    x[0], x[1, 5], x[2, 7] = 0.0, float("nan"), float("-inf")
    back = read_back(x)
    assert not back[0].any()
    assert back[1:3].isnan().all()
    assert back[3].isfinite().all()


@pytest.mark.parametrize(
    ("rows", "outs", "size", "its", "act", "group"),
    [
        (1, 40, 256, tile(), None, 0),
        (3, 40, 400, tile(split=2), "silu", 128),
        (11, 32, 640, tile(split=3, block_k=256), None, 0),
        (3, 70, 144, tile(split=4), "gelu_pytorch_tanh", 0),
        (11, 40, 784, tile(block_t=16), None, 256),
    ],
)
def test_products_by_two_terms_are_those_of_16_bit_activations(rows, outs, size, its, act, group):
    """With bias and residual; outputs that nobody writes stay NaN."""
    weight = weights(outs * (2 if act else 1), size, group)
    x = torch.randn(rows, size).bfloat16().half()  # what two terms are to the last bit
    around = {"bias": torch.randn(weight.shape[0]).half(), "residual": torch.randn(rows, outs).half()}
    out = torch.full((rows, outs), float("nan"), dtype=torch.float16)
    skinny_linear(x, weight, **around, act=act, out=out, tile=its)
    wide = coded_reference(weight, torch.float64)
    exact = skinny_linear_reference(x.double(), wide, **{n: a.double() for n, a in around.items()}, act=act)
    rounded = skinny_linear_reference(x, wide.half(), **around, act=act)
    assert_as_good_as_torch(out, rounded, exact, factor=2.0)


def test_products_by_one_term_are_as_near_as_rounded_activations_let_them():
    weight, x = weights(40, 512), torch.randn(20, 512).half()
    out = skinny_linear(x, weight, out_dtype=torch.float32, tile=tile(terms=1, block_t=32))
    exact = x.double() @ coded_reference(weight, torch.float64).T
    assert 0.01 < float((out - exact).norm() / exact.norm()) < 0.035


def test_programs_that_share_a_block_prepare_the_next_norm_and_leave_their_tickets_as_they_were():
    weight, following, norm = weights(48, 400), weights(2 * 26, 48), torch.rand(48)
    for _ in range(2):
        x, before = torch.randn(10, 400).bfloat16().float(), torch.randn(10, 48)
        stream = before.clone()
        normed = skinny_linear_add(x, weight, None, stream, norm, tile=tile(split=3))
        torch.testing.assert_close(stream, skinny_linear_reference(x, weight, residual=before), rtol=1e-4, atol=1e-3)
        assert not tickets_of(x.device).any()
        expected = skinny_linear_reference(stream, following, norm=norm, eps=EPS, act="silu")
        out = skinny_linear(normed.x, following, squares=normed.squares, eps=EPS, act="silu", tile=tile())
        torch.testing.assert_close(out, expected, rtol=1e-2, atol=1e-2)


def test_the_greedy_choice():
    head, hidden = weights(70, 144), torch.randn(5, 144).bfloat16().half()
    best, ids = head_argmax(hidden, head)
    expected, expected_ids = head_argmax_reference(hidden, coded_reference(head, torch.float32))
    torch.testing.assert_close(best, expected, rtol=1e-4, atol=1e-4)
    assert torch.equal(ids, expected_ids)


def test_a_row_is_the_same_whatever_stands_beside_it():
    weight, x = weights(40, 256), torch.randn(3, 256).half()
    alone = skinny_linear(x[:1], weight, tile=tile())
    assert torch.equal(skinny_linear(x, weight, tile=tile())[:1], alone)
    assert torch.equal(skinny_linear(torch.cat((x[:1], x[1:] * 1000)), weight, tile=tile())[:1], alone)


def gemv(rows, outs, size, block_k, act=None, norm_type=None, dtype=torch.float16, group=0):
    """(by multiply-adds, by the book) with bias and residual; outputs that nobody writes stay NaN."""
    weight = weights(outs * (2 if act else 1), size, group)
    x = torch.randn(rows, size).to(dtype)
    around = {"bias": torch.randn(weight.shape[0]).to(dtype), "residual": torch.randn(rows, outs).to(dtype)}
    if norm_type is not None:
        around["norm"] = torch.rand(size).to(norm_type)
    out = torch.full((rows, outs), float("nan"), dtype=torch.float32)
    its = GemvTile(2, block_k, 1, float8=True)
    skinny_linear(x, weight, **around, eps=EPS, act=act, out=out, tile=its)
    wide = coded_reference(weight, torch.float64)
    return out, skinny_linear_reference(
        x.double(), wide, **{n: a.double() for n, a in around.items()}, eps=EPS, act=act
    )


@pytest.mark.parametrize(
    ("rows", "outs", "size", "block_k", "act", "norm_type", "group"),
    [
        (1, 7, 512, 512, None, None, 0),
        (2, 6, 1040, 512, "silu", torch.float16, 128),
        (1, 5, 144, 512, None, torch.float32, 128),
        (2, 4, 1024, 1024, "gelu", None, 0),
    ],
)
def test_multiply_adds_in_float16_lose_about_as_much_as_a_result_in_bfloat16(
    rows, outs, size, block_k, act, norm_type, group
):
    out, exact = gemv(rows, outs, size, block_k, act, norm_type, group=group)
    assert float((out - exact).norm() / exact.norm()) < (3e-3 if act else 1.5e-3)


def test_multiply_adds_stay_within_float16_where_codes_and_activations_are_largest():
    codes = torch.full((4, 512), 448.0).to(torch.float8_e4m3fn)
    weight = CodedWeight("e4m3", codes.view(torch.uint8), torch.ones(4, 1), 512, 512)
    x = torch.full((1, 512), 60000.0).half()
    out = skinny_linear(x, weight, out_dtype=torch.float32, tile=GemvTile(4, 512, 1, float8=True))
    torch.testing.assert_close(out, torch.full((1, 4), 448.0 * 60000.0 * 512).float(), rtol=2e-3, atol=0)


def test_a_row_that_holds_no_number_makes_results_that_are_none_and_leaves_the_other_alone():
    weight, x = weights(4, 512), torch.randn(2, 512).half()
    x[1, 3] = float("nan")
    out = skinny_linear(x, weight, tile=GemvTile(4, 512, 1, float8=True))
    assert out[0].isfinite().all()
    assert out[1].isnan().all()


LAYER = {
    "qkv": (6144, 4096, False),
    "o": (4096, 4096, False),
    "gate": (14336, 4096, True),
    "down": (4096, 14336, False),
}


def chosen(rows, traits=TARGETS[90]):
    """{product: (outputs, columns, stages, warps, split)} of an 8B's layer, of multiply-adds (outputs, columns, warps),
    None where other kernels are faster."""
    tiles = {}
    for name, shape in LAYER.items():
        if not suits_float8(rows, *shape, traits):
            tiles[name] = None
            continue
        its = choose_float8(rows, *shape, traits)
        parts = (its.stages, its.warps, its.split) if isinstance(its, DotTile) else (its.warps,)
        tiles[name] = (its.block_n, its.block_k, *parts)
    return tiles


def test_tiles_are_those_that_were_fastest_where_they_were_measured():
    few, many = (4, 2048, 4), (8, 2048, 4)
    assert chosen(1) == {"qkv": many, "o": few, "gate": few, "down": few}
    assert chosen(8) == {"qkv": (64, 256, 3, 4, 4), "o": None, "gate": (64, 256, 3, 8, 1), "down": None}
    few, many = (64, 128, 6, 4, 4), (64, 128, 4, 4, 8)
    assert chosen(16) == {"qkv": few, "o": few, "gate": (64, 128, 4, 4, 1), "down": many}


def test_other_cards_and_small_models_keep_the_kernels_they_had():
    assert not any(chosen(1, TARGETS[80]).values())
    assert all(chosen(1, TARGETS[89]).values())
    for traits in (TARGETS[89], TARGETS[100], TARGETS[120]):
        assert not any(chosen(8, traits).values())
        assert not any(chosen(16, traits).values())
    assert not suits_float8(8, 4864, 896, False, TARGETS[90])
    assert not suits_float8(1, 4096, 1000, False, TARGETS[90])  # 16 bytes a copy
