"""Products of some tens of rows: codes decoded into wide products, and programs that share a block of outputs."""

from itertools import product

import pytest
import torch
from kernel_cases import assert_as_good_as_torch

from octavo.kernels.compile_all import TARGETS
from octavo.kernels.head_argmax import head_argmax, head_argmax_reference
from octavo.kernels.linear_tiles import DotTile, tickets_of
from octavo.kernels.quant_linear import choose_wide_tile, coded_tile
from octavo.kernels.quant_weight import CodedWeight, coded_reference, interleave_bytes, interleave_codes, separate_bytes
from octavo.kernels.skinny_linear import skinny_linear, skinny_linear_add, skinny_linear_reference

EPS = 1e-5


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
    wide = coded_reference(weight, torch.float64)
    residual = torch.randn(rows, outs // 2 if act else outs).to(dtype)
    arguments = {"x": torch.randn(rows, size).to(dtype), "bias": torch.randn(outs).to(dtype), "residual": residual}
    out = torch.full(residual.shape, float("nan"), dtype=dtype)
    skinny_linear(**arguments, weight=weight, act=act, out=out, tile=tile)
    exact = skinny_linear_reference(**{name: each.double() for name, each in arguments.items()}, weight=wide, act=act)
    rounded = skinny_linear_reference(**arguments, weight=wide.to(dtype), act=act)
    assert_as_good_as_torch(out, rounded, exact, factor=4.0)


@pytest.mark.parametrize(
    ("group", "kind"),
    [(128, "offset"), (128, "zero"), (128, "shift"), (64, "shift"), (32, "zero"), (256, "shift"), (0, "offset")],
)
def test_wide_products_by_four_bit_codes(group, kind):
    check(four_bit(84, 576, group, kind), 20, wide_tile(), act="silu")


def test_wide_products_whose_programs_share_blocks_and_whose_rows_need_two():
    check(four_bit(42, 392, 128, "shift"), 40, wide_tile(split=3))


def test_gates_whose_programs_share_blocks_and_more_programs_than_turns():
    check(four_bit(42, 136, 128, "zero"), 20, wide_tile(split=4), act="silu")


@pytest.mark.parametrize("size", [200, 256])
def test_wide_products_by_interleaved_eight_bit_codes(size):
    check(eight_bit(40, size), 20, wide_tile(split=2))


def test_gates_of_interleaved_eight_bit_codes():
    check(eight_bit(84, 200), 20, wide_tile(), act="gelu_pytorch_tanh")


@pytest.mark.parametrize("size", [200, 1024])
@pytest.mark.parametrize(
    ("rows", "tile"),
    [
        (1, DotTile(8, 16, 128, 2, 2, slices=2)),
        (3, DotTile(8, 16, 256, 2, 2, slices=2)),
        (20, DotTile(16, 16, 128, 2, 4)),
    ],
)
def test_few_rows_of_interleaved_eight_bit_codes(rows, tile, size):
    check(eight_bit(38, size), rows, tile, act="silu")


@pytest.mark.parametrize("bits", [4, 8])
def test_programs_that_share_a_block_prepare_the_next_norm_and_leave_their_tickets_as_they_were(bits):
    weight = four_bit(40, 392, 128, "shift") if bits == 4 else eight_bit(40, 392)
    following, norm = eight_bit(26, 40), torch.rand(40)
    for _ in range(2):
        x, before = torch.randn(20, 392), torch.randn(20, 40)
        stream = before.clone()
        normed = skinny_linear_add(x, weight, None, stream, norm, tile=wide_tile(split=3))
        torch.testing.assert_close(stream, skinny_linear_reference(x, weight, residual=before), rtol=1e-4, atol=1e-3)
        assert not tickets_of(x.device).any()
        expected = skinny_linear_reference(stream, following, norm=norm, eps=EPS, act="silu")
        out = skinny_linear(normed.x, following, squares=normed.squares, eps=EPS, act="silu", tile=wide_tile())
        torch.testing.assert_close(out, expected, rtol=1e-4, atol=1e-5)


def test_the_greedy_choice_of_some_tens_of_rows():
    head, hidden = four_bit(70, 136, 128, "offset"), torch.randn(20, 136).half()
    best, ids = head_argmax(hidden, head, tile=wide_tile(split=2))
    expected, expected_ids = head_argmax_reference(hidden, coded_reference(head, torch.float16))
    torch.testing.assert_close(best, expected, rtol=1e-3, atol=1e-3)
    assert torch.equal(ids, expected_ids)


LAYERS = {  # outputs, inputs and whether there are gates
    "8B": {
        "qkv": (6144, 4096, False),
        "o": (4096, 4096, False),
        "gate": (14336, 4096, True),
        "down": (4096, 14336, False),
    },
    "0.5B": {"qkv": (1152, 896, False), "o": (896, 896, False), "gate": (4864, 896, True), "down": (896, 4864, False)},
}


def chosen(code, model, traits, rows=64):
    """{product: (outputs, stages, warps, split)} of wide tiles, None for others."""
    tiles = {name: choose_wide_tile(code, rows, *shape, traits) for name, shape in LAYERS[model].items()}
    return {
        name: (tile.block_n, tile.stages, tile.warps, tile.split) if tile.wide and tile.block_t == 64 else None
        for name, tile in tiles.items()
    }


def test_tiles_are_those_that_were_fastest_where_they_were_measured():
    many, one = (64, 2, 4, 4), (64, 3, 4, 1)
    large = (128, 3, 8, 4)
    assert chosen("int4", "8B", TARGETS[90]) == {"qkv": many, "o": large, "gate": (128, 3, 8, 1), "down": large}
    assert chosen("int4", "0.5B", TARGETS[90]) == {"qkv": None, "o": None, "gate": one, "down": many}
    many, large = (64, 3, 4, 4), (128, 4, 8, 4)
    assert chosen("int8", "8B", TARGETS[90]) == {"qkv": many, "o": large, "gate": one, "down": large}
    assert chosen("int8", "0.5B", TARGETS[90]) == {"qkv": None, "o": None, "gate": one, "down": many}


def test_wide_tiles_fit_the_shared_memory_of_every_generation_and_their_tickets():
    for traits, code, rows in product(TARGETS.values(), ("int4", "int8"), (17, 32, 33, 64)):
        for outs, size, gated in (shape for model in LAYERS.values() for shape in model.values()):
            tile = choose_wide_tile(code, rows, outs, size, gated, traits)
            assert tile.block_t >= 32
            if not tile.wide:
                continue
            lines = tile.block_n * (2 if gated else 1)
            columns, turns = 256 if code == "int4" else 128, tile.stages - 1
            held = turns * lines * (136 if code == "int4" else 128) + turns * tile.block_t * columns * 2
            if traits.capability in (90, 100):
                held += tile.block_t * columns * 2
            assert held <= traits.shared_bytes or not traits.tensor_cores
            assert tile.split == 1 or -(-outs // tile.block_n) * tile.split <= 3 * traits.multiprocessors
            assert -(-size // 128) >= 8 * tile.split or tile.split == 1


def test_rows_of_codes_in_words_take_the_kernels_that_read_them():
    in_order = CodedWeight("int8", torch.zeros(64, 128, dtype=torch.int8), torch.ones(64, 1), 128, 128)
    for rows, wide in ((1, False), (16, False), (17, True), (64, True)):
        for weight in (eight_bit(9728, 128), four_bit(9728, 128, 128, "shift")):
            tile = coded_tile(weight, rows, False, TARGETS[90])
            assert (isinstance(tile, DotTile) and tile.wide) == wide
        assert not coded_tile(in_order, rows, False, TARGETS[90]).wide


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
