"""Products of some tens of rows on a real GPU at real shapes: errors against float64 at most twice torch's own."""

import pytest
import torch
from kernel_cases import assert_as_good_as_torch
from layer_cases import replays

from octavo.kernels.device import device_traits
from octavo.kernels.linear_parts import add_parts_norm
from octavo.kernels.linear_wide import choose_wide_tile, launch_wide, suits_wide, wide_linear, wide_linear_parts
from octavo.kernels.skinny_linear import skinny_linear_reference

EPS = 1e-5
SHAPES = [(1152, 896), (896, 4864), (6144, 4096), (4096, 14336), (1000, 584)]  # the last fits no tile
ROWS = [17, 33, 64]


@pytest.fixture(autouse=True)
def _only_where_these_kernels_are_used():
    if torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("needs compute capability 9.0")


def gpu(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.randn(*shape, device="cuda").to(dtype)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize(("outs", "size"), SHAPES)
def test_products_are_as_good_as_torch(outs, size, rows, dtype):
    x, weight, bias = gpu(rows, size, dtype=dtype), gpu(outs, size, dtype=dtype) * size**-0.5, gpu(outs, dtype=dtype)
    assert suits_wide(rows, weight, x.device)
    torch.cuda.synchronize()  # weights are read before the kernels that precede a product have ended
    for gated, its_bias, out_dtype in (
        (False, None, dtype),
        (False, bias, torch.float32),
        (True, None, dtype),
        (True, bias, dtype),
    ):
        tile = choose_wide_tile(rows, outs // 2 if gated else outs, size, gated, False, device_traits(x.device))
        out = torch.full((rows, outs // 2 if gated else outs), float("nan"), dtype=out_dtype, device="cuda")
        launch_wide(x, weight, its_bias, out, tile, gated)
        exact = skinny_linear_reference(
            x.double(),
            weight.double(),
            None if its_bias is None else its_bias.double(),
            act="silu" if gated else None,
        )
        y = torch.nn.functional.linear(x, weight, its_bias)
        if gated:
            gate, up = y.chunk(2, dim=-1)
            y = torch.nn.functional.silu(gate) * up
        assert_as_good_as_torch(out.to(dtype), y, exact)
    tile = choose_wide_tile(rows, outs, size, False, True, device_traits(x.device))
    parts = torch.full((tile.split, rows, outs), float("nan"), device="cuda")
    launch_wide(x, weight, None, parts, tile, False)
    exact = skinny_linear_reference(x.double(), weight.double())
    assert_as_good_as_torch(parts.sum(0).to(dtype), torch.nn.functional.linear(x, weight), exact)


@pytest.mark.parametrize(("outs", "size"), SHAPES)
def test_a_row_has_the_same_bits_every_time_and_whatever_stands_beside_it(outs, size):
    x, weight = gpu(64, size), gpu(outs, size)
    beside = torch.cat((x[:20], gpu(20, size)))
    torch.cuda.synchronize()
    first, parts = wide_linear(x, weight), wide_linear_parts(x, weight)
    for _ in range(10):
        assert torch.equal(wide_linear(x, weight), first)
        assert torch.equal(wide_linear_parts(x, weight), parts)
    assert torch.equal(wide_linear(beside, weight)[:20], first[:20])
    assert torch.equal(wide_linear_parts(beside, weight)[:, :20], parts[:, :20])


@pytest.mark.parametrize("size", [896, 4096])
def test_chained_products_that_start_early_see_each_others_results_in_a_graph(size):
    rows, inner, layers = 64, 2 * size, 12
    weights = [(gpu(2 * inner, size) * size**-0.5, gpu(size, inner) * inner**-0.5) for _ in range(layers)]
    norm = torch.ones(size, device="cuda", dtype=torch.bfloat16)
    source = gpu(rows, size)

    def chain():
        stream = source.clone()
        x = stream.clone()
        for gate_up, down in weights:
            x, stream = add_parts_norm(wide_linear_parts(wide_linear(x, gate_up, gated=True), down), stream, norm, EPS)
        return stream

    for replayed in replays(chain, source, 20):
        stream = source.double()
        x = stream
        for gate_up, down in weights:
            stream = stream + skinny_linear_reference(x, gate_up, act="silu").double() @ down.double().t()
            x = stream * torch.rsqrt(stream.pow(2).mean(-1, keepdim=True) + EPS)
        assert (replayed.double() - stream).norm() < 0.02 * stream.norm()
