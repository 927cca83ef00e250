"""Every weight format: filled part by part, it multiplies as its own dequantized matrix does."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from octavo.engine.errors import LoadError
from octavo.engine.quant import weight_format
from octavo.engine.quant.base import Format, LinearSpec, Packed, Part, WeightRef
from octavo.engine.quant.cpu import BlockedFormat
from octavo.engine.quant.plain import PlainFormat

CPU = torch.device("cpu")
SPEC = LinearSpec("qkv", (Part("q", 40), Part("k", 24)), in_dim=56, bias=True)
EXPERTS = LinearSpec("up", (Part("gate", 24), Part("up", 24)), in_dim=32, experts=4)


def formats() -> Iterator[tuple[Format, torch.dtype]]:
    yield PlainFormat(), torch.float32
    yield PlainFormat(), torch.bfloat16
    if BlockedFormat.available(torch.bfloat16):
        yield BlockedFormat(), torch.bfloat16


@pytest.fixture(params=list(formats()), ids=lambda case: f"{type(case[0]).__name__}-{case[1]}")
def case(request: pytest.FixtureRequest) -> tuple[Format, torch.dtype]:
    return request.param


def filled(weight_format: Format, spec: LinearSpec, dtype: torch.dtype) -> tuple[Packed, torch.Tensor]:
    """A linear packed from parts given as float32, and the whole weight."""
    weight = torch.randn(spec.shape, generator=torch.Generator().manual_seed(5))
    packed = weight_format.allocate(spec, dtype, CPU)
    for part in spec.parts:
        row = spec.first_row(part.name)
        rows = weight.narrow(-2, row, part.rows)
        if spec.experts and row:
            for expert in range(spec.experts):
                weight_format.pack(packed, spec, {"weight": rows[expert]}, row=row, expert=expert)
        else:
            weight_format.pack(packed, spec, {"weight": rows}, row=row)
    if packed.bias is not None:
        packed.bias.copy_(torch.linspace(-1, 1, spec.out_dim))
    assert sum(t.numel() * t.element_size() for t in packed.planes.values()) + (
        0 if packed.bias is None else packed.bias.numel() * packed.bias.element_size()
    ) == weight_format.bytes(spec, dtype)
    weight_format.finish(packed, spec)
    return packed, weight


@pytest.mark.parametrize("rows", [1, 3, 64])
def test_products_equal_those_of_the_dequantized_weight(case: tuple[Format, torch.dtype], rows: int) -> None:
    weight_format, dtype = case
    packed, weight = filled(weight_format, SPEC, dtype)
    dense = weight_format.dequantize(packed)
    assert torch.equal(dense, weight.to(dtype))
    x = torch.randn(rows, SPEC.in_dim).to(dtype)
    expected = x.double() @ dense.double().T + packed.bias.double()
    result = WeightRef(SPEC, weight_format, packed)(x)
    assert result.dtype == dtype
    tolerance = 1e-4 if dtype == torch.float32 else 4e-2
    torch.testing.assert_close(result.double(), expected, atol=tolerance, rtol=tolerance)


def test_rows_are_read_one_by_one(case: tuple[Format, torch.dtype]) -> None:
    weight_format, dtype = case
    packed, weight = filled(weight_format, SPEC, dtype)
    ids = torch.tensor([3, 63, 3])
    assert torch.equal(WeightRef(SPEC, weight_format, packed).rows(ids), weight[ids].to(dtype))


@pytest.mark.parametrize("ends", [[0, 3, 3, 9], [9, 9, 9, 9], [0, 0, 0, 1]])
def test_each_expert_multiplies_its_own_rows(case: tuple[Format, torch.dtype], ends: list[int]) -> None:
    weight_format, dtype = case
    packed, weight = filled(weight_format, EXPERTS, dtype)
    x = torch.randn(ends[-1], EXPERTS.in_dim).to(dtype)
    result = WeightRef(EXPERTS, weight_format, packed).grouped(x, torch.tensor(ends, dtype=torch.int32))
    assert torch.equal(weight_format.dequantize(packed), weight.to(dtype))
    begins = [0, *ends[:-1]]
    expected = torch.cat(
        [x[a:b].double() @ weight[e].to(dtype).double().T for e, (a, b) in enumerate(zip(begins, ends))]
    )
    tolerance = 1e-4 if dtype == torch.float32 else 4e-2
    torch.testing.assert_close(result.double(), expected, atol=tolerance, rtol=tolerance)


def test_the_blocked_order_is_for_16_bit_with_fusion_on_the_cpu() -> None:
    def chosen(device: str, dtype: torch.dtype, fusion: bool) -> type:
        return type(weight_format("none", device=torch.device(device), dtype=dtype, fusion=fusion))

    assert chosen("cpu", torch.float32, True) is PlainFormat
    assert chosen("cpu", torch.bfloat16, False) is PlainFormat
    assert chosen("cuda", torch.bfloat16, True) is PlainFormat
    if BlockedFormat.available(torch.bfloat16):
        assert chosen("cpu", torch.bfloat16, True) is BlockedFormat


def test_a_processor_without_it_falls_back_to_plain_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(weight: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("no such primitive")

    monkeypatch.setattr("octavo.engine.quant.cpu._reorder", missing)
    assert not BlockedFormat.available(torch.bfloat16)
    assert type(weight_format("none", device=CPU, dtype=torch.bfloat16, fusion=True)) is PlainFormat


def test_a_format_that_does_not_exist_is_refused() -> None:
    with pytest.raises(LoadError, match="'q3_k_x'"):
        weight_format("q3_k_x", device=CPU, dtype=torch.float32, fusion=True)
