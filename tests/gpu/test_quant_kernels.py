"""Products by codes on a real GPU, as a loaded model chooses them, against the decoded weight in float64."""

from __future__ import annotations

import pytest
import torch
from gguf_cases import random_blocks
from layer_cases import replays
from token_cases import assert_rounded, loud_tokens
from torch import Tensor

from octavo.engine.model.ops_triton import TritonOps
from octavo.engine.quant import FORMATS
from octavo.engine.quant.base import LinearSpec, Packed, Part, WeightRef, multiply
from octavo.engine.quant.blocks import BlockFormat
from octavo.engine.quant.codes import E2M1, FLOAT8, INT8, NF4, UnsignedCode
from octavo.engine.quant.dynamic import has_float8_units
from octavo.engine.quant.gpu_codes import of_tokens
from octavo.engine.quant.grouped import GroupedFormat
from octavo.engine.quant.products import choose
from octavo.kernels.code_tables import TABLES
from octavo.kernels.device import device_traits
from octavo.kernels.digit_linear import digit_row_tile, digit_tile, suits_digits
from octavo.kernels.head_argmax import head_argmax
from octavo.kernels.linear_tiles import DotTile, tickets_of
from octavo.kernels.quant_decode import decode
from octavo.kernels.quant_linear import choose_coded_tile
from octavo.kernels.quant_weight import CodedWeight, coded_reference, interleave_codes
from octavo.kernels.rms_norm import add_rms_norm
from octavo.kernels.skinny_linear import folds_norm, skinny_linear, skinny_linear_add, skinny_linear_reference
from octavo.kernels.token_codes import round_tokens, round_tokens_reference
from octavo.kernels.token_norm import norm_tokens

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA GPU at hand")]

CUDA = torch.device("cuda")
EPS = 1e-5
ROWS = [1, 2, 3, 8, 9, 16, 17, 33, 64, 65, 300]
LARGE = [(6144, 4096), (4096, 14336)]
SMALL = [(1152, 896), (1000, 584)]
SYMMETRIC, SIGNED, ANY = UnsignedCode(4, offset=8), UnsignedCode(4), torch.float16
FORMS = {
    "int4": FORMATS["int4"],
    "int4-symmetric": FORMATS["int4-symmetric"],
    "int8": FORMATS["int8"],
    "fp8": FORMATS["fp8"],
    "int8-dynamic": FORMATS["int8-dynamic"],
    "AWQ": GroupedFormat("AWQ", SIGNED, 128, ANY, zeros=True, quantizes=False),
    "AWQ groups of 64": GroupedFormat("AWQ", SIGNED, 64, ANY, zeros=True, quantizes=False),
    "groups of 32": GroupedFormat("any", SYMMETRIC, 32, torch.float32, quantizes=False),
    "groups of 32, shifts": GroupedFormat("any", SIGNED, 32, None, shifts=True, quantizes=False),
    "groups of 256": GroupedFormat("any", SIGNED, 256, None, shifts=True, quantizes=False),
    "one group": GroupedFormat("any", SYMMETRIC, 0, torch.bfloat16, quantizes=False),
    "nf4": FORMATS["nf4"],
    "fp4": FORMATS["fp4"],
    "nf4 by 256": GroupedFormat("nf4", NF4, 256, torch.float32),
    "MXFP4": GroupedFormat("MXFP4", E2M1, 32, torch.float8_e8m0fnu, quantizes=False),
    "FP8 rows": GroupedFormat("FP8", FLOAT8, 0, torch.float32, quantizes=False),
    "FP8 blocks": GroupedFormat("FP8", FLOAT8, 128, torch.float32, quantizes=False),
    "int8 rows": GroupedFormat("any", INT8, 0, torch.bfloat16, quantizes=False),
}


# every kernel is compiled anew for every shape, so that those which differ in little take few shapes
MAIN = ["AWQ", "fp8", "int4", "int8"]
OTHERS = sorted(set(FORMS) - set(MAIN))
IN_WORDS = sorted(set(FORMS) - {"fp8", "FP8 rows", "FP8 blocks", "int8-dynamic"})


