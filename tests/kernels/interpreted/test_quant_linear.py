"""Products by codes, as the kernels compute them, against the decoded weight in float64."""

from dataclasses import replace
from itertools import product

import pytest
import torch
from kernel_cases import assert_as_good_as_torch

from octavo.kernels.code_tables import TABLES
from octavo.kernels.compile_all import TARGETS
from octavo.kernels.device import as_device
from octavo.kernels.head_argmax import head_argmax, head_argmax_reference
from octavo.kernels.linear_tiles import DotTile, GemvTile
from octavo.kernels.quant_decode import decode
from octavo.kernels.quant_linear import choose_coded_tile, coded_tile
from octavo.kernels.quant_weight import (
    CodedWeight,
    coded_reference,
    groups_suit,
    interleave_bytes,
    interleave_codes,
    separate_codes,
    words_of,
)
from octavo.kernels.skinny_linear import (
    folds_norm,
    skinny_linear,
    skinny_linear_add,
    skinny_linear_reference,
    suits_codes,
)

EPS = 1e-5
GROUPS = [(128, "offset"), (128, "zero"), (64, "shift"), (32, "zero"), (32, "shift"), (256, "shift"), (0, "offset")]


def four_bit(outs, size, group=128, kind="offset", dtype=torch.float16):
    group = group or size
    groups = -(-size // group)
    scale = (torch.rand(outs, groups) * 0.1 + 0.01).to(dtype)
    words = interleave_codes(torch.randint(0, 256, (outs, size // 2), dtype=torch.uint8), size)
    zero = torch.randint(0, 17, (outs, groups), dtype=torch.uint8) if kind == "zero" else None
    shift = torch.randn(outs, groups).to(dtype) if kind == "shift" else None
    return CodedWeight("int4", words, scale, size, group, 8 if kind == "offset" else 0, zero, shift)


def eight_bit(code, outs, size, group=0):
    scale = torch.rand(outs, -(-size // group) if group else 1) * 0.01 + 0.001
    if code == "int8":
        return CodedWeight(code, torch.randint(-127, 128, (outs, size), dtype=torch.int8), scale, size, size)
    codes = (torch.randn(outs, size) * 50).to(torch.float8_e4m3fn).view(torch.uint8)
    return CodedWeight(code, codes, scale, size, group or size)


def of_table(name, outs, size, group=64, dtype=torch.float32):
    """Scales may be E8M0, given as uint8."""
    group = group or size
    words = interleave_codes(torch.randint(0, 256, (outs, size // 2), dtype=torch.uint8), size)
    scale = torch.rand(outs, -(-size // group)) * 0.1 + 0.01
    scale = torch.randint(122, 130, scale.shape, dtype=torch.uint8) if dtype == torch.uint8 else scale.to(dtype)
    return CodedWeight(name, words, scale, size, group)


def check(weight, rows, tile, dtype=torch.float16, **around):
    """With everything around the product that `around` names; outputs that nobody writes stay NaN."""
    outs = weight.shape[0] // (2 if around.get("act") else 1)
    arguments = {"x": torch.randn(rows, weight.size).to(dtype), "eps": EPS, "act": around.get("act")}
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


@pytest.mark.parametrize("size", [8, 120, 128, 200, 576])
def test_interleaved_codes_are_the_codes(size):
    codes = torch.randint(0, 256, (3, size // 2), dtype=torch.uint8)
    words = interleave_codes(codes, size)
    assert words.shape == (3, words_of(size))
    assert torch.equal(separate_codes(words, size)[:, ::2], codes & 15)
    assert torch.equal(separate_codes(words, size)[:, 1::2], codes >> 4)


def test_a_word_holds_the_codes_of_four_columns_32_apart():
    codes = torch.zeros(1, 64, dtype=torch.uint8)
    for quarter in range(4):
        codes[0, quarter * 16 + 2] = (quarter + 1) << 4  # column 32 * quarter + 5
    words = interleave_codes(codes, 128)
    assert words[0].nonzero().flatten().tolist() == [5]
    assert int(words[0, 5]) == 0x4321


@pytest.mark.parametrize(("group", "kind"), GROUPS)
def test_one_row_of_four_bit_codes_with_all_that_stands_around(group, kind):
    check(four_bit(12, 392, group, kind), 1, GemvTile(4, 1024, 1), act="silu", norm=torch.float16, bias=True)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("rows", [1, 2])
def test_rows_longer_than_a_turn_and_norms_in_float32(rows, dtype):
    weight = four_bit(10, 1352, 128, "shift", dtype)
    check(weight, rows, GemvTile(8, 1024, 1), dtype, norm=torch.float32, residual=True)


@pytest.mark.parametrize(("group", "kind"), GROUPS)
@pytest.mark.parametrize(
    ("rows", "tile"),
    [
        (3, DotTile(8, 16, 128, 2, 2, slices=2, tiles=2)),
        (5, DotTile(8, 32, 128, 2, 2, slices=2)),
        (20, DotTile(16, 16, 128, 2, 4)),
    ],
)
def test_more_rows_of_four_bit_codes(rows, tile, group, kind):
    check(four_bit(42, 392, group, kind), rows, tile, bias=True, residual=True)


@pytest.mark.parametrize(
    "tile", [DotTile(8, 16, 128, 2, 2, slices=2, tiles=2), DotTile(8, 16, 128, 2, 2)], ids=["sliced", "whole"]
)
def test_gates_of_four_bit_codes(tile):
    check(four_bit(76, 256, 64, "shift"), 3, tile, bias=True, act="gelu_pytorch_tanh")


@pytest.mark.parametrize(
    ("name", "group", "scale"),
    [("nf4", 64, torch.float32), ("fp4", 128, torch.float32), ("e2m1", 32, torch.uint8), ("iq4", 32, torch.float16)],
)
def test_codes_that_name_numbers_of_a_table(name, group, scale):
    """By every kernel; in float16, whose results are off by less than what a code's neighbour would change."""
    weight = of_table(name, 12, 392, group, scale)
    check(weight, 1, GemvTile(4, 1024, 1), act="silu", norm=torch.float16, bias=True)
    for tile in (
        DotTile(8, 16, 128, 2, 2, slices=2, tiles=2),
        DotTile(16, 16, 128, 2, 4),
        DotTile(16, 16, 128, 2, 4, split=2, wide=True),
    ):
        check(weight, 5, tile, bias=True, residual=True)
    check(of_table(name, 6, 136, 0), 3, DotTile(8, 32, 128, 2, 2, wide=True), act="silu")
    codes = torch.arange(16, dtype=torch.uint8).repeat(17)  # every code, each in several places of a word
    words = interleave_codes((codes[::2] | codes[1::2] << 4)[None], 272)
    weight = CodedWeight(name, words, torch.ones(1, 1, dtype=torch.float32), 272, 272)
    assert decode(weight, torch.float32)[0].tolist() == torch.tensor(TABLES[name]).repeat(17).tolist()


def test_groups_of_16_columns_and_a_scale_of_the_whole_row():
    words = interleave_codes(torch.randint(0, 256, (6, 200), dtype=torch.uint8), 400)
    scale = (torch.rand(6, 25) * 400 + 0.01).to(torch.float8_e4m3fn).view(torch.uint8)
    weight = CodedWeight("e2m1", words, scale, 400, 16, outer=torch.rand(6, 1) / 400)
    check(weight, 1, GemvTile(4, 1024, 1), act="silu", norm=torch.float16, bias=True)
    torch.testing.assert_close(decode(weight, torch.float32), coded_reference(weight), rtol=0, atol=0)
    assert suits_codes(1, weight, torch.bfloat16, torch.device("cpu"))
    assert not suits_codes(2, weight, torch.bfloat16, torch.device("cpu"))


@pytest.mark.parametrize("code", ["int8", "e4m3"])
@pytest.mark.parametrize("size", [100, 256])
@pytest.mark.parametrize(
    ("rows", "tile"),
    [
        (1, GemvTile(4, 128, 1)),
        (2, GemvTile(2, 256, 1)),
        (3, DotTile(8, 16, 64, 2, 2, slices=2)),
        (20, DotTile(16, 16, 64, 2, 4)),
    ],
)
def test_eight_bit_codes(rows, tile, size, code):
    check(eight_bit(code, 26, size), rows, tile, bias=True, act="silu", norm=torch.float16 if rows < 3 else None)


@pytest.mark.parametrize(
    ("rows", "tile"),
    [
        (2, GemvTile(2, 256, 1)),
        (3, DotTile(8, 16, 128, 2, 2, slices=2)),
        (3, DotTile(8, 16, 64, 2, 2, slices=2)),
        (20, DotTile(16, 16, 128, 2, 4)),
    ],
)
def test_eight_bit_floats_whose_groups_of_columns_have_scales(rows, tile):
    norm = torch.float16 if rows < 3 else None
    check(eight_bit("e4m3", 26, 400, 128), rows, tile, bias=True, act="silu", norm=norm)


def test_a_turn_takes_no_more_columns_than_share_a_scale():
    for rows, (outs, size, gated) in product((2, 8, 16, 64), ((12288, 4096, False), (28672, 4096, True))):
        for traits in (TARGETS[80], TARGETS[90]):
            codes = torch.empty((outs, size), dtype=torch.uint8, device="meta")
            weight = CodedWeight("e4m3", codes, torch.empty((outs, size // 128), device="meta"), size, 128)
            tile = coded_tile(weight, rows, gated, traits)
            assert tile.block_k in (64, 128) or isinstance(tile, GemvTile)


def test_a_norm_is_prepared_by_the_product_before_it_and_by_blocks_of_its_outputs():
    first, second = four_bit(72, 136, 32, "shift"), four_bit(16, 72, 32, "shift")
    x, stream, norm = torch.randn(3, 136).half(), torch.randn(3, 72).half(), torch.rand(72).half()
    exact = stream.double() + x.double() @ coded_reference(first, torch.float64).T
    normed = skinny_linear_add(x, first, None, stream, norm, tile=DotTile(8, 16, 128, 2, 2, slices=2, tiles=2))
    assert normed is not None
    torch.testing.assert_close(stream.double(), exact, rtol=2e-3, atol=2e-3)
    torch.testing.assert_close(normed.squares.sum(1), stream.float().pow(2).sum(1))
    out = skinny_linear(normed.x, second, squares=normed.squares, eps=EPS, tile=DotTile(8, 16, 128, 2, 2, slices=2))
    expected = skinny_linear_reference(stream, second, norm=norm, eps=EPS)
    torch.testing.assert_close(out, expected, rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("code", ["int4", "int8"])
def test_the_greedy_choice_of_a_coded_head(code, rows):
    head = four_bit(30, 128) if code == "int4" else eight_bit(code, 30, 128)
    hidden = torch.randn(rows, 128).half()
    best, ids = head_argmax(hidden, head)
    expected, expected_ids = head_argmax_reference(hidden, coded_reference(head))
    assert torch.equal(ids, expected_ids)
    torch.testing.assert_close(best, expected, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(("group", "kind"), GROUPS)
def test_decoded_weights_are_the_reference_to_the_bit(group, kind):
    weight = four_bit(5, 392, group, kind)
    assert torch.equal(decode(weight, torch.float16), coded_reference(weight).half())
    for code in ("int8", "e4m3"):
        weight = eight_bit(code, 3, 100)
        torch.testing.assert_close(decode(weight, torch.float32), coded_reference(weight), rtol=0, atol=0)
    blocks = eight_bit("e4m3", 3, 300, 128)
    torch.testing.assert_close(decode(blocks, torch.float32), coded_reference(blocks), rtol=0, atol=0)
    in_order = eight_bit("int8", 3, 328)
    words = replace(in_order, codes=interleave_bytes(in_order.codes))
    torch.testing.assert_close(decode(words, torch.float32), coded_reference(in_order), rtol=0, atol=0)


def test_tiles_fit_the_shared_memory_of_every_generation_and_hold_its_rows():
    for traits in TARGETS.values():
        shapes = ((6144, 4096, False), (14336, 4096, True), (4096, 14336, False), (896, 896, False))
        for code, rows, (outs, size, gated) in product(("int4", "int8", "e4m3"), (1, 2, 8, 16), shapes):
            tile = choose_coded_tile(code, 128, rows, outs, size, gated, traits)
            if not isinstance(tile, DotTile):
                assert rows <= 2
                continue
            assert rows > 1 or (traits.tensor_cores and code == "int8")
            assert tile.block_t >= rows
            lines = tile.block_n * tile.tiles * (2 if gated else 1)
            bytes_of_codes = tile.block_k // 2 if code == "int4" else tile.block_k
            turn = lines * bytes_of_codes + tile.block_t * tile.block_k * 2
            assert turn * tile.slices * (tile.stages - 1) <= traits.shared_bytes or not traits.tensor_cores


def test_one_row_is_cut_as_it_was_measured():
    def tile(outs, size, gated=False, group=128):
        return choose_coded_tile("int4", group, 1, outs, size, gated, TARGETS[90])

    assert tile(6144, 4096) == GemvTile(8, 4096, 4)
    assert tile(4096, 4096) == GemvTile(8, 4096, 4)
    assert tile(14336, 4096, gated=True) == GemvTile(4, 4096, 4)
    assert tile(4096, 14336) == GemvTile(8, 2048, 2)
    assert tile(14336, 4096, gated=True, group=32).block_n == 2  # so that sums and scales fit into registers
    assert tile(1152, 896, group=32).block_n == 2  # few outputs: more programs


def test_what_the_kernels_do_not_read_is_told():
    assert groups_suit(4096, 128)
    assert groups_suit(576, 32)
    assert groups_suit(4096, 4096)
    assert not groups_suit(4096, 16)
    assert not groups_suit(4096, 192)
    assert not groups_suit(100, 32)
    cpu = torch.device("cpu")
    weight, in_order = four_bit(16, 128), eight_bit("int8", 16, 128)
    assert suits_codes(64, weight, torch.bfloat16, cpu)
    assert not suits_codes(65, weight, torch.bfloat16, cpu)
    assert suits_codes(16, in_order, torch.bfloat16, cpu)
    assert not suits_codes(17, in_order, torch.bfloat16, cpu)
    assert not suits_codes(1, weight, torch.float32, cpu)
    with as_device(TARGETS[75]):
        assert suits_codes(1, weight, torch.float16, cpu)
        assert not suits_codes(2, weight, torch.float16, cpu)
    assert folds_norm(torch.randn(1, 128).half(), weight, False)
    assert not folds_norm(torch.randn(2, 128).half(), weight, False)
