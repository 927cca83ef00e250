"""Weight formats on a CUDA GPU: the same codes as on the CPU, products of the decoded weight, and steps in graphs."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from octavo.engine.load.gguf_decode import DECODERS, decode_blocks
from octavo.engine.load.gguf_types import GGML_TYPES
from octavo.engine.quant import FORMATS
from octavo.engine.quant.base import Format, LinearSpec, Packed, Part
from octavo.engine.quant.codes import FLOAT8
from octavo.engine.quant.dynamic import has_float8_units
from octavo.engine.quant.grouped import GroupedFormat

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA GPU at hand")]

ROUNDING = sorted(name for name, form in FORMATS.items() if form.quantizes)
_BY_NAME = {kind.name: kind for kind in GGML_TYPES.values()}
SIZES = [(512, 1024), (4096, 1024), (96, 100), (40, 63)]


def packed_on(device: str, form: Format, spec: LinearSpec, weight: torch.Tensor, *, finished: bool = True) -> Packed:
    packed = form.allocate(spec, torch.bfloat16, torch.device(device))
    form.pack(packed, spec, {"weight": weight})
    if finished:
        form.finish(packed, spec)
    return packed


@pytest.mark.parametrize("name", ROUNDING)
@pytest.mark.parametrize(("rows", "columns"), SIZES)
def test_codes_are_those_of_the_cpu(name: str, rows: int, columns: int) -> None:
    spec = LinearSpec("w", (Part("w", rows),), columns)
    form = FORMATS[name].fitted(spec)
    weight = torch.randn(rows, columns, generator=torch.Generator().manual_seed(rows)) * 0.05
    host, device = (packed_on(where, form, spec, weight, finished=False) for where in ("cpu", "cuda"))
    for plane, expected in host.planes.items():
        found = device.planes[plane].cpu().view(torch.uint8) if expected.element_size() == 1 else None
        if found is None:
            apart = (device.planes[plane].cpu() - expected).abs() > 1e-2 * expected.abs()
            assert float(apart.float().mean()) < 1e-4  # of two scales as good as each other either may be taken
        else:  # a division may round a scale, and so now and then a code, to its neighbour
            assert float((found != expected.view(torch.uint8)).float().mean()) < 1e-3
    found, expected = form.dequantize(device).cpu().float(), form.dequantize(host).float()
    apart = (found - expected).abs() > 0.02 + 0.02 * expected.abs()
    assert float(apart.float().mean()) < 1e-4
    decoded = form.dequantize(device)
    form.finish(device, spec)  # may put codes into another order
    assert torch.equal(form.dequantize(device), decoded)


@pytest.mark.parametrize("name", ROUNDING)
@pytest.mark.parametrize(("rows", "columns"), SIZES)
@pytest.mark.parametrize("tokens", [1, 2, 16, 17, 300])
def test_products_are_those_of_the_decoded_weight(name: str, rows: int, columns: int, tokens: int) -> None:
    spec = LinearSpec("w", (Part("w", rows),), columns)
    form = FORMATS[name].fitted(spec)
    weight = torch.randn(rows, columns, generator=torch.Generator().manual_seed(rows)) * 0.05
    packed = packed_on("cuda", form, spec, weight)
    x = torch.randn(tokens, columns, device="cuda", dtype=torch.bfloat16)
    x[:, 3] *= 20
    expected = x.double() @ form.dequantize(packed).double().T
    found = form.linear(x, packed).double()
    error = float((found - expected).norm() / expected.norm())
    if name == "int8-dynamic":  # rounding to steps of the largest input / 127, which one channel makes large
        step = x.double().abs().amax(1, keepdim=True) / 127
        rounding = float((step.expand_as(x) / 12**0.5).norm() / x.double().norm())
    else:
        rounds = name == "llm-int8" or (name == "fp8" and has_float8_units(x.device))
        rounding = 0.03 if rounds else 0.0
    assert error < 1.25 * rounding + 0.006


def test_eight_bit_float_products_sum_far_rows_exactly_enough() -> None:
    """16k inputs: partial sums of the tensor cores must not lose what is small."""
    if not has_float8_units(torch.device("cuda")):
        pytest.skip("no FP8 units")
    spec = LinearSpec("w", (Part("w", 64),), 16384)
    packed = packed_on("cuda", FORMATS["fp8"], spec, torch.randn(64, 16384) * 0.05)
    x = torch.randn(32, 16384, device="cuda", dtype=torch.bfloat16)
    scales = x.float().abs().amax(-1, keepdim=True) / 448
    rounded = FLOAT8.encode(x.float(), scales.squeeze(-1)).double() * scales.double()
    weight = packed.planes["codes"].double() * packed.planes["scale"].double()
    expected = rounded @ weight.T
    error = (FORMATS["fp8"].linear(x, packed).double() - expected).norm() / expected.norm()
    assert float(error) < 4e-3


@pytest.mark.parametrize("name", ROUNDING)
def test_a_captured_product_says_the_same_of_new_inputs(name: str) -> None:
    spec = LinearSpec("w", (Part("w", 256),), 512)
    form = FORMATS[name].fitted(spec)
    packed = packed_on("cuda", form, spec, torch.randn(256, 512) * 0.05)
    x = torch.randn(4, 512, device="cuda", dtype=torch.bfloat16)
    with torch.inference_mode():
        side = torch.cuda.Stream()
        with torch.cuda.stream(side):
            form.linear(x, packed)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            out = form.linear(x, packed)
        x.copy_(torch.randn(4, 512, device="cuda", dtype=torch.bfloat16))
        graph.replay()
        torch.testing.assert_close(out, form.linear(x, packed))


@pytest.mark.parametrize("name", sorted(name for name in DECODERS if _BY_NAME[name].block_size > 1))
def test_gguf_blocks_decode_to_the_bits_of_the_cpu(name: str) -> None:
    kind = _BY_NAME[name]
    data = np.random.default_rng(1).integers(0, 256, (500, kind.block_bytes), dtype=np.uint8)
    blocks = torch.from_numpy(data)
    host, device = decode_blocks(blocks, name), decode_blocks(blocks.cuda(), name).cpu()
    assert torch.equal(host.view(torch.int32)[~host.isnan()], device.view(torch.int32)[~host.isnan()])
    assert torch.equal(host.isnan(), device.isnan())


def test_weights_that_stay_packed_are_decoded_on_the_device() -> None:
    spec = LinearSpec("w", (Part("w", 128),), 256)
    form = FORMATS["int4"].fitted(spec)
    assert isinstance(form, GroupedFormat)
    packed = packed_on("cuda", form, spec, torch.randn(128, 256))
    ids = torch.tensor([5, 0, 127], device="cuda")
    assert form.dequantize(packed, ids).device.type == "cuda"
    assert torch.equal(form.dequantize(packed, ids), form.dequantize(packed)[ids])
