from itertools import product

import pytest
import torch
from kernel_cases import assert_as_good_as_torch

from octavo.kernels.compile_all import TARGETS
from octavo.kernels.device import as_device
from octavo.kernels.skinny_linear import (
    DotTile,
    GemvTile,
    choose_tile,
    skinny_linear,
    skinny_linear_add,
    skinny_linear_reference,
    suits,
)

EPS = 1e-5
GEMV = [(GemvTile(4, 64, 4), 1), (GemvTile(2, 256, 4), 2)]
DOT = [(DotTile(16, 16, 32, 2, 4), 3), (DotTile(8, 16, 32, 2, 4, slices=4, first=64), 5)]
AROUND = [
    {"bias": True, "residual": True},
    {"bias": True, "act": "silu"},
    {"act": "gelu_pytorch_tanh", "residual": True},
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


def check(arguments, tile, dtype):
    rows, outs = arguments["x"].shape[0], 13
    out = torch.full((rows, outs), float("nan"), dtype=dtype)
    assert skinny_linear(**arguments, out=out, tile=tile) is out
    exact = skinny_linear_reference(**wide(arguments))
    assert_as_good_as_torch(out, skinny_linear_reference(**arguments), exact)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("around", AROUND)
@pytest.mark.parametrize(("tile", "rows"), GEMV + DOT)
def test_a_product_with_what_stands_around_it_is_as_good_as_torch(tile, rows, around, dtype):
    check(case(rows, 13, 200, dtype, **around), tile, dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize(("tile", "rows"), GEMV)
def test_a_norm_is_folded_into_the_product_of_one_or_two_rows(tile, rows, dtype):
    check(case(rows, 13, 200, dtype, norm=True, act="silu"), tile, dtype)


@pytest.mark.parametrize(("tile", "rows"), DOT)
def test_a_norm_of_more_rows_is_prepared_by_the_product_before_it(tile, rows):
    first = case(rows, 40, 72, torch.float32, residual=True)
    second = case(rows, 13, 40, torch.float32, norm=True, act="silu")
    stream = first["residual"].clone()
    normed = skinny_linear_add(first["x"], first["weight"], None, stream, second["norm"], tile=tile)
    torch.testing.assert_close(stream, skinny_linear_reference(**first))
    torch.testing.assert_close(normed.x, stream * second["norm"])
    torch.testing.assert_close(normed.squares.sum(1), stream.pow(2).sum(1))
    second["x"] = stream
    expected = skinny_linear_reference(**second)
    out = skinny_linear(normed.x, second["weight"], squares=normed.squares, eps=EPS, act="silu", tile=tile)
    torch.testing.assert_close(out, expected, rtol=1e-4, atol=1e-5)


def test_the_residual_can_be_added_in_place():
    arguments = case(2, 24, 64, torch.float32, residual=True)
    expected = skinny_linear_reference(**arguments)
    skinny_linear(**arguments, out=arguments["residual"])
    torch.testing.assert_close(arguments["residual"], expected)


def test_a_row_has_the_same_bits_whatever_stands_beside_it():
    for tile, rows in ((GemvTile(4, 64, 4), 2), (DotTile(16, 16, 32, 2, 4), 7)):
        arguments = case(rows, 30, 96, torch.float16, bias=True)
        together = skinny_linear(**arguments, tile=tile)
        arguments["x"] = torch.cat((arguments["x"][:1], torch.randn(rows - 1, 96).half()))
        assert torch.equal(skinny_linear(**arguments, tile=tile)[0], together[0])


def test_scores_can_be_left_in_float32():
    arguments = case(1, 40, 64, torch.float16)
    out = skinny_linear(**arguments, out_dtype=torch.float32)
    assert out.dtype == torch.float32
    torch.testing.assert_close(out, skinny_linear_reference(**wide(arguments)).float(), rtol=1e-5, atol=1e-6)


def test_tiles_fit_the_shared_memory_of_every_generation():
    for traits in filter(lambda traits: traits.tensor_cores, TARGETS.values()):
        for rows, outs, size, gated in product((3, 8, 16), (896, 28672), (896, 4096, 14336), (False, True)):
            tile = choose_tile(rows, outs, size, gated, traits)
            turn = tile.block_n * (2 if gated else 1) + tile.block_t
            assert turn * tile.block_k * tile.slices * tile.stages * 2 <= traits.shared_bytes


def test_more_rows_of_large_weights_and_other_types_are_left_to_the_library():
    cpu, half = torch.device("cpu"), torch.float16
    assert suits(8, 28672, 4096, half, cpu)
    assert not suits(9, 28672, 4096, half, cpu)
    assert suits(16, 1152, 896, half, cpu)
    assert not suits(17, 1152, 896, half, cpu)
    assert not suits(1, 1152, 896, torch.float32, cpu)
    with as_device(TARGETS[75]):
        assert suits(2, 1152, 896, half, cpu)
        assert not suits(3, 1152, 896, half, cpu)
