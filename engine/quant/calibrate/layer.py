"""One layer of a model as quantization sees it: linears by what they read, and what can take over factors of columns.

`Layer.fold` moves factors without changing what the layer computes: the columns of all linears that read something are
multiplied, and the norm or the rows of the linear that made it are divided.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from octavo.engine.model.families import Source
from octavo.engine.model.parameters import part_shapes
from octavo.engine.model.spec import ModelSpec

SLOTS = ("qkv", "o", "gate_up", "down")
_SLOT_OF = {
    "attn.q": "qkv",
    "attn.k": "qkv",
    "attn.v": "qkv",
    "attn.o": "o",
    "mlp.gate": "gate_up",
    "mlp.up": "gate_up",
    "mlp.down": "down",
}
_NORM_BEFORE = {"qkv": "attn_norm", "gate_up": "mlp_norm"}
_ROWS_BEFORE = {"o": "attn.v", "down": "mlp.up"}


@dataclass(slots=True)
class Linear:
    """One linear of the checkpoint, such as "model.layers.0.self_attn.q_proj"; its rows may hold several parts."""

    name: str
    rows: dict[str, slice]  # by part, such as "attn.q"
    weight: Tensor  # float32 [out, in]
    divided: Tensor  # float32 [out], what each row was divided by
    bias: Tensor | None = None
    bias_name: str = ""

    @property
    def slot(self) -> str:
        """What it reads: one of SLOTS."""
        return _SLOT_OF[next(iter(self.rows))]


@dataclass(slots=True)
class Norm:
    """The weight of a norm as the checkpoint stores it, [size], in float32."""

    name: str
    weight: Tensor


@dataclass(slots=True)
class Layer:
    """Linears by name, norms by part; all on one device."""

    index: int
    spec: ModelSpec
    linears: dict[str, Linear] = field(default_factory=dict)
    norms: dict[str, Norm] = field(default_factory=dict)

    @classmethod
    def gather(
        cls, index: int, spec: ModelSpec, sources: Sequence[Source], tensors: Mapping[str, Tensor], device: torch.device
    ) -> Layer:
        """From the layer's tensors as the checkpoint has them."""
        layer = cls(index, spec)
        shapes = part_shapes(spec)
        biases: list[Source] = []
        for source in sources:
            parts = [part.removeprefix(f"layers.{index}.") for part in source.parts]
            tensor = tensors[source.name].to(device, torch.float32)
            if parts[0].endswith(".bias"):
                biases.append(source)
            elif tensor.ndim == 1:
                layer.norms[parts[0].removesuffix(".weight")] = Norm(source.name, tensor)
            else:
                rows, begin = {}, 0
                for part, full in zip(parts, source.parts):
                    end = begin + shapes[full][0]
                    rows[part.removesuffix(".weight")] = slice(begin, end)
                    begin = end
                name = source.name.removesuffix(".weight")
                layer.linears[name] = Linear(name, rows, tensor, torch.ones(len(tensor), device=device))
        for source in biases:
            linear = layer.linears[source.name.removesuffix(".bias")]
            linear.bias, linear.bias_name = tensors[source.name].to(device, torch.float32), source.name
        return layer

    def reading(self, slot: str) -> list[Linear]:
        """The linears that read the same inputs."""
        return [linear for linear in self.linears.values() if linear.slot == slot]

    def parts(self) -> Iterator[tuple[str, Tensor]]:
        """Every part of the layer with its values: ("attn.q.weight", rows), ("attn_norm.weight", vector)."""
        for part, norm in self.norms.items():
            yield f"{part}.weight", norm.weight
        for linear in self.linears.values():
            for part, rows in linear.rows.items():
                yield f"{part}.weight", linear.weight[rows]
                if linear.bias is not None:
                    yield f"{part}.bias", linear.bias[rows]

    def part(self, name: str) -> tuple[Linear, slice]:
        """The linear that holds a part, and its rows in it."""
        return next((linear, linear.rows[name]) for linear in self.linears.values() if name in linear.rows)

    def folds(self, slot: str) -> bool:
        """Whether something before the linears of a slot can take over factors of their columns."""
        return slot in _ROWS_BEFORE or _NORM_BEFORE[slot] in self.norms

    def tied(self, slot: str, scales: Tensor) -> Tensor:
        """Factors [in] with those made equal that fold into the same row: query heads that share a head of values."""
        if slot != "o" or self.spec.q_heads == self.spec.kv_heads:
            return scales
        heads = scales.view(self.spec.kv_heads, -1, self.spec.head_size)
        return heads.mean(1, keepdim=True).expand_as(heads).flatten()

    def fold(self, slot: str, scales: Tensor, stored: torch.dtype) -> Tensor:
        """Multiplies the columns of a slot by factors [in] that `tied` made, and divides what comes before. Returns the
        factors by which the inputs are smaller now: a norm's weight is rounded to `stored` first, and the columns
        make up for that."""
        if slot in _ROWS_BEFORE:
            self._divide_rows(_ROWS_BEFORE[slot], scales)
        else:
            scales = self._divide_norm(self.norms[_NORM_BEFORE[slot]], scales, stored)
        for linear in self.reading(slot):
            linear.weight *= scales
        return scales

    def _divide_rows(self, part: str, scales: Tensor) -> None:
        linear, rows = self.part(part)
        if part == "attn.v":
            scales = scales.view(self.spec.kv_heads, -1, self.spec.head_size)[:, 0].flatten()
        linear.weight[rows] /= scales.unsqueeze(1)
        linear.divided[rows] *= scales
        if linear.bias is not None:
            linear.bias[rows] /= scales

    def _divide_norm(self, norm: Norm, scales: Tensor, stored: torch.dtype) -> Tensor:
        offset = self.spec.norm_offset
        before = norm.weight + offset
        divided = (before / scales - offset).to(stored).float()
        real = before / (divided + offset)
        usable = real.isfinite() & (real > 0)  # a weight of zero stays, and so does what would become zero
        norm.weight = torch.where(usable, divided, norm.weight)
        return torch.where(usable, real, 1.0)
