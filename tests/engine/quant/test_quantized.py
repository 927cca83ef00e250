"""Formats that round: how far, what a wrong bit would do, and that every row and expert keeps its own scale."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from octavo.engine.quant import FORMATS
from octavo.engine.quant.base import Format, LinearSpec, Packed, Part, WeightRef
from octavo.engine.quant.dynamic import OUTLIER, int_product, round_tokens
from octavo.engine.quant.grouped import GroupedFormat

CPU = torch.device("cpu")
ROUNDING = {name: made for name, made in FORMATS.items() if made.quantizes}
# Largest error of a weight as a share of its group's largest: half the widest step between two codes.
STEP = {"int8": 1 / 254, "int8-dynamic": 1 / 254, "llm-int8": 1 / 254, "fp8": 1 / 28, "nf4": 0.16, "fp4": 0.167}
STEP |= {"int4": 1 / 15, "int4-symmetric": 1 / 8}


@pytest.fixture(params=sorted(ROUNDING))
def name(request: pytest.FixtureRequest) -> str:
    return request.param


def spec_of(rows: int, in_dim: int, *, bias: bool = False, experts: int | None = None) -> LinearSpec:
    return LinearSpec("linear", (Part("a", rows - 3), Part("b", 3)), in_dim, bias=bias, experts=experts)


def filled(form: Format, spec: LinearSpec, weight: Tensor, dtype: torch.dtype = torch.float32) -> Packed:
    """The weight packed part by part, as a checkpoint gives it."""
    packed = form.allocate(spec, dtype, CPU)
    for part in spec.parts:
        row = spec.first_row(part.name)
        form.pack(packed, spec, {"weight": weight.narrow(-2, row, part.rows)}, row=row)
    if packed.bias is not None:
        packed.bias.copy_(torch.linspace(-1, 1, spec.out_dim))
    form.finish(packed, spec)
    return packed


def made(
    name: str, in_dim: int, dtype: torch.dtype = torch.float32, **options: object
) -> tuple[Format, Packed, Tensor]:
    spec = spec_of(24, in_dim, **options)  # type: ignore[arg-type]
    weight = torch.randn(spec.shape, generator=torch.Generator().manual_seed(3)) * 0.1
    form = ROUNDING[name].fitted(spec)
    return form, filled(form, spec, weight, dtype), weight


@pytest.mark.parametrize("in_dim", [256, 320, 344, 100, 63])
def test_no_weight_is_further_from_its_own_than_half_a_step_of_its_group(name: str, in_dim: int) -> None:
    form, packed, weight = made(name, in_dim)
    assert isinstance(form, GroupedFormat)
    size = form.group or in_dim
    for begin in range(0, in_dim, size):
        group = weight[:, begin : begin + size]
        span = group.abs().amax(1, keepdim=True)
        if name == "int4":
            span = (group.amax(1, keepdim=True).clamp(min=0) - group.amin(1, keepdim=True).clamp(max=0)) / 2
        error = (form.dequantize(packed)[:, begin : begin + size] - group).abs() / span
        assert float(error.max()) <= STEP[name] * 1.01


@pytest.mark.parametrize("in_dim", [256, 63])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_products_are_those_of_the_decoded_weight(name: str, in_dim: int, dtype: torch.dtype) -> None:
    form, packed, _ = made(name, in_dim, dtype, bias=True)
    x = torch.randn(5, in_dim, generator=torch.Generator().manual_seed(1)).to(dtype)
    expected = x.double() @ form.dequantize(packed).double().T + packed.bias.double()
    result = WeightRef(spec_of(24, in_dim, bias=True), form, packed)(x)
    assert result.dtype == dtype
    error = float((result.double() - expected).norm() / expected.norm())
    rounded_activations = name in ("int8-dynamic", "llm-int8")
    assert error < (0.012 if rounded_activations else 0.006 if dtype == torch.bfloat16 else 1e-6)


def test_rows_can_be_read_one_by_one(name: str) -> None:
    form, packed, _ = made(name, 128)
    ids = torch.tensor([3, 23, 3])
    assert torch.equal(form.dequantize(packed, ids), form.dequantize(packed)[ids])


def test_experts_are_rounded_and_multiplied_each_by_itself(name: str) -> None:
    form, packed, weight = made(name, 64, experts=3)
    x = torch.randn(7, 64)
    ends = torch.tensor([4, 4, 7], dtype=torch.int32)
    result = form.linear_grouped(x, packed, ends)
    for expert, begin, end in ((0, 0, 4), (2, 4, 7)):
        alone = filled(form, spec_of(24, 64), weight[expert])
        assert torch.equal(form.dequantize(packed)[expert], form.dequantize(alone))
        torch.testing.assert_close(result[begin:end], form.linear(x[begin:end], alone))


def test_a_row_of_zeros_stays_zero(name: str) -> None:
    spec = spec_of(8, 64)
    form = ROUNDING[name].fitted(spec)
    assert torch.equal(form.dequantize(filled(form, spec, torch.zeros(8, 64))), torch.zeros(8, 64))


def test_a_token_says_the_same_whatever_its_neighbours_are(name: str) -> None:
    form, packed, _ = made(name, 128)
    x = torch.randn(6, 128)
    loud = x.clone()
    loud[1:] *= 1000
    torch.testing.assert_close(form.linear(loud, packed)[0], form.linear(x[:1], packed)[0], rtol=1e-5, atol=1e-6)


def test_memory_is_what_the_bits_say() -> None:
    spec = spec_of(64, 1024)
    bits = {name: form.fitted(spec).bytes(spec, torch.bfloat16) * 8 / 65536 for name, form in ROUNDING.items()}
    assert bits == pytest.approx(
        {
            "int8": 8.03,
            "int8-dynamic": 8.03,
            "llm-int8": 8.03,
            "fp8": 8.03,
            "int4": 4.1875,  # 128 weights share 16 bits of scale and 8 of zero point
            "int4-symmetric": 4.125,
            "nf4": 4.5,
            "fp4": 4.5,
        },
        abs=0.01,
    )


@pytest.mark.parametrize(("in_dim", "group"), [(4096, 128), (576, 64), (96, 32), (344, 32), (63, 32)])
def test_int4_takes_the_largest_group_that_divides_the_row(in_dim: int, group: int) -> None:
    assert FORMATS["int4"].fitted(spec_of(8, in_dim)).group == group  # type: ignore[attr-defined]


def test_a_wrong_order_of_nibbles_or_zero_point_is_noticed() -> None:
    form, packed, weight = made("int4", 128)
    right = (form.dequantize(packed) - weight).norm()
    codes, zeros = packed.planes["codes"], packed.planes["zero"]
    for planes in ({"codes": (codes << 4) | (codes >> 4)}, {"zero": zeros + 1}, {"zero": zeros - 1}):
        wrong = replace(packed, planes=packed.planes | planes)  # type: ignore[type-var]
        assert (form.dequantize(wrong) - weight).norm() > 1.5 * right


def test_q4_1_weights_survive_int4_in_their_own_groups() -> None:
    """Sixteen evenly spaced numbers a group of 32, as such files hold them, are hit to the last step."""
    steps = torch.rand(8, 4, 1) * 0.02 + 0.01
    weight = ((torch.randint(0, 16, (8, 4, 32)).float() - 7) * steps).flatten(1)
    weight.view(8, 4, 32)[..., 0], weight.view(8, 4, 32)[..., 1] = -7 * steps[..., 0], 8 * steps[..., 0]
    form = replace(FORMATS["int4"], group=32)  # type: ignore[type-var]
    spec = spec_of(8, 128)
    torch.testing.assert_close(form.dequantize(filled(form, spec, weight)), weight, rtol=0, atol=1e-6)


def test_whole_number_sums_are_exact_and_each_token_uses_its_whole_range() -> None:
    x = torch.tensor([[127.0, -127.0] * 600, [1.0, 0.5] * 600])
    codes, scales = round_tokens(x)
    assert codes[0].tolist() == [127, -127] * 600
    assert codes[1, :2].tolist() == [127, 64]
    assert scales.flatten().tolist() == pytest.approx([1.0, 1 / 127])
    weight = torch.full((2, 1200), 127, dtype=torch.int8)
    weight[1, 1::2] = -127
    assert int_product(codes, weight)[0].tolist() == [0.0, 127.0 * 127 * 1200]


@pytest.mark.parametrize("in_dim", [1000, 3000])
def test_processors_without_exact_whole_number_sums_add_in_floats(in_dim: int, monkeypatch: pytest.MonkeyPatch) -> None:
    generator = torch.Generator().manual_seed(in_dim)
    x, weight = (torch.randint(-127, 128, (rows, in_dim), generator=generator, dtype=torch.int8) for rows in (3, 5))
    exact = int_product(x, weight)
    assert exact.tolist() == (x.long() @ weight.long().T).tolist()
    monkeypatch.setattr("octavo.engine.quant.dynamic.has_whole_number_products", lambda: False)
    assert torch.equal(int_product(x, weight), exact)


def test_outliers_keep_llm_int8_exact_where_plain_rounding_fails() -> None:
    spec = spec_of(24, 128)
    weight = torch.randn(24, 128, generator=torch.Generator().manual_seed(3)) * 0.1
    x = torch.randn(4, 128, generator=torch.Generator().manual_seed(4)).clamp_(-3, 3)
    x[:, 17] *= 200
    errors = {}
    for name in ("int8-dynamic", "llm-int8"):
        packed = filled(ROUNDING[name], spec, weight)
        expected = x @ ROUNDING[name].dequantize(packed).T
        # what the large channel adds is the same for both; what is lost is the rest
        rest = expected - x[:, 17:18] @ ROUNDING[name].dequantize(packed)[:, 17:18].T
        errors[name] = float((ROUNDING[name].linear(x, packed) - expected).norm() / rest.norm())
    assert errors["int8-dynamic"] > 0.05
    assert errors["llm-int8"] < 0.01


def test_without_outliers_llm_int8_is_the_whole_number_product_to_the_bit() -> None:
    form, packed, _ = made("llm-int8", 128)
    x = torch.rand(3, 128) * OUTLIER * 0.99
    codes, scales = round_tokens(x)
    plain = int_product(codes, packed.planes["codes"]) * scales * (packed.planes["scale"] * (1 / 127)).t()
    assert torch.equal(form.linear(x, packed), plain)