def held(name: str, outs: int, size: int, dtype: torch.dtype = torch.bfloat16, bias: bool = False):
    """(format, spec, packed) of a random weight whose results are about one."""
    spec = LinearSpec("w", (Part("w", outs),), size, bias=bias)
    form = FORMS[name].fitted(spec)
    assert isinstance(form, GroupedFormat)
    packed = form.allocate(spec, dtype, CUDA)
    if form.quantizes:
        form.pack(packed, spec, {"weight": torch.randn(outs, size, device=CUDA) * size**-0.5})
    else:
        planes = {name: random_plane(plane, form, size) for name, plane in packed.planes.items()}
        form.pack(packed, spec, planes)
    if packed.bias is not None:
        packed.bias.normal_()
    form.finish(packed, spec)
    choose(form, packed, spec, CUDA)
    torch.cuda.synchronize()  # weights are read before the kernels that precede a product have ended
    return form, spec, packed


def random_plane(plane: Tensor, form: GroupedFormat, size: int) -> Tensor:
    shape = plane.shape
    if plane.dtype == torch.float8_e4m3fn:
        return (torch.randn(shape, device=CUDA) * 100).clamp(-448, 448).to(plane.dtype)
    if plane.dtype == torch.int8:
        return torch.randint(-127, 128, shape, device=CUDA, dtype=torch.int8)
    if plane.dtype == torch.uint8:
        most = 256 if shape[1] == form.code.columns(size) else 17  # codes, or zero points
        return torch.randint(0, most, shape, device=CUDA, dtype=torch.uint8)
    if plane.dtype == torch.float8_e8m0fnu:  # powers of two less 127: weights of up to six times as much
        return torch.randint(117, 120, shape, device=CUDA, dtype=torch.uint8).view(plane.dtype)
    step = size**-0.5 / (6 if form.code.bits == 4 else 100)
    return ((torch.rand(shape, device=CUDA) + 0.5) * step).to(plane.dtype)


def error(found: Tensor, exact: Tensor) -> float:
    return float((found.double() - exact).norm() / exact.norm())


@pytest.mark.parametrize(
    ("name", "outs", "size", "dtype"),
    [(name, *shape, torch.bfloat16) for name in MAIN for shape in (*LARGE, *SMALL)]
    + [(name, *shape, torch.bfloat16) for name in OTHERS for shape in SMALL]
    + [(name, 1000, 584, torch.float16) for name in sorted(FORMS)],
)
def test_products_of_any_number_of_rows(name, outs, size, dtype):
    form, _, packed = held(name, outs, size, dtype, bias=True)
    weight = coded_reference(packed.fused, torch.float64)
    torch.testing.assert_close(form.dequantize(packed), weight.to(dtype), rtol=2e-2, atol=1e-6)
    for rows in ROWS:
        x = torch.randn(rows, size, device=CUDA, dtype=dtype)
        exact = x.double() @ weight.T + packed.bias.double()
        rounds = rows > 16 and (name == "int8-dynamic" or (name == "fp8" and has_float8_units(CUDA)))
        found = multiply(form, x, packed)
        assert found.dtype == dtype
        assert error(found, exact) < (0.04 if rounds else 5e-3), rows


@pytest.mark.parametrize(
    ("name", "rows", "dtype"),
    [(name, rows, torch.bfloat16) for name in MAIN for rows in (1, 2, 3, 8, 9, 16)]
    + [(name, rows, torch.bfloat16) for name in OTHERS for rows in (1, 3, 16)]
    + [(name, rows, torch.float16) for name in sorted(FORMS) for rows in (1, 3)],
)
def test_what_stands_around_a_product_of_few_rows(name, rows, dtype):
    if rows > 1 and not device_traits(CUDA).tensor_cores:
        pytest.skip("one row is all that is fused without tensor cores")
    outs, size = 1000, 2176
    _, _, packed = held(name, 2 * outs, size, dtype, bias=True)
    weight = packed.fused
    x = torch.randn(rows, size, device=CUDA, dtype=dtype)
    around = {"act": "silu", "residual": torch.randn(rows, outs, device=CUDA, dtype=dtype), "bias": packed.bias}
    if folds_norm(x, weight, True):
        around["norm"] = torch.rand(size, device=CUDA).to(dtype)
    torch.cuda.synchronize()
    out = torch.full((rows, outs), float("nan"), device=CUDA, dtype=dtype)
    skinny_linear(x, weight, **around, eps=EPS, out=out)
    wide = {key: value.double() if isinstance(value, Tensor) else value for key, value in around.items()}
    exact = skinny_linear_reference(x.double(), coded_reference(weight, torch.float64), **wide, eps=EPS)
    assert error(out, exact) < 5e-3


