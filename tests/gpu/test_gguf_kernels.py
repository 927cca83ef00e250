"""Products by GGUF blocks on a real GPU, as a loaded model chooses them, against the decoder of files in float64."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from octavo.engine.load.gguf_decode import decode_blocks
from octavo.engine.load.gguf_types import GGML_TYPES
from octavo.engine.quant.base import LinearSpec, Packed, Part, multiply
from octavo.engine.quant.blocks import BlockFormat
from octavo.engine.quant.joined import JoinedFormat
from octavo.engine.quant.products import choose
from octavo.kernels.device import device_traits
from octavo.kernels.gguf_weight import KINDS, BlockWeight
from octavo.kernels.head_argmax import head_argmax
from octavo.kernels.skinny_linear import folds_norm, skinny_linear, skinny_linear_add, skinny_linear_reference

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA GPU at hand")]

CUDA = torch.device("cuda")
EPS = 1e-5
TYPES = {kind.name: kind for kind in GGML_TYPES.values()}
# shapes of an 8B model (v, down) and of a small one whose rows do not fill their last 128 columns
SHAPES = {kind: [(1024, 4096), (512, 14336)] if KINDS[kind].unit else [(576, 576), (512, 14336)] for kind in KINDS}


def held(kind: str, outs: int, size: int, dtype: torch.dtype = torch.bfloat16, bias: bool = False):
    """(format, packed, the exact weight in float64) of random blocks, of a deviation of size ** -0.5."""
    form, spec = BlockFormat(kind), LinearSpec("w", (Part("w", outs),), size, bias=bias)
    packed = form.allocate(spec, dtype, CUDA)
    form.randomize(packed, spec, torch.Generator(device=CUDA).manual_seed(outs + size), size**-0.5)
    blocks = packed.planes["blocks"].clone()
    if packed.bias is not None:
        packed.bias.normal_()
    choose(form, packed, spec, CUDA)
    torch.cuda.synchronize()  # weights are read before the kernels that precede a product have ended
    exact = decode_blocks(blocks.view(-1, TYPES[kind].block_bytes), kind).view(outs, size)
    return form, packed, exact.double()


def error(found: Tensor, exact: Tensor) -> float:
    return float((found.double() - exact).norm() / exact.norm())


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_decoded_weights_are_those_of_the_file_to_the_bit(kind):
    form, packed, exact = held(kind, 96, 768, torch.float16)
    assert "blocks" not in packed.planes
    assert isinstance(packed.fused, BlockWeight)
    assert torch.equal(packed.fused.plain(), exact.float())
    assert torch.equal(form.dequantize(packed), exact.half())
    ids = torch.tensor([5, 95, 0], device=CUDA)
    assert torch.equal(form.dequantize(packed, ids), exact[ids].half())


@pytest.mark.parametrize("shape", [0, 1], ids=["one turn", "many"])
@pytest.mark.parametrize("kind", sorted(KINDS))
def test_products_of_any_number_of_rows(kind, shape):
    outs, size = SHAPES[kind][shape]
    form, packed, weight = held(kind, outs, size, bias=True)
    for rows in (1, 16) if shape else (1, 2, 8, 40, 300):
        x = torch.randn(rows, size, device=CUDA).bfloat16()
        exact = x.double() @ weight.T + packed.bias.double()
        found = multiply(form, x, packed)
        assert found.dtype == torch.bfloat16
        assert error(found, exact) < 5e-3, rows


@pytest.mark.parametrize("rows", [1, 2, 8])
@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1", "Q4_K", "Q5_0", "Q5_1", "Q5_K", "Q6_K"])
def test_what_stands_around_a_product_of_few_rows(kind, rows):
    if rows > 1 and not device_traits(CUDA).tensor_cores:
        pytest.skip("one row is all that is fused without tensor cores")
    outs, size, dtype = 500, 2048, torch.bfloat16 if rows > 1 else torch.float16
    _, packed, weight = held(kind, 2 * outs, size, dtype, bias=True)
    x = torch.randn(rows, size, device=CUDA).to(dtype)
    around = {"act": "silu", "residual": torch.randn(rows, outs, device=CUDA).to(dtype), "bias": packed.bias}
    if folds_norm(x, packed.fused, True):
        around["norm"] = torch.rand(size, device=CUDA) if rows == 1 else torch.rand(size, device=CUDA).to(dtype)
    torch.cuda.synchronize()
    out = torch.full((rows, outs), float("nan"), device=CUDA, dtype=dtype)
    skinny_linear(x, packed.fused, **around, eps=EPS, out=out)
    wide = {key: value.double() if isinstance(value, Tensor) else value for key, value in around.items()}
    assert error(out, skinny_linear_reference(x.double(), weight, **wide, eps=EPS)) < 5e-3


@pytest.mark.parametrize("rows", [1, 8])
def test_a_chain_of_products_as_a_layer_runs_them_captured_and_replayed(rows):
    """With norms handed from one product to the next, and every kernel beginning before the one before it has ended."""
    if rows > 1 and not device_traits(CUDA).tensor_cores:
        pytest.skip("one row is all that is fused without tensor cores")
    layers = [(held("Q4_K", 2048, 1024)[1:], held("Q6_K", 1024, 1024)[1:]) for _ in range(6)]
    norm = torch.rand(1024, device=CUDA).bfloat16()
    start = torch.randn(rows, 1024, device=CUDA).bfloat16()
    stream = torch.empty_like(start)

    def chain() -> None:
        stream.copy_(start)
        normed = None
        for (up, _), (down, _) in layers:
            if normed is None or folds_norm(stream, up.fused, True):
                h = _gate(stream, up, norm)
            else:
                h = skinny_linear(normed.x, up.fused, squares=normed.squares, eps=EPS, act="silu")
            normed = skinny_linear_add(h, down.fused, None, stream, norm)

    def _gate(x: Tensor, up: Packed, weight: Tensor) -> Tensor:
        if folds_norm(x, up.fused, True):
            return skinny_linear(x, up.fused, norm=weight, eps=EPS, act="silu")
        squares = x.float().pow(2).sum(-1, keepdim=True)
        return skinny_linear((x.float() * weight.float()).to(x.dtype), up.fused, squares=squares, eps=EPS, act="silu")

    exact = start.double()
    for (_, up), (_, down) in layers:
        h = skinny_linear_reference(exact, up, norm=norm.double(), eps=EPS, act="silu")
        exact = exact + h @ down.T
    chain()
    first = stream.clone()
    torch.cuda.synchronize()
    assert error(first, exact) < 2e-2
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        chain()
    for _ in range(5):
        stream.zero_()
        graph.replay()
        torch.cuda.synchronize()
        assert torch.equal(stream, first)


def test_activations_far_beyond_float16():
    _, packed, weight = held("Q4_K", 256, 4096)
    x = torch.randn(1, 4096, device=CUDA) * 1e4
    x[0, ::97] *= 1000
    x = x.bfloat16()
    torch.cuda.synchronize()
    assert error(skinny_linear(x, packed.fused, out_dtype=torch.float32), x.double() @ weight.T) < 2e-3


@pytest.mark.parametrize("rows", [1, 8])
def test_the_greedy_choice_of_a_head_in_six_bits(rows):
    _, packed, weight = held("Q6_K", 32001, 1024)
    hidden = torch.randn(rows, 1024, device=CUDA).bfloat16()
    torch.cuda.synchronize()
    best, ids = head_argmax(hidden, packed.fused)
    scores = hidden.double() @ weight.T
    torch.testing.assert_close(best.double(), scores.amax(-1), rtol=3e-3, atol=3e-3)
    torch.testing.assert_close(scores.gather(1, ids[:, None])[:, 0], scores.amax(-1), rtol=3e-3, atol=3e-3)


def test_parts_of_several_types_are_products_of_their_own():
    spec = LinearSpec("qkv", (Part("q", 256), Part("k", 64), Part("v", 64)), 512)
    form = JoinedFormat.of((BlockFormat("Q4_K"), BlockFormat("Q4_K"), BlockFormat("Q6_K")))
    packed = form.allocate(spec, torch.bfloat16, CUDA)
    form.randomize(packed, spec, torch.Generator(device=CUDA).manual_seed(0), 0.05)
    choose(form, packed, spec, CUDA)
    assert all(isinstance(piece.fused, BlockWeight) for piece in packed.pieces)
    x = torch.randn(3, 512, device=CUDA).bfloat16()
    assert error(multiply(form, x, packed), x.double() @ form.dequantize(packed).double().T) < 5e-3


def test_types_without_a_kernel_stay_in_their_blocks():
    form, spec = BlockFormat("Q3_K"), LinearSpec("w", (Part("w", 8),), 256)
    packed = form.allocate(spec, torch.bfloat16, CUDA)
    packed.planes["blocks"].zero_()
    choose(form, packed, spec, CUDA)
    assert packed.fused is None
    assert not packed.products
    assert torch.equal(
        multiply(form, torch.ones(2, 256, device=CUDA).bfloat16(), packed), torch.zeros(2, 8).bfloat16().cuda()
    )
