import pytest
import torch
from kernel_cases import assert_as_good_as_torch

from octavo.kernels.device import NO_DEVICE
from octavo.kernels.skinny_linear import (
    DotTile,
    GemvTile,
    choose_tile,
    skinny_linear,
    skinny_linear_reference,
)

EPS = 1e-5
TILES = [
    (GemvTile(4, 64, 4), 1),
    (GemvTile(2, 256, 4), 2),
    (DotTile(16, 16, 32, 2, 4), 3),
    (DotTile(16, 16, 64, 2, 4, weight_first=True), 16),
]
AROUND = [
    {},
    {"norm": True},
    {"bias": True, "residual": True},
    {"norm": True, "bias": True, "act": "silu"},
    {"norm": True, "act": "gelu_pytorch_tanh", "residual": True},
]


def case(rows, outs, size, dtype, norm=False, bias=False, residual=False, act=None):
    weight = (torch.randn(outs * (2 if act else 1), size) / size**0.5).to(dtype)
    return {
        "x": torch.randn(rows, size).mul(2).to(dtype),
        "weight": weight,
        "bias": torch.randn(weight.shape[0]).to(dtype) if bias else None,
        "norm": torch.rand(size).to(dtype) if norm else None,
        "residual": torch.randn(rows, outs).to(dtype) if residual else None,
        "act": act,
        "eps": EPS,
    }


def wide(arguments):
    return {key: value.double() if isinstance(value, torch.Tensor) else value for key, value in arguments.items()}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("around", AROUND)
@pytest.mark.parametrize(("tile", "rows"), TILES)
def test_a_product_with_what_stands_around_it_is_as_good_as_torch(tile, rows, around, dtype):
    arguments = case(rows, 13, 200, dtype, **around)
    exact = skinny_linear_reference(**wide(arguments))
    out = torch.full((rows, 13), float("nan"), dtype=dtype)
    assert skinny_linear(**arguments, out=out, tile=tile) is out
    assert_as_good_as_torch(out, skinny_linear_reference(**arguments), exact)


def test_the_residual_can_be_added_in_place():
    arguments = case(2, 24, 64, torch.float32, residual=True)
    expected = skinny_linear_reference(**arguments)
    skinny_linear(**arguments, out=arguments["residual"])
    torch.testing.assert_close(arguments["residual"], expected)


def test_a_row_has_the_same_bits_whatever_stands_beside_it():
    for tile, rows in ((GemvTile(4, 64, 4), 2), (DotTile(16, 16, 32, 2, 4), 7)):
        arguments = case(rows, 30, 96, torch.float16, norm=True)
        together = skinny_linear(**arguments, tile=tile)
        arguments["x"] = torch.cat((arguments["x"][:1], torch.randn(rows - 1, 96).half()))
        assert torch.equal(skinny_linear(**arguments, tile=tile)[0], together[0])


def test_scores_can_be_left_in_float32():
    arguments = case(1, 40, 64, torch.float16)
    out = skinny_linear(**arguments, out_dtype=torch.float32)
    assert out.dtype == torch.float32
    torch.testing.assert_close(out, skinny_linear_reference(**wide(arguments)).float(), rtol=1e-5, atol=1e-6)


def test_the_tile_depends_on_shapes_rows_and_device_alone():
    first = choose_tile(1, 4096, 4096, False, NO_DEVICE)
    choose_tile.cache_clear()
    assert choose_tile(1, 4096, 4096, False, NO_DEVICE) == first
