"""What the compiled kernels are told of weights that are held as codes."""

from __future__ import annotations

import pytest
import torch

from octavo.engine.model.compiled_weights import form_of, scales_and_shifts
from octavo.engine.quant import FORMATS
from octavo.engine.quant.base import Format, LinearSpec, Packed, Part
from octavo.engine.quant.codes import INT8, UnsignedCode
from octavo.engine.quant.grouped import GroupedFormat
from octavo.kernels.cpu.fields import Form

SPEC = LinearSpec("w", (Part("w", 24),), 128)


def filled(form: GroupedFormat, dtype: torch.dtype) -> Packed:
    packed = form.allocate(SPEC, dtype, torch.device("cpu"))
    random = torch.Generator().manual_seed(5)
    for plane in packed.planes.values():
        if plane.is_floating_point():
            plane.normal_(generator=random)
        else:
            plane.random_(0, 16 if plane.shape[1] < 64 else 256, generator=random)
    return packed


@pytest.mark.parametrize(
    ("form", "dtype", "kept"),
    [
        (FORMATS["int4"].fitted(SPEC), torch.bfloat16, torch.bfloat16),
        (FORMATS["int4"].fitted(SPEC), torch.float32, torch.float32),
        (FORMATS["int4-symmetric"].fitted(SPEC), torch.bfloat16, torch.bfloat16),
        (GroupedFormat("AWQ", UnsignedCode(4), 64, torch.float16, zeros=True), torch.bfloat16, torch.float32),
        (GroupedFormat("zeros", UnsignedCode(4), 32, torch.bfloat16, zeros=True), torch.bfloat16, torch.float32),
        (GroupedFormat("both", UnsignedCode(4, 8), 32, None, shifts=True), torch.bfloat16, torch.float32),
    ],
)
def test_scales_and_shifts_mean_what_the_planes_mean(
    form: GroupedFormat, dtype: torch.dtype, kept: torch.dtype
) -> None:
    packed = filled(form, dtype)
    before = form.dequantize(packed)
    pairs = scales_and_shifts(form, packed.planes)
    assert pairs.dtype == kept
    codes = form.code.unpack(packed.planes["codes"], SPEC.in_dim).float()
    scale, shift = (pairs[..., i].float().repeat_interleave(form.group, dim=1) for i in range(2))
    torch.testing.assert_close((codes * scale + shift).to(dtype), before, atol=1e-6, rtol=2e-2)
    assert torch.equal(form.dequantize(packed), before), "the planes that remain must mean the same"
    assert packed.planes["scale"].data_ptr() == pairs.data_ptr(), "nothing is kept twice"


@pytest.mark.parametrize(
    ("form", "expected"),
    [
        (FORMATS["none"], Form.PLAIN),
        (FORMATS["int8"], Form.INT8),
        (FORMATS["int8-dynamic"], None),
        (FORMATS["llm-int8"], None),
        (FORMATS["int4"].fitted(SPEC), Form.INT4),
        (FORMATS["nf4"], None),
        (FORMATS["fp8"], None),
        (GroupedFormat("grouped", INT8, 64), None),
        (GroupedFormat("odd", UnsignedCode(4), 48, zeros=True), None),
        (GroupedFormat("odd", UnsignedCode(4), 96, zeros=True), None),
        (GroupedFormat("rows", UnsignedCode(4), 0, zeros=True), Form.INT4),
        (GroupedFormat("order", UnsignedCode(4), 32, zeros=True, ordered=True), None),
        (GroupedFormat("bits", UnsignedCode(2), 32, zeros=True), None),
    ],
)
def test_only_formats_that_the_kernels_read_have_a_form(form: Format, expected: int | None) -> None:
    assert form_of(form) == expected
