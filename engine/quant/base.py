"""Weights behind handles: what a linear is, how a format holds it, and who may look at it when.

Model code calls a WeightRef and never keeps a tensor, so that a later ref can move weights between host and device.
A format is one file; it subclasses Format and joins the table in engine/quant/__init__.py.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from octavo.kernels.quant_weight import CodedWeight

# Upper ends of the row counts that kernels tell apart: one chat, a few, one tile of a tensor core, a large batch, a
# prompt; the last bucket is open.
ROW_BUCKETS = (1, 4, 16, 64, 256)


@dataclass(frozen=True, slots=True)
class Part:
    """Rows of a linear that a checkpoint stores under one name, such as the query rows of a merged projection."""

    name: str
    rows: int


@dataclass(frozen=True, slots=True)
class LinearSpec:
    """One matrix product of a model: [in_dim] to the rows of all parts, in order."""

    name: str
    parts: tuple[Part, ...]
    in_dim: int
    bias: bool = False
    role: Literal["column", "row", "replicated"] = "column"  # how it splits over devices: by outputs, by inputs, not
    experts: int | None = None  # that many matrices of this shape, stacked

    @property
    def out_dim(self) -> int:
        return sum(part.rows for part in self.parts)

    @property
    def shape(self) -> tuple[int, ...]:
        """[out, in], or [experts, out, in]."""
        matrix = (self.out_dim, self.in_dim)
        return matrix if self.experts is None else (self.experts, *matrix)

    def first_row(self, part: str) -> int:
        """Row at which a part begins."""
        row = 0
        for candidate in self.parts:
            if candidate.name == part:
                return row
            row += candidate.rows
        raise KeyError(part)


@dataclass(slots=True)
class Packed:
    """A linear as its format holds it: named planes at fixed addresses, and the bias [out]. `dtype` is what
    activations are computed in; `pieces` are those of a linear whose parts are held in several formats."""

    planes: dict[str, Tensor]
    bias: Tensor | None = None
    in_dim: int = 0
    dtype: torch.dtype = torch.float32
    pieces: tuple[Packed, ...] = ()
    products: tuple[Callable[[Tensor, Packed], Tensor] | None, ...] = ()  # a kernel for each bucket of rows
    fused: CodedWeight | None = None  # the weight as kernels read it that fold in what stands around a product

    @property
    def weight(self) -> Tensor:
        """The only plane of formats that need no other."""
        return self.planes["weight"]


class Format(ABC):
    """How weights are held in memory and multiplied. It keeps no state: equal formats are interchangeable, and parts
    of a merged linear share one exactly if theirs are equal."""

    name: str
    shares_embedding: bool = True  # a tied head can be the embedding itself, read by rows
    quantizes: bool = False  # `pack` rounds full-precision weights, which should come as exact as they are stored
    merges: bool = True  # several parts can stand in one linear
    for_last: Format | None = None  # what holds the last layer's second MLP product better in the same room
    whole_planes: frozenset[str] = frozenset()  # planes that are not one entry a row of the weight

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other)

    def __hash__(self) -> int:
        return hash(type(self))

    @abstractmethod
    def stored(self, spec: LinearSpec, dtype: torch.dtype) -> dict[str, tuple[tuple[int, ...], torch.dtype]]:
        """Shape and dtype of every plane; `dtype` is what activations are computed in."""

    def fitted(self, spec: LinearSpec) -> Format:
        """The format with what it derives from a linear's shape, such as a group size that divides it."""
        return self

    @abstractmethod
    def pack(
        self, packed: Packed, spec: LinearSpec, planes: Mapping[str, Tensor], *, row: int = 0, expert: int | None = None
    ) -> None:
        """Writes rows from `row` on. `planes` is what the checkpoint holds of them: {"weight": [rows, in]} in full
        precision or the format's own planes; for stacked experts [experts, rows, ...] if `expert` is None."""

    def finish(self, packed: Packed, spec: LinearSpec) -> None:  # noqa: B027 - most formats have nothing to do
        """Called once, when all rows of a linear are in; may put its planes into another order."""

    @abstractmethod
    def dequantize(self, packed: Packed, rows: Tensor | None = None) -> Tensor:
        """[out, in] in the compute dtype, or only int64 `rows` of it: the reference, and how an embedding is read."""

    @abstractmethod
    def linear(self, x: Tensor, packed: Packed) -> Tensor:
        """x [T, in] times the transposed weight plus bias: [T, out]."""

    @abstractmethod
    def linear_grouped(self, x: Tensor, packed: Packed, ends: Tensor) -> Tensor:
        """x [N, in] sorted by expert, int32 ends [experts] where each expert's rows end. Returns [N, out]."""

    def decodes(self, device: torch.device) -> bool:
        """Whether `linear` turns the whole weight into plain numbers for every product, which is slow."""
        return False

    def waits_for_experts(self, spec: LinearSpec, dtype: torch.dtype, device: torch.device) -> bool:
        """Whether `linear_grouped` must know on the host where experts end; such a model cannot be captured."""
        return True

    def randomize(self, packed: Packed, spec: LinearSpec, generator: torch.Generator, std: float) -> None:
        """Fills the planes from N(0, std), one expert at a time, on the device of `generator`."""
        for expert in range(spec.experts or 1):
            weight = torch.empty((spec.out_dim, spec.in_dim), device=generator.device)
            weight.normal_(0.0, std, generator=generator)
            self.pack(packed, spec, {"weight": weight}, expert=expert if spec.experts else None)

    def bytes(self, spec: LinearSpec, dtype: torch.dtype) -> int:
        """Memory of the planes and the bias."""
        total = spec.out_dim * dtype.itemsize if spec.bias else 0
        for shape, plane_dtype in self.stored(spec, dtype).values():
            total += torch.Size(shape).numel() * plane_dtype.itemsize
        return total

    def allocate(self, spec: LinearSpec, dtype: torch.dtype, device: torch.device) -> Packed:
        """Planes on the device, to be filled by `pack`."""
        planes = {
            name: torch.empty(shape, dtype=plane_dtype, device=device)
            for name, (shape, plane_dtype) in self.stored(spec, dtype).items()
        }
        bias = torch.empty(spec.out_dim, dtype=dtype, device=device) if spec.bias else None
        return Packed(planes, bias, spec.in_dim, dtype)


