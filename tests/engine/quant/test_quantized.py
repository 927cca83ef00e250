"""Formats that round: how far, what a wrong bit would do, and that every row and expert keeps its own scale."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from octavo.engine.quant import FORMATS, grouped
from octavo.engine.quant.base import Format, LinearSpec, Packed, Part, WeightRef
from octavo.engine.quant.dynamic import OUTLIER, int_product, round_tokens
from octavo.engine.quant.grouped import GroupedFormat

CPU = torch.device("cpu")
ROUNDING = {name: made for name, made in FORMATS.items() if made.quantizes}
# Largest error of a weight as a share of its group's largest: half the widest step between two codes.
STEP = {"int8": 1 / 254, "int8-dynamic": 1 / 254, "llm-int8": 1 / 254, "fp8": 1 / 28, "nf4": 0.16, "fp4": 0.167}
# These two may cut off up to a sixth of a group's range where that makes the whole error smaller.
STEP |= {"int4": 0.22, "int4-symmetric": 0.27}
# Error of normally distributed weights as a share of them.
WHOLE = {"int8": 0.01, "int8-dynamic": 0.01, "llm-int8": 0.01, "fp8": 0.03, "nf4": 0.1, "fp4": 0.13}
WHOLE |= {"int4": 0.08, "int4-symmetric": 0.09}


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
    assert float((form.dequantize(packed) - weight).norm() / weight.norm()) < WHOLE[name]


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
    spec = spec_of(64, 4096)
    bits = {name: form.fitted(spec).bytes(spec, torch.bfloat16) * 8 / (64 * 4096) for name, form in ROUNDING.items()}
    assert bits == pytest.approx(
        {
            "int8": 8.008,
            "int8-dynamic": 8.008,
            "llm-int8": 8.008,
            "fp8": 8.008,
            "int4": 4.25,  # 128 weights share 16 bits of scale and 16 of shift
            "int4-symmetric": 4.125,
            "nf4": 4.5,
            "fp4": 4.5,
        },
        abs=0.001,
    )


@pytest.mark.parametrize(
    ("in_dim", "group"), [(4096, 128), (11008, 128), (4160, 64), (2048, 64), (2080, 32), (576, 32), (344, 32), (63, 32)]
)
def test_the_group_of_int4_follows_the_length_of_the_row_and_divides_it(in_dim: int, group: int) -> None:
    assert FORMATS["int4"].fitted(spec_of(8, in_dim)).group == group  # type: ignore[attr-defined]


def test_a_wrong_order_of_nibbles_or_shift_by_one_step_is_noticed() -> None:
    form, packed, weight = made("int4", 128)
    right = (form.dequantize(packed) - weight).norm()
    codes, step = packed.planes["codes"], packed.planes["scale"]
    shift = packed.planes["shift"]
    for planes in ({"codes": (codes << 4) | (codes >> 4)}, {"shift": shift + step}, {"shift": shift - step}):
        wrong = replace(packed, planes=packed.planes | planes)  # type: ignore[type-var]
        assert (form.dequantize(wrong) - weight).norm() > 1.5 * right


def test_weights_of_a_q4_1_file_survive_int4() -> None:
    """Sixteen evenly spaced numbers from a least one on in groups of 32, as such files hold them."""
    generator = torch.Generator().manual_seed(1)
    steps = torch.rand((8, 4, 1), generator=generator).bfloat16().float() * 0.0625 + 0.0625
    steps, least = steps.bfloat16().float(), torch.randn((8, 4, 1), generator=generator).bfloat16().float()
    numbers = torch.randint(0, 16, (8, 4, 32), generator=generator)
    numbers[..., 0], numbers[..., 1] = 0, 15
    weight = (numbers * steps + least).flatten(1)
    spec = spec_of(8, 128)
    form = FORMATS["int4"].fitted(spec)
    assert torch.equal(form.dequantize(filled(form, spec, weight)), weight)


def test_cutting_off_the_outermost_makes_the_error_smaller() -> None:
    spec = spec_of(24, 512)
    weight = torch.randn(24, 512, generator=torch.Generator().manual_seed(3))
    for name in ("int4", "int4-symmetric"):
        form = FORMATS[name].fitted(spec)
        errors = []
        for ranges in ((1.0,), grouped._RANGES):
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(grouped, "_RANGES", ranges)
                errors.append(float((form.dequantize(filled(form, spec, weight)) - weight).norm()))
        assert errors[1] < 0.985 * errors[0]


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