@pytest.mark.parametrize("rows", [2, 3, 16])
@pytest.mark.parametrize("name", ["int4", "int4-symmetric", "int8", "fp8"])
def test_a_norm_over_two_launches(name, rows):
    if not device_traits(CUDA).tensor_cores:
        pytest.skip("needs tensor cores")
    first, second = (held(name, outs, size)[2].fused for outs, size in ((896, 1536), (1280, 896)))
    x, norm = torch.randn(rows, 1536, device=CUDA).bfloat16(), torch.rand(896, device=CUDA).bfloat16()
    stream = torch.randn(rows, 896, device=CUDA).bfloat16()
    torch.cuda.synchronize()
    normed = skinny_linear_add(x, first, None, stream, norm)
    if normed is None:
        out = skinny_linear(stream, second, norm=norm, eps=EPS, act="silu")
    else:
        out = skinny_linear(normed.x, second, squares=normed.squares, eps=EPS, act="silu")
    wide = coded_reference(second, torch.float64)
    exact = skinny_linear_reference(stream.double(), wide, norm=norm.double(), eps=EPS, act="silu")
    assert error(out, exact) < 6e-3


@pytest.mark.parametrize(
    ("name", "rows", "dtype"),
    [(name, rows, torch.bfloat16) for name in ("int4", "int8") for rows in (17, 33, 64)]
    + [(name, 33, torch.bfloat16) for name in IN_WORDS if name not in ("int4", "int8")]
    + [(name, 64, torch.float16) for name in ("int4", "groups of 32, shifts", "int8")],
)
def test_what_stands_around_products_of_some_tens_of_rows(name, rows, dtype):
    """Outputs that programs share, with the residual stream and the next norm; then gates that take the norm."""
    if not device_traits(CUDA).tensor_cores:
        pytest.skip("needs tensor cores")
    hidden, inner = 1000, 4352
    down, gate_up = (held(name, *shape, dtype)[2].fused for shape in ((hidden, inner), (2 * inner, hidden)))
    assert down.in_words
    x = torch.randn(rows, inner, device=CUDA).to(dtype) / 16  # float16 holds the stream times the norm's weights
    norm, before = torch.rand(hidden, device=CUDA).to(dtype), torch.randn(rows, hidden, device=CUDA).to(dtype)
    torch.cuda.synchronize()
    first = []
    for _ in range(10):
        stream = before.clone()
        normed = skinny_linear_add(x, down, None, stream, norm)
        out = skinny_linear(normed.x, gate_up, squares=normed.squares, eps=EPS, act="silu")
        first = first or [stream, out]
        assert torch.equal(stream, first[0])
        assert torch.equal(out, first[1])
    assert not tickets_of(x.device).any()
    wide = coded_reference(down, torch.float64)
    assert error(stream, skinny_linear_reference(x.double(), wide, residual=before.double())) < 5e-3
    wide = coded_reference(gate_up, torch.float64)
    exact = skinny_linear_reference(stream.double(), wide, norm=norm.double(), eps=EPS, act="silu")
    assert error(out, exact) < 6e-3


@pytest.mark.parametrize("rows", [1, 2, 5, 16, 40, 64])
@pytest.mark.parametrize("name", MAIN)
def test_a_row_has_the_same_bits_every_time_and_whatever_stands_beside_it(name, rows):
    form, _, packed = held(name, 4096, 4096)
    x = torch.randn(rows, 4096, device=CUDA).bfloat16()
    torch.cuda.synchronize()
    first = multiply(form, x, packed)
    for _ in range(10):
        assert torch.equal(multiply(form, x, packed), first)
    if rows > 1:
        beside = torch.cat((x[:1], torch.randn(rows - 1, 4096, device=CUDA).bfloat16()))
        assert torch.equal(multiply(form, beside, packed)[0], first[0])


