"""Weights of GGUF blocks for kernels/bench.py, and whole layers of products with them in the order of a step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from octavo.kernels import rms_norm, skinny_linear
from octavo.kernels.gguf_weight import KINDS, BlockWeight

MIX = "Q4_K_M"  # every second layer has its values and its last product in Q6_K


def random_blocks(kind: str, outs: int, size: int) -> BlockWeight:
    """A weight of random codes and scales; what comes out is of no use but finite."""
    blocks, unit, about = -(-size // 128), KINDS[kind].unit, size**-0.5

    def random(columns: int, dtype: torch.dtype) -> Tensor:
        if dtype == torch.float16:
            return (torch.rand(outs, columns, device="cuda") * (about / (1500 if unit else 8))).half()
        most = torch.iinfo(dtype)
        low, high = (0, 64) if dtype == torch.uint8 else (most.min, most.max + 1)
        return torch.randint(low, high, (outs, columns), dtype=dtype, device="cuda")

    codes = random(size, torch.int8) if kind == "Q8_0" else random(blocks * 32, torch.int16)
    form = KINDS[kind]
    scale_dtype = torch.float16 if not unit else torch.uint8 if form.minimum else torch.int8
    scale = random(blocks * 128 // form.group * (2 if form.minimum else 1), scale_dtype)
    high = random(blocks * 8 * form.high, torch.int16) if form.high else None
    units = random(size // unit * (2 if form.minimum else 1), torch.float16) if unit else None
    return BlockWeight(kind, codes, scale, size, form.group, high=high, unit=units)


@dataclass(frozen=True, slots=True)
class Layer:
    """The products of one layer; `v` apart from `qkv` where it is of another type."""

    qkv: BlockWeight
    o: BlockWeight
    gate_up: BlockWeight
    down: BlockWeight
    v: BlockWeight | None = None

    @classmethod
    def random(cls, kind: str, index: int, hidden: int, inner: int, merged: int, values: int) -> Layer:
        """The index-th layer of a model in a type, or in the mixture."""
        most, apart = ("Q4_K", index % 2 == 1) if kind == MIX else (kind, False)
        return cls(
            random_blocks(most, merged - values if apart else merged, hidden),
            random_blocks(most, hidden, hidden),
            random_blocks(most, 2 * inner, hidden),
            random_blocks("Q6_K" if apart else most, hidden, inner),
            random_blocks("Q6_K", values, hidden) if apart else None,
        )

    @property
    def nbytes(self) -> int:
        planes = (self.qkv, self.o, self.gate_up, self.down, self.v)
        return sum(plane.nbytes for plane in planes if plane is not None)

    def run(self, stream: Tensor, norm: Tensor, normed: skinny_linear.Normed | None) -> skinny_linear.Normed | None:
        """As a decode step runs it, without attention: the first rows of qkv stand for what that gives."""
        size = stream.shape[1]
        if stream.shape[0] > skinny_linear.MAX_ROWS:
            h = rms_norm.rms_norm(stream, norm, 1e-6)
            qkv = self._joined(h)
            stream += skinny_linear.skinny_linear(qkv[:, :size].contiguous(), self.o)
            h = rms_norm.rms_norm(stream, norm, 1e-6)
            gate, up = skinny_linear.skinny_linear(h, self.gate_up).chunk(2, 1)
            stream += skinny_linear.skinny_linear((F.silu(gate) * up).contiguous(), self.down)
            return None
        if self.v is None:
            qkv = _after_norm(stream, norm, normed, self.qkv, None)
        else:
            qkv = self._joined(rms_norm.rms_norm(stream, norm, 1e-6))
        normed = skinny_linear.skinny_linear_add(qkv[:, :size].contiguous(), self.o, None, stream, norm)
        h = _after_norm(stream, norm, normed, self.gate_up, "silu")
        return skinny_linear.skinny_linear_add(h, self.down, None, stream, norm)

    def _joined(self, h: Tensor) -> Tensor:
        qkv = skinny_linear.skinny_linear(h, self.qkv)
        return qkv if self.v is None else torch.cat((qkv, skinny_linear.skinny_linear(h, self.v)), 1)


def chain(kind: str, rows: int, count: int, dtype: torch.dtype) -> tuple[Callable[[], None], int]:
    """A launch of that many layers of an 8B model one after the other, and the bytes that a layer has to read."""
    layers = [Layer.random(kind, index, 4096, 14336, 6144, 1024) for index in range(count)]
    start = torch.randn(rows, 4096, device="cuda", dtype=dtype)
    norm, stream = torch.ones(4096, device="cuda", dtype=dtype), torch.empty_like(start)

    def launch() -> None:
        stream.copy_(start)
        normed = None
        for layer in layers:
            normed = layer.run(stream, norm, normed)

    return launch, sum(layer.nbytes for layer in layers) // count


def _after_norm(
    stream: Tensor, norm: Tensor, normed: skinny_linear.Normed | None, weight: BlockWeight, act: str | None
) -> Tensor:
    if skinny_linear.folds_norm(stream, weight, act is not None):
        return skinny_linear.skinny_linear(stream, weight, norm=norm, eps=1e-6, act=act)
    if normed is None:
        return skinny_linear.skinny_linear(rms_norm.rms_norm(stream, norm, 1e-6), weight, act=act)
    return skinny_linear.skinny_linear(normed.x, weight, squares=normed.squares, eps=1e-6, act=act)