def multiply(form: Format, x: Tensor, packed: Packed) -> Tensor:
    """`Format.linear`, by the kernel for that many rows if there is one."""
    if packed.products:
        run = packed.products[bisect_left(ROW_BUCKETS, x.shape[0])]
        if run is not None:
            return run(x, packed)
    return form.linear(x, packed)


class WeightRef:
    """The model's handle on one linear. This one stays on its device; others may fetch on `acquire`."""

    __slots__ = ("_packed", "format", "spec")

    def __init__(self, spec: LinearSpec, weight_format: Format, packed: Packed) -> None:
        self.spec = spec
        self.format = weight_format
        self._packed = packed

    def acquire(self) -> Packed:
        """The weight, ready to be read by work queued until `release`."""
        return self._packed

    def release(self) -> None:
        """Says that all work on the weight has been queued."""

    def __call__(self, x: Tensor) -> Tensor:
        """x [T, in] to [T, out]."""
        y = multiply(self.format, x, self.acquire())
        self.release()
        return y

    def grouped(self, x: Tensor, ends: Tensor) -> Tensor:
        """See Format.linear_grouped."""
        y = self.format.linear_grouped(x, self.acquire(), ends)
        self.release()
        return y

    def rows(self, ids: Tensor) -> Tensor:
        """Rows of the weight for int64 ids [T]: [T, in]. An embedding."""
        y = self.format.dequantize(self.acquire(), ids)
        self.release()
        return y