@pytest.mark.parametrize("large", [1.0, 1000.0])
@pytest.mark.parametrize("rows", [1, 8])
@pytest.mark.parametrize("name", ["AWQ", "int4", "int8"])
def test_digits_are_as_exact_as_products_in_bfloat16(name, rows, large):
    """Down to one activation that makes the whole result, where two digits by row cost as much as its rounding."""
    traits = device_traits(CUDA)
    if not traits.tensor_cores:
        pytest.skip("needs tensor cores")
    outs, size = 1024, 14336
    weight = held(name, outs, size)[2].fused
    x = torch.randn(rows, size, device=CUDA).bfloat16()
    x[:, 300] *= large
    torch.cuda.synchronize()
    exact = x.double() @ coded_reference(weight, torch.float64).T
    plain = choose_coded_tile(weight.code, weight.group, rows, outs, size, False, traits)
    one_row = digit_row_tile(weight.code, outs, size, False, traits)
    digits = one_row if rows == 1 else digit_tile(weight.code, rows, outs, size, False, traits)
    assert suits_digits(weight, traits)
    before, after = (error(skinny_linear(x, weight, tile=tile), exact) for tile in (plain, digits))
    assert after < before * (1.5 if large > 1 else 1.05)


@pytest.mark.parametrize("rows", [1, 3, 17, 64, 300])
@pytest.mark.parametrize("name", MAIN)
def test_captured_products_say_the_same_of_new_inputs(name, rows):
    layers = [held(name, 2048, 2048) for _ in range(4)]
    x = torch.randn(rows, 2048, device=CUDA).bfloat16()

    def chain() -> Tensor:
        y = x
        for form, _, packed in layers:
            y = multiply(form, y, packed)
        return y

    for replayed in replays(chain, x, 10):
        torch.testing.assert_close(replayed, chain(), rtol=2e-2, atol=2e-2)  # the library may sum otherwise


