"""Products by GGUF blocks, as the kernels compute them, against the decoder of files in float64."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from gguf_cases import KINDS, decoded, random_blocks, random_weight
from kernel_cases import assert_as_good_as_torch

from octavo.engine.quant import gpu_blocks, gpu_codes, gpu_tables
from octavo.engine.quant.base import LinearSpec, Part
from octavo.engine.quant.blocks import BlockFormat
from octavo.engine.quant.gpu_blocks import planes_of
from octavo.kernels.gguf_decode import decode_planes
from octavo.kernels.head_argmax import head_argmax, head_argmax_reference
from octavo.kernels.linear_tiles import DotTile, GemvTile
from octavo.kernels.quant_weight import coded_reference
from octavo.kernels.skinny_linear import skinny_linear, skinny_linear_add, skinny_linear_reference

EPS = 1e-5


LONG = ("Q4_K", "Q5_K", "Q6_K")  # of 256 columns


def size_of(kind, blocks, odd):
    """Columns of a row of some blocks, `odd` if a last group of 128 is not full."""
    return 256 * blocks if kind in LONG else odd


def check(kind, outs, size, rows, tile, dtype=torch.float16, loud=1.0, **around):
    """With everything around the product that `around` names; outputs that nobody writes stay NaN."""
    weight, exact_weight = random_weight(kind, 2 * outs if around.get("act") else outs, size)
    arguments = {"x": (torch.randn(rows, size) * loud).to(dtype), "eps": EPS, "act": around.get("act")}
    if around.get("bias"):
        arguments["bias"] = torch.randn(weight.shape[0]).to(dtype)
    if around.get("norm"):
        arguments["norm"] = torch.rand(size).to(around["norm"])
    if around.get("residual"):
        arguments["residual"] = torch.randn(rows, outs).to(dtype)
    out = torch.full((rows, outs), float("nan"), dtype=dtype)
    skinny_linear(**arguments, weight=weight, out=out, tile=tile)
    wide = {key: value.double() if isinstance(value, torch.Tensor) else value for key, value in arguments.items()}
    exact = skinny_linear_reference(**wide, weight=exact_weight)
    if isinstance(tile, DotTile):
        assert_as_good_as_torch(out, exact.to(dtype), exact, factor=4.0)
    else:  # sums of four products are float16
        assert float((out - exact).norm() / exact.norm()) < 3e-3


@pytest.mark.parametrize("kind", KINDS)
def test_planes_hold_the_very_numbers_of_the_blocks(kind):
    for size in (size_of(kind, 1, 32), size_of(kind, 3, 352)):
        blocks = random_blocks(kind, 5, size)
        weight = planes_of(blocks, kind, size)
        assert torch.equal(coded_reference(weight), decoded(blocks, kind))
        assert torch.equal(decode_planes(weight, torch.float32), decoded(blocks, kind))
        assert torch.equal(decode_planes(weight, torch.float16), decoded(blocks, kind).half())
        picked = torch.tensor([3, 0, 3])
        assert torch.equal(decode_planes(weight, torch.float32, picked), decoded(blocks, kind)[picked])


@pytest.mark.parametrize("kind", KINDS)
def test_one_row_with_all_that_stands_around(kind):
    check(kind, 3, size_of(kind, 1, 352), 1, GemvTile(2, 1024, 1), act="silu", norm=torch.float16, bias=True)


@pytest.mark.parametrize("kind", ["Q4_K", "Q8_0"])
def test_rows_longer_than_a_turn_and_norms_in_float32(kind):
    tile = GemvTile(2, 1024, 1)
    check(kind, 3, size_of(kind, 5, 1376), 2, tile, norm=torch.float32, residual=True)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("rows", "tile"),
    [(3, DotTile(8, 16, 128, 2, 2, slices=2)), (12, DotTile(16, 16, 128, 2, 4))],
    ids=["sliced", "whole"],
)
def test_more_rows(rows, tile, kind):
    check(kind, 18, size_of(kind, 3, 352), rows, tile, bias=True, residual=True)


@pytest.mark.parametrize("kind", ["Q4_K", "Q6_K", "Q8_0"])
def test_gates_of_more_rows(kind):
    tile = DotTile(8, 16, 128, 2, 2, slices=2)
    check(kind, 14, size_of(kind, 1, 160), 3, tile, loud=0.1, bias=True, act="gelu_pytorch_tanh")


@pytest.mark.parametrize("loud", [1e-6, 3e4])
@pytest.mark.parametrize("kind", ["Q4_K", "Q6_K", "Q8_0"])
def test_activations_of_any_magnitude(kind, loud):
    """bfloat16, whose range float16 does not have; single columns a thousand times as loud as the rest."""
    size = 512
    weight, exact_weight = random_weight(kind, 4, size)
    x = torch.randn(1, size) * loud
    x[0, ::37] *= 1000
    x = x.bfloat16()
    found = skinny_linear(x, weight, tile=GemvTile(4, 1024, 1), out_dtype=torch.float32)
    exact = x.double() @ exact_weight.T
    assert float((found - exact).norm() / exact.norm()) < 2e-3


def test_nothing_at_all_and_what_is_not_a_number():
    weight, _ = random_weight("Q4_K", 4, 256)
    x = torch.zeros(1, 256, dtype=torch.float16)
    assert torch.equal(skinny_linear(x, weight, tile=GemvTile(4, 1024, 1)), torch.zeros(1, 4, dtype=torch.float16))
    x[0, 9] = float("nan")
    assert skinny_linear(x, weight, tile=GemvTile(4, 1024, 1)).isnan().all()


@pytest.mark.parametrize("kind", KINDS)
def test_other_codes_and_scales_give_other_results(kind):
    """What the tests above would let pass unnoticed: nibbles in another order, a scale or a high bit of a neighbour."""
    weight, exact_weight = random_weight(kind, 2, 256)
    wrong = [replace(weight, scale=weight.scale.roll(1, 1)), replace(weight, codes=weight.codes.roll(1, 1))]
    if weight.high is not None:
        wrong.append(replace(weight, high=weight.high.roll(1, 1)))
    if kind != "Q8_0":
        swapped = (weight.codes.int() & 0x0F0F) << 4 | (weight.codes.int() >> 4) & 0x0F0F
        wrong.append(replace(weight, codes=swapped.to(torch.int16)))
    x, tile = torch.randn(1, 256).half(), GemvTile(2, 1024, 1)
    exact = x.double() @ exact_weight.T
    limit = 0.01 * float(exact.norm())
    assert float((skinny_linear(x, weight, tile=tile) - exact).norm()) < limit
    for other in wrong:
        assert float((skinny_linear(x, other, tile=tile) - exact).norm()) > 5 * limit
        assert float((x.double() @ other.plain(torch.float64).T - exact).norm()) > 5 * limit


def test_a_norm_is_prepared_by_the_product_before_it():
    (first, exact_first), (second, exact_second) = random_weight("Q8_0", 96, 256), random_weight("Q4_1", 8, 96)
    x, stream, norm = torch.randn(3, 256).half(), torch.randn(3, 96).half(), torch.rand(96).half()
    exact = stream.double() + x.double() @ exact_first.T
    normed = skinny_linear_add(x, first, None, stream, norm, tile=DotTile(8, 16, 128, 2, 2, slices=2))
    assert normed is not None
    torch.testing.assert_close(stream.double(), exact, rtol=2e-3, atol=2e-2)
    out = skinny_linear(normed.x, second, squares=normed.squares, eps=EPS, tile=DotTile(8, 16, 128, 2, 2))
    expected = skinny_linear_reference(stream.double(), exact_second, norm=norm.double(), eps=EPS)
    torch.testing.assert_close(out.double(), expected, rtol=1e-2, atol=2e-2)


@pytest.mark.parametrize(("kind", "rows"), [("Q4_0", 1), ("Q4_0", 3), ("Q6_K", 3)])
def test_the_greedy_choice_of_a_head(kind, rows):
    head, exact = random_weight(kind, 10, 256)
    hidden = torch.randn(rows, 256).half()
    best, ids = head_argmax(hidden, head)
    expected, expected_ids = head_argmax_reference(hidden, exact.float())
    assert torch.equal(ids, expected_ids)
    torch.testing.assert_close(best, expected, rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize("kind", ["Q4_1", "Q6_K", "IQ4_NL", "IQ4_XS", "MXFP4"])
def test_a_loaded_weight_gives_up_its_blocks_and_stays_the_same(kind):
    form, spec = BlockFormat(kind), LinearSpec("w", (Part("w", 12),), 256, bias=True)
    packed = form.allocate(spec, torch.float16, torch.device("cpu"))
    blocks = random_blocks(kind, 12, 256)
    packed.planes["blocks"].copy_(blocks)
    packed.bias.normal_()
    before, ids, x = form.dequantize(packed), torch.tensor([7, 0]), torch.randn(3, 256).half()
    module = gpu_blocks if kind in KINDS else gpu_tables
    packed.fused = module.view_of(form, packed)
    assert "blocks" not in packed.planes
    assert torch.equal(form.dequantize(packed), before)
    assert torch.equal(form.dequantize(packed, ids), before[ids])
    exact = x.double() @ before.double().T + packed.bias.double()
    assert torch.equal(before.float(), decoded(blocks, kind).half().float())
    for product in (gpu_codes.by_codes, module.decoded, lambda x, held: form.linear(x, held)):
        assert float((product(x, packed) - exact).norm() / exact.norm()) < 2e-3
