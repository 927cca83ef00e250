"""The table of kernels, and the CPU's own for int8: each says what the reference says, for every number of rows."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import pytest
import torch

from octavo.engine.quant import FORMATS, gpu_codes, products
from octavo.engine.quant.base import ROW_BUCKETS, LinearSpec, Packed, Part, WeightRef, multiply
from octavo.engine.quant.blocks import BlockFormat
from octavo.engine.quant.codes import E2M1, FLOAT8, FP4, NF4, TableCode, UnsignedCode
from octavo.engine.quant.cpu_int import few_rows, many_rows, some_rows
from octavo.engine.quant.grouped import GroupedFormat
from octavo.engine.quant.products import Product, choose, find, find_all, find_fused, layout_of, register
from octavo.kernels.quant_weight import coded_reference

CPU = torch.device("cpu")
SPEC = LinearSpec("up", (Part("up", 96),), in_dim=128, bias=True)


@pytest.fixture
def table(monkeypatch: pytest.MonkeyPatch) -> list[Product]:
    made: list[Product] = []
    monkeypatch.setattr(products, "_TABLE", made)
    return made


def int8(dtype: torch.dtype) -> tuple[GroupedFormat, Packed]:
    form = FORMATS["int8"]
    packed = form.allocate(SPEC, dtype, CPU)
    form.pack(packed, SPEC, {"weight": torch.randn(96, 128, generator=torch.Generator().manual_seed(1))})
    packed.bias.copy_(torch.linspace(-1, 1, 96))
    assert isinstance(form, GroupedFormat)
    return form, packed


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("rows", [1, 2, 4, 5, 8, 16, 17, 70])
def test_every_number_of_rows_gives_the_reference_product(rows: int, dtype: torch.dtype) -> None:
    form, packed = int8(dtype)
    x = torch.randn(rows, 128, generator=torch.Generator().manual_seed(rows)).to(dtype)
    x[:, 7] *= 50
    planes = packed.planes
    expected = x.double() @ (planes["codes"].double() * planes["scale"].double()).T + packed.bias.double()
    choose(form, packed, SPEC, CPU)
    result = WeightRef(SPEC, form, packed)(x)
    assert result.dtype == dtype
    error = float((result.double() - expected).norm() / expected.norm())
    assert error < (4e-3 if dtype == torch.bfloat16 else 1e-4)


def test_rows_that_are_few_some_and_many_each_have_their_kernel() -> None:
    form, _ = int8(torch.bfloat16)
    runs = find_all(form, SPEC, torch.bfloat16, CPU)
    assert runs == (few_rows, few_rows, some_rows, many_rows, many_rows, many_rows)


@pytest.mark.parametrize("name", ["int8-dynamic", "llm-int8", "int4", "nf4", "none"])
def test_other_formats_do_not_take_the_kernels_of_int8(name: str) -> None:
    form = FORMATS[name].fitted(SPEC)
    assert find_all(form, SPEC, torch.bfloat16, CPU) == ()


def test_a_row_does_not_depend_on_its_neighbours() -> None:
    form, packed = int8(torch.float32)
    choose(form, packed, SPEC, CPU)
    x = torch.randn(8, 128)
    loud = torch.cat((x[:1], x[1:] * 1000))
    torch.testing.assert_close(multiply(form, loud, packed)[0], multiply(form, x, packed)[0], rtol=1e-4, atol=1e-5)


def test_what_was_entered_last_and_fits_is_taken(table: list[Product]) -> None:
    form, _ = int8(torch.float32)
    ones, all_rows = Product(lambda x, p: x, "int8", "cpu", rows=(1, 1)), Product(lambda x, p: x, "int8", "cpu")
    register(all_rows)
    register(ones)
    found = [find(form, SPEC, torch.float32, CPU, bucket) for bucket in range(len(ROW_BUCKETS) + 1)]
    assert found == [ones] + [all_rows] * len(ROW_BUCKETS)
    register(Product(lambda x, p: x, "int8", "cpu", fits=lambda form, spec, dtype: False))
    assert find(form, SPEC, torch.float32, CPU, 0) is ones


def test_device_and_layout_are_part_of_the_key(table: list[Product]) -> None:
    form, _ = int8(torch.float32)
    for entry in (Product(lambda x, p: x, "int8", "cuda"), Product(lambda x, p: x, "uint4", "cpu")):
        register(entry)
    assert find(form, SPEC, torch.float32, CPU, 0) is None
    assert layout_of(FORMATS["int4"]) == layout_of(FORMATS["int4-symmetric"]) == "uint4"


def test_hardware_that_is_too_old_is_not_given_a_kernel(table: list[Product], monkeypatch: pytest.MonkeyPatch) -> None:
    form, _ = int8(torch.float32)
    register(Product(lambda x, p: x, "int8", "cuda", capability=(8, 9)))
    cuda = torch.device("cuda")
    for able, there in (((8, 6), False), ((8, 9), True), ((9, 0), True)):
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _, able=able: able)
        assert (find(form, SPEC, torch.float32, cuda, 0) is not None) == there


def test_a_kernel_takes_a_bucket_only_as_a_whole() -> None:
    eight = Product(len, "int8", "cpu", rows=(1, 8))
    assert [bucket for bucket in range(len(ROW_BUCKETS) + 1) if eight.serves(bucket)] == [0, 1]
    assert Product(len, "int8", "cpu", rows=(65, None)).serves(len(ROW_BUCKETS))
    assert not Product(len, "int8", "cpu", rows=(65, None)).serves(3)


CUDA = torch.device("cuda")


@pytest.mark.parametrize("able", [(7, 5), (8, 0), (8, 6), (9, 0)])
@pytest.mark.parametrize("name", ["int4", "int4-symmetric", "nf4", "fp4", "int8", "fp8", "int8-dynamic"])
def test_on_a_gpu_codes_have_a_kernel_for_every_number_of_rows(
    name: str, able: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: able)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    form = FORMATS[name].fitted(SPEC)
    runs = find_all(form, SPEC, torch.float16, CUDA)
    few, many = gpu_codes.by_codes, gpu_codes.decoded
    some = few if able >= (8, 0) else many
    wide = some
    if name == "int8-dynamic":
        many = wide = gpu_codes.whole_numbers
        some = few if able >= (8, 0) else None  # the format's own product
    elif name == "fp8" and able >= (8, 9):
        many = wide = gpu_codes.eight_bit_floats
    assert runs == (few, some, some, wide, many, many)
    assert find_fused(form, SPEC, torch.float16, CUDA) is not None
    assert find_fused(form, SPEC, torch.float32, CUDA) is None


@pytest.mark.parametrize("able", [(7, 5), (8, 6), (9, 0)])
def test_eight_bit_floats_in_blocks_have_a_kernel_for_every_number_of_rows(
    able: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: able)
    form = GroupedFormat("FP8", FLOAT8, 128, torch.float32, quantizes=False)
    few, many = gpu_codes.by_codes, gpu_codes.decoded
    some = few if able >= (8, 0) else many
    assert find_all(form, SPEC, torch.bfloat16, CUDA) == (few, some, some, some, many, many)
    packed = form.allocate(LinearSpec("up", (Part("up", 8),), 512), torch.bfloat16, CPU)
    view = gpu_codes.eight_bit(form, packed)
    assert (view.group, view.scale_columns, tuple(view.scale.shape)) == (128, 128, (8, 4))
    odd = GroupedFormat("FP8", FLOAT8, 80, torch.float32, quantizes=False)  # blocks that a turn would cut
    assert find_fused(odd, SPEC, torch.bfloat16, CUDA) is None


@pytest.mark.parametrize("kind", ["IQ4_NL", "IQ4_XS", "MXFP4", "Q4_K"])
def test_on_a_gpu_blocks_of_files_have_one_too(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (8, 0))
    spec = LinearSpec("up", (Part("up", 96),), in_dim=256)
    assert all(find_all(BlockFormat(kind), spec, torch.bfloat16, CUDA))
    assert find_fused(BlockFormat(kind), spec, torch.bfloat16, CUDA) is not None


@pytest.mark.parametrize("name", ["llm-int8", "none"])
def test_what_no_kernel_reads_has_none_on_a_gpu(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (9, 0))
    form = FORMATS[name].fitted(SPEC)
    assert find_all(form, SPEC, torch.float16, CUDA) == ()
    assert find_fused(form, SPEC, torch.float16, CUDA) is None


def test_groups_and_sizes_the_kernels_do_not_read_are_left_to_the_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (9, 0))
    code = UnsignedCode(4)
    for in_dim, group, there in (
        (4096, 128, True),
        (4096, 0, True),
        (576, 32, True),
        (4096, 16, False),
        (100, 32, False),
    ):
        spec = LinearSpec("up", (Part("up", 8),), in_dim)
        form = GroupedFormat("AWQ", code, group, zeros=True, quantizes=False)
        assert (find_fused(form, spec, torch.bfloat16, CUDA) is not None) == there
    assert find_fused(GroupedFormat("GPTQ", code, 128, zeros=True, ordered=True), SPEC, torch.float16, CUDA) is None


@pytest.mark.parametrize("zeros", [False, True])
def test_codes_in_the_order_of_the_kernels_decode_and_multiply_to_the_same(zeros: bool) -> None:
    spec = LinearSpec("up", (Part("up", 12),), 200)
    form = GroupedFormat("AWQ", UnsignedCode(4, 0 if zeros else 8), 64, torch.float16, zeros=zeros, quantizes=False)
    packed = form.allocate(spec, torch.float32, CPU)
    planes = {"codes": torch.randint(0, 256, (12, 100), dtype=torch.uint8), "scale": torch.rand(12, 4).half()}
    if zeros:
        planes["zero"] = torch.randint(0, 16, (12, 4), dtype=torch.uint8)
    form.pack(packed, spec, planes)
    weight, x = form.dequantize(packed), torch.randn(3, 200)
    some, product = form.dequantize(packed, torch.tensor([3, 0])), form.linear(x, packed)
    form.interleave(packed)
    assert "codes" not in packed.planes
    assert torch.equal(form.dequantize(packed), weight)
    assert torch.equal(form.dequantize(packed, torch.tensor([3, 0])), some)
    assert torch.equal(form.linear(x, packed), product)
    assert torch.equal(coded_reference(gpu_codes.four_bit(form, packed)), weight)


@pytest.mark.parametrize(
    ("code", "group", "scale"), [(NF4, 64, torch.float32), (FP4, 0, torch.float32), (E2M1, 32, torch.float8_e8m0fnu)]
)
def test_codes_of_tables_in_the_order_of_the_kernels_are_the_same_weight(
    code: TableCode, group: int, scale: torch.dtype
) -> None:
    spec = LinearSpec("up", (Part("up", 12),), 200)
    form = GroupedFormat("4 bits", code, group, scale, quantizes=False)
    packed = form.allocate(spec, torch.float32, CPU)
    sizes = torch.rand(12, form.groups(200)) if scale == torch.float32 else torch.randint(0, 130, (12, 7)).byte()
    codes = torch.randint(0, 256, (12, 100), dtype=torch.uint8)
    form.pack(packed, spec, {"codes": codes, "scale": sizes if scale == torch.float32 else sizes.view(scale)})
    weight = form.dequantize(packed)
    assert form.interleaves(spec)
    form.interleave(packed)
    assert torch.equal(form.dequantize(packed), weight)
    assert torch.equal(form.dequantize(packed, torch.tensor([3, 0])), weight[[3, 0]])
    assert torch.equal(coded_reference(gpu_codes.by_table(form, packed)), weight)
    assert not replace(form, outer="times").interleaves(spec)


@pytest.mark.parametrize("outer", ["times", "over"])
def test_nvfp4_is_the_same_weight_and_has_kernels_for_one_row_and_for_decoding(
    outer: Literal["times", "over"], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (9, 0))
    spec = LinearSpec("up", (Part("up", 12),), 208)
    form = GroupedFormat("NVFP4", E2M1, 16, torch.float8_e4m3fn, outer=outer, quantizes=False)
    packed = form.allocate(spec, torch.float32, CPU)
    scale, whole = torch.rand(12, 13).mul_(400).to(torch.float8_e4m3fn), torch.full((12, 1), 300.0)
    codes = torch.randint(0, 256, (12, 104), dtype=torch.uint8)
    form.pack(packed, spec, {"codes": codes, "scale": scale, "outer": whole})
    weight = form.dequantize(packed)
    form.interleave(packed)
    assert torch.equal(form.dequantize(packed), weight)
    found = coded_reference(gpu_codes.by_table(form, packed))
    torch.testing.assert_close(found, weight, rtol=0 if outer == "times" else 3e-7, atol=0)
    runs = find_all(form, spec, torch.bfloat16, CUDA)
    assert runs == (gpu_codes.by_codes, *[gpu_codes.decoded] * len(ROW_BUCKETS))
    assert find_fused(form, spec, torch.bfloat16, CUDA) is not None