@pytest.mark.parametrize(
    ("name", "rows"),
    [(name, rows) for name in ("int4", "int8", "fp8") for rows in (1, 3, 16)] + [("int4", 33), ("int8", 33)],
)
def test_the_greedy_choice_of_a_head_in_codes(name, rows):
    _, _, packed = held(name, 32001, 1024)
    hidden = torch.randn(rows, 1024, device=CUDA).bfloat16()
    torch.cuda.synchronize()
    best, ids = head_argmax(hidden, packed.fused)
    scores = hidden.double() @ coded_reference(packed.fused, torch.float64).T
    torch.testing.assert_close(best.double(), scores.amax(-1), rtol=2e-3, atol=2e-3)
    torch.testing.assert_close(scores.gather(1, ids[:, None])[:, 0], scores.amax(-1), rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize("name", sorted(FORMS))
def test_decoded_weights_are_the_reference(name):
    _, _, packed = held(name, 96, 584)
    exact = coded_reference(packed.fused)
    torch.testing.assert_close(decode(packed.fused, torch.float32), exact, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("name", sorted(TABLES))
def test_every_code_is_its_number_of_the_table(name):
    """By each kernel: activations that pick one column each, of scales of one."""
    codes = torch.arange(16, dtype=torch.uint8, device=CUDA).repeat(8 * 32)
    words = interleave_codes((codes[::2] | codes[1::2] << 4).view(32, 64), 128)
    weight = CodedWeight(name, words, torch.ones(32, 2, device=CUDA), 128, 64)
    table = torch.tensor(TABLES[name], device=CUDA)
    torch.cuda.synchronize()
    assert torch.equal(decode(weight, torch.float32), table[codes.int()].view(32, 128))
    for dtype in (torch.float16, torch.bfloat16):
        picks = torch.eye(128, device=CUDA, dtype=dtype)
        for rows in (1, 8, 64) if device_traits(CUDA).tensor_cores else (1,):
            found = torch.cat([skinny_linear(some, weight) for some in picks.split(rows)])
            # looked up in float16, where bfloat16 may then round to its other neighbour
            torch.testing.assert_close(found.float(), table[codes.int()].view(32, 128).T, rtol=5e-3, atol=0)


@pytest.mark.parametrize("outer", ["times", "over"])
@pytest.mark.parametrize("size", [4096, 592])
def test_groups_of_16_columns_with_a_scale_of_the_whole(size, outer):
    spec = LinearSpec("w", (Part("w", 1000),), size)
    form = GroupedFormat("NVFP4", E2M1, 16, torch.float8_e4m3fn, outer=outer, quantizes=False)
    packed = form.allocate(spec, torch.bfloat16, CUDA)
    scale = (torch.rand(1000, size // 16, device=CUDA) * 400).to(torch.float8_e4m3fn)
    whole = torch.full((1000, 1), 1e-4 if outer == "times" else 1e4, device=CUDA)
    codes = torch.randint(0, 256, (1000, size // 2), dtype=torch.uint8, device=CUDA)
    form.pack(packed, spec, {"codes": codes, "scale": scale, "outer": whole})
    before = form.dequantize(packed)
    form.finish(packed, spec)
    choose(form, packed, spec, CUDA)
    torch.cuda.synchronize()
    weight = coded_reference(packed.fused, torch.float64)
    torch.testing.assert_close(before, weight.bfloat16(), rtol=8e-3, atol=0)
    torch.testing.assert_close(decode(packed.fused, torch.float32).double(), weight, rtol=1e-6, atol=0)
    for rows in (1, 2, 40, 300):
        x = torch.randn(rows, size, device=CUDA).bfloat16()
        assert error(multiply(form, x, packed), x.double() @ weight.T) < 5e-3, rows


@pytest.mark.parametrize("kind", ["IQ4_NL", "IQ4_XS", "MXFP4"])
def test_blocks_of_files_whose_codes_name_numbers_of_a_table(kind):
    spec, form = LinearSpec("w", (Part("w", 1000),), 1024), BlockFormat(kind)
    packed = form.allocate(spec, torch.bfloat16, CUDA)
    packed.planes["blocks"].copy_(random_blocks(kind, 1000, 1024, CUDA))
    weight = form.dequantize(packed)
    choose(form, packed, spec, CUDA)
    torch.cuda.synchronize()
    assert "blocks" not in packed.planes
    assert torch.equal(form.dequantize(packed), weight)
    assert torch.equal(form.dequantize(packed, torch.tensor([3, 0], device=CUDA)), weight[[3, 0]])
    for rows in (1, 2, 16, 40, 300):
        x = torch.randn(rows, 1024, device=CUDA).bfloat16()
        assert error(multiply(form, x, packed), x.double() @ weight.double().T) < 5e-3, rows


@pytest.mark.parametrize("kind", [torch.int8, torch.float8_e4m3fn])
def test_tokens_are_rounded_as_torch_rounds_them(kind):
    if kind == torch.float8_e4m3fn and not has_float8_units(CUDA):
        pytest.skip("no FP8 units")
    x = loud_tokens(CUDA)
    codes, scales = round_tokens(x, kind)
    expected, expected_scales = round_tokens_reference(x, kind)
    torch.testing.assert_close(scales, expected_scales, rtol=1e-6, atol=0)
    assert float((codes.float() != expected.float()).float().mean()) < 1e-3
    assert_rounded(codes, scales, x)


@pytest.mark.parametrize("kind", [torch.int8, torch.float8_e4m3fn])
def test_a_norm_and_the_rounding_after_it_in_one_launch_say_what_two_say(kind):
    if kind == torch.float8_e4m3fn and not has_float8_units(CUDA):
        pytest.skip("no FP8 units")
    x, stream = torch.randn(2, 70, 4096, device=CUDA).bfloat16().unbind()
    weight = torch.rand(4096, device=CUDA).bfloat16()
    normed, total = add_rms_norm(x.clone(), stream.clone(), weight, EPS)
    expected, expected_scales = round_tokens(normed, kind)
    codes, scales, summed = norm_tokens(x, stream, weight, EPS, kind)
    assert torch.equal(summed, total)
    torch.testing.assert_close(scales, expected_scales, rtol=4e-3, atol=0)
    assert float((codes.float() != expected.float()).float().mean()) < 1e-3
    assert error(codes.float() * scales, normed.double()) < 0.05


@pytest.mark.parametrize("rows", [17, 64, 200, 700])
@pytest.mark.parametrize("name", ["fp8", "int8-dynamic"])
def test_products_that_round_their_rows_take_the_norm_before_them(name, rows):
    form, spec, packed = held(name, 2 * 1152, 896)
    if of_tokens(packed, rows) is None:
        pytest.skip("rows stay in 16 bits on this device")
    ops, ref = TritonOps(), WeightRef(spec, form, packed)
    delta, stream = torch.randn(2, rows, 896, device=CUDA).bfloat16().unbind()
    norm = torch.rand(896, device=CUDA).bfloat16()
    total = delta + stream
    exact = skinny_linear_reference(
        total.double(), coded_reference(packed.fused, torch.float64), norm=norm.double(), eps=EPS
    )
    torch.cuda.synchronize()
    out, summed = ops.norm_linear(delta.clone(), stream.clone(), norm, EPS, ref)
    assert torch.equal(summed, total)
    assert error(out, exact) < 0.04
    inner, summed = ops.norm_gated(None, total, norm, EPS, ref, "silu")
    assert torch.equal(summed, total)
    gate, up = exact.chunk(2, 1)
    assert error(inner, torch.nn.functional.silu(gate) * up) < 0.06


@pytest.mark.parametrize(("rows", "terms"), [(3, 2), (8, 2), (16, 2), (16, 1), (64, 2)])
@pytest.mark.parametrize("size", [4096, 1040])
def test_products_by_terms_of_activations_on_fp8_tensor_cores(size, rows, terms):
    if device_traits(CUDA).capability // 10 != 9:
        pytest.skip("tiles of compute capability 9.0")
    weight = held("fp8", 1000, size)[2].fused
    x = torch.randn(rows, size, device=CUDA).bfloat16()
    x[:, 7] *= 100
    torch.cuda.synchronize()
    tile = DotTile(max(8, 1 << (rows - 1).bit_length()), 64, 128, 4, 4, split=2, terms=terms)
    out = skinny_linear(x, weight, out_dtype=torch.float32, tile=tile)
    exact = x.double() @ coded_reference(weight, torch.float64).T
    # what remains with two terms is what the tensor cores leave away of a turn's sum
    assert error(out, exact) < (1e-3 if terms == 2 else 0.04)
    for _ in range(10):
        assert torch.equal(skinny_linear(x, weight, out_dtype=torch.float32, tile=tile), out)
    alone = skinny_linear(x[:1], weight, out_dtype=torch.float32, tile=tile)
    assert torch.equal(alone[0], out[0])


def test_sizes_that_the_kernels_do_not_read_fall_back_to_the_reference():
    spec = LinearSpec("w", (Part("w", 24),), 100)
    form = FORMATS["int4"].fitted(spec)
    packed = form.allocate(spec, torch.bfloat16, CUDA)
    form.pack(packed, spec, {"weight": torch.randn(24, 100)})
    form.finish(packed, spec)
    choose(form, packed, spec, CUDA)
    assert packed.fused is None
    assert "codes" in packed.planes
    x = torch.randn(3, 100, device=CUDA).bfloat16()
    assert error(multiply(form, x, packed), x.double() @ form.dequantize(packed).double().T) < 5e-3


def test_stacked_experts_keep_the_order_of_their_codes():
    spec = LinearSpec("w", (Part("w", 64),), 256, experts=3)
    form = FORMATS["int4"].fitted(spec)
    packed: Packed = form.allocate(spec, torch.bfloat16, CUDA)
    form.randomize(packed, spec, torch.Generator(device=CUDA).manual_seed(0), 0.02)
    form.finish(packed, spec)
    choose(form, packed, spec, CUDA)
    assert set(packed.planes) >= {"codes", "scale"}
    ends = torch.tensor([2, 2, 5], device=CUDA, dtype=torch.int32)
    x = torch.randn(5, 256, device=CUDA).bfloat16()
    weight = form.dequantize(packed).double()
    exact = torch.cat((x[:2].double() @ weight[0].T, x[2:].double() @ weight[2].T))
    assert error(form.linear_grouped(x, packed, ends), exact) < 5e-3
