"""The products of few rows on a real GPU at real shapes: errors against float64 at most twice torch's own."""

import pytest
import torch
from kernel_cases import assert_as_good_as_torch
from layer_cases import replays

from octavo.kernels.head_argmax import head_argmax, head_argmax_reference
from octavo.kernels.skinny_linear import (
    GEMV_ROWS,
    skinny_linear,
    skinny_linear_add,
    skinny_linear_reference,
)

EPS = 1e-5
SHAPES = [(1152, 896), (896, 4864), (6144, 4096), (4096, 14336), (1000, 584)]  # the last fits no tile
ROWS = [1, 2, 3, 8, 9, 16]


def gpu(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.randn(*shape, device="cuda").to(dtype)


def textbook(x, weight, bias=None, norm=None, residual=None, act=None):
    """The same in the tensors' own type, one operation after the other."""
    if norm is not None:
        wide = x.float()
        x = norm * (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + EPS)).to(x.dtype)
    y = torch.nn.functional.linear(x, weight, bias)
    if act is not None:
        gate, up = y.chunk(2, dim=-1)
        y = torch.nn.functional.silu(gate) * up
    return y if residual is None else y + residual


def wide(arguments):
    return {key: value.double() if isinstance(value, torch.Tensor) else value for key, value in arguments.items()}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize(("outs", "size"), SHAPES)
def test_products_are_as_good_as_torch(outs, size, rows, dtype):
    plain = {"x": gpu(rows, size, dtype=dtype), "weight": gpu(outs, size, dtype=dtype) * size**-0.5}
    cases = [plain | {"bias": gpu(outs, dtype=dtype)}, plain | {"residual": gpu(rows, outs, dtype=dtype)}]
    half = outs // 2
    gated = plain | {"weight": plain["weight"][: 2 * half], "act": "silu"}
    if rows <= GEMV_ROWS:
        norm = torch.rand(size, device="cuda").to(dtype)
        cases += [plain | {"norm": norm}, gated | {"norm": norm}]
    else:
        cases.append(gated)
    torch.cuda.synchronize()  # weights are read before the kernels that precede a product have ended
    for arguments in cases:
        out = torch.full((rows, half if "act" in arguments else outs), float("nan"), dtype=dtype, device="cuda")
        skinny_linear(**arguments, eps=EPS, out=out)
        exact = skinny_linear_reference(**wide(arguments), eps=EPS)
        assert_as_good_as_torch(out, textbook(**arguments), exact)


@pytest.mark.parametrize("rows", [3, 16])
def test_a_norm_over_two_launches_is_as_good_as_torch(rows):
    x, stream = gpu(rows, 1536), gpu(rows, 896)
    first, second = gpu(896, 1536) * 1536**-0.5, gpu(2 * 640, 896) * 896**-0.5
    norm = torch.rand(896, device="cuda").bfloat16()
    torch.cuda.synchronize()
    total = stream.clone()
    normed = skinny_linear_add(x, first, None, total, norm)
    assert normed is not None
    out = skinny_linear(normed.x, second, squares=normed.squares, eps=EPS, act="silu")
    exact = skinny_linear_reference(total.double(), second.double(), norm=norm.double(), eps=EPS, act="silu")
    assert_as_good_as_torch(out, textbook(total, second, norm=norm, act="silu"), exact)


@pytest.mark.parametrize("rows", [1, 2, 5])
def test_a_row_has_the_same_bits_every_time_and_whatever_stands_beside_it(rows):
    x, weight = gpu(rows, 4096), gpu(4096, 4096)
    torch.cuda.synchronize()
    first = skinny_linear(x, weight)
    for _ in range(20):
        assert torch.equal(skinny_linear(x, weight), first)
    if rows > 1:
        beside = torch.cat((x[:1], gpu(rows - 1, 4096)))
        assert torch.equal(skinny_linear(beside, weight)[0], first[0])


@pytest.mark.parametrize("rows", [1, 6])
def test_chained_products_that_start_early_see_each_others_results_in_a_graph(rows):
    size, layers = 1024, 12
    weights = [gpu(size, size) * size**-0.5 for _ in range(layers)]
    norm = torch.ones(size, device="cuda", dtype=torch.bfloat16)
    source = gpu(rows, size)

    def chain():
        stream, normed = source.clone(), None
        for weight in weights:
            x = stream if normed is None else normed.x
            squares = None if normed is None else normed.squares
            folded = norm if rows <= GEMV_ROWS else None
            inner = skinny_linear(x, weight, norm=folded, squares=squares, eps=EPS)
            normed = skinny_linear_add(inner, weight, None, stream, norm)
        return stream

    for replayed in replays(chain, source, 20):
        stream = source.clone()
        for place, weight in enumerate(weights):
            normed = rows <= GEMV_ROWS or place > 0  # nothing prepared the first one's norm
            inner = textbook(stream, weight, norm=norm if normed else None)
            stream = textbook(inner, weight, residual=stream)
        assert (replayed.float() - stream.float()).norm() < 0.02 * stream.float().norm()


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize(("vocabulary", "size"), [(128256, 4096), (151936, 896), (1001, 64)])
def test_the_greedy_choice_is_that_of_float32_scores(vocabulary, size, rows):
    hidden, weight = gpu(rows, size), gpu(vocabulary, size)
    weight[vocabulary - 7] = weight[3]
    hidden[0] = weight[3]  # two equal best ones
    torch.cuda.synchronize()
    best, ids = head_argmax(hidden, weight)
    scores = skinny_linear(hidden, weight, out_dtype=torch.float32)
    expected, expected_ids = head_argmax_reference(hidden, weight)
    assert ids[0] == 3
    torch.testing.assert_close(best, expected, rtol=1e-4, atol=1e-4)
    picked = scores.gather(1, ids[:, None])[:, 0]
    torch.testing.assert_close(picked, scores.amax(-1), rtol=1e-5, atol=1e-4)
    assert (ids == expected_ids).float().mean() > 0.9
    hidden[-1, 1] = float("nan")
    assert head_argmax(hidden, weight)[0][-1].isnan()
