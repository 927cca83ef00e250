"""A decoder's layers without attention, for the operations that span a product; chains of them in a graph."""

from collections.abc import Callable, Iterator
from types import SimpleNamespace

import torch

from octavo.engine.quant import FORMATS, gpu_codes
from octavo.engine.quant.base import LinearSpec, Packed, Part, WeightRef
from octavo.engine.quant.grouped import GroupedFormat

HIDDEN, INNER, EPS = 48, 40, 1e-5
TOLERANCE = {"rtol": 2e-2, "atol": 2e-2}


def linear(outs: int, size: int, bias: bool = False, name: str = "none") -> WeightRef:
    spec = LinearSpec("linear", (Part("all", outs),), size, bias=bias)
    weight = (torch.randn(outs, size) / size**0.5).half()
    if name == "none":
        return WeightRef(spec, FORMATS[name], Packed({"weight": weight}, torch.randn(outs).half() if bias else None))
    form = FORMATS[name].fitted(spec)
    packed = form.allocate(spec, torch.float16, torch.device("cpu"))
    form.pack(packed, spec, {"weight": weight})
    if packed.bias is not None:
        packed.bias.normal_()
    if isinstance(form, GroupedFormat) and form.interleaves(spec):  # as `finish` does on a GPU
        form.interleave(packed)
    packed.fused = (gpu_codes.four_bit if form.code.bits == 4 else gpu_codes.eight_bit)(form, packed)
    return WeightRef(spec, form, packed)


def layer(name: str = "none") -> SimpleNamespace:
    return SimpleNamespace(
        qkv=(linear(64, HIDDEN, bias=True, name=name),),
        o=linear(HIDDEN, 64, name=name),
        gate_up=(linear(2 * INNER, HIDDEN, name=name),),
        down=linear(HIDDEN, INNER, name=name),
        attn_norm=torch.rand(HIDDEN).half(),
        mlp_norm=torch.rand(HIDDEN).half(),
        router=None,
    )


def run(ops, layers, hidden):
    """A decoder's layers without attention: (its last hidden states, all that was computed on the way)."""
    seen, delta = [], None
    for each in layers:
        q, hidden = ops.norm_linear(delta, hidden, each.attn_norm, EPS, each.qkv[0])
        delta, hidden = ops.linear_add(q, each.o, hidden)
        inner, hidden = ops.norm_gated(delta, hidden, each.mlp_norm, EPS, each.gate_up[0], "silu")
        delta, hidden = ops.linear_add(inner, each.down, hidden)
        seen += [q, inner]
    return (hidden if delta is None else hidden + delta), seen


def replays(chain: Callable[[], torch.Tensor], source: torch.Tensor, times: int) -> Iterator[torch.Tensor]:
    """What a CUDA graph of `chain`, which reads `source`, gives for so many new values of it."""
    torch.cuda.synchronize()
    chain()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = chain()
    for _ in range(times):
        source.normal_()
        graph.replay()
        replayed = result.clone()
        torch.cuda.synchronize()
        yield replayed
