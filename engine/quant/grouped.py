"""Weights as codes with a scale for every group of a row: the one layout of int8, int4, fp8, nf4 and their relatives.

Planes, each with one entry a row of the weight: `codes` [out, columns]; `scale` [out, groups]; `zero` uint8
[out, groups], `shift` [out, groups] and `outer` float32 [out, 1] where the format has them; `order` int32 [in], one for
the linear, says which input each column belongs to. On CUDA `finish` puts 4-bit codes, and int8 codes with a scale a
row where there are tensor cores, into the order of the kernels: `words` int16 [out, words] instead of `codes`
(kernels/quant_weight.py).
weight = (code - zero) * scale + shift, with scale * outer (or scale / outer) for scale.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from octavo.engine.quant.base import Format, LinearSpec, Packed
from octavo.engine.quant.codes import E2M1, Code, SignedCode, TableCode, UnsignedCode
from octavo.engine.sending import send
from octavo.kernels.device import device_traits
from octavo.kernels.quant_weight import (
    groups_suit,
    interleave_bytes,
    interleave_codes,
    separate_bytes,
    separate_codes,
)

# Entries decoded at a time: float32 copies of more would leave the CPU's cache, and on a GPU fill memory.
_CPU_CHUNK = 1 << 18
_CUDA_CHUNK = 1 << 23


@dataclass(frozen=True)
class GroupedFormat(Format):
    """Codes with scales. `group` columns share a scale, the whole row if it is 0; a last group may be shorter.

    `scale_dtype` None is the compute dtype. Products decode a run of rows at a time: the reference for every kernel.
    """

    name: str
    code: Code
    group: int = 0
    scale_dtype: torch.dtype | None = torch.float32
    zeros: bool = False
    shifts: bool = False
    outer: Literal["", "times", "over"] = ""
    ordered: bool = False
    quantizes: bool = True
    shares_embedding: bool = False

    @property
    def merges(self) -> bool:  # type: ignore[override]
        return not self.ordered  # each part may have an order of its own

    @property
    def whole_planes(self) -> frozenset[str]:  # type: ignore[override]
        return frozenset(("order",))

    def groups(self, in_dim: int) -> int:
        """Scales of a row."""
        return -(-in_dim // self.group) if self.group else 1

    def stored(self, spec: LinearSpec, dtype: torch.dtype) -> dict[str, tuple[tuple[int, ...], torch.dtype]]:
        rows = spec.shape[:-1]
        groups = self.groups(spec.in_dim)
        planes = {
            "codes": ((*rows, self.code.columns(spec.in_dim)), self.code.dtype),
            "scale": ((*rows, groups), self.scale_dtype or dtype),
        }
        if self.zeros:
            planes["zero"] = ((*rows, groups), torch.uint8)
        if self.shifts:
            planes["shift"] = planes["scale"]
        if self.outer:
            planes["outer"] = ((*rows, 1), torch.float32)
        if self.ordered:
            planes["order"] = ((*spec.shape[:-2], spec.in_dim), torch.int32)
        return planes

    def pack(
        self, packed: Packed, spec: LinearSpec, planes: Mapping[str, Tensor], *, row: int = 0, expert: int | None = None
    ) -> None:
        if "weight" in planes:
            self._pack_weight(packed, planes["weight"], row, expert)
            return
        for name, target in packed.planes.items():
            if name in self.whole_planes:
                send(target if expert is None else target[expert], planes[name])
            else:
                put(target, planes[name], row, expert)

    def _pack_weight(self, packed: Packed, weight: Tensor, row: int, expert: int | None) -> None:
        if weight.ndim == 3:
            for index, matrix in enumerate(weight):
                self._pack_weight(packed, matrix, row, index)
            return
        device = packed.planes["codes"].device
        for begin, end in _runs(weight, device):
            made = self.quantize(weight[begin:end].to(device, non_blocking=True).float(), packed.planes["scale"].dtype)
            for name, plane in made.items():
                put(packed.planes[name], plane, row + begin, expert)

    def quantize(self, weight: Tensor, scale_dtype: torch.dtype) -> dict[str, Tensor]:
        """Planes of float32 rows [rows, in]: each number rounded to the nearest code."""
        rows, in_dim = weight.shape
        size = self.group or in_dim
        short = -in_dim % size
        # what fills a last group repeats its end, so that it does not widen the range
        whole = F.pad(weight[None], (0, short), mode="replicate")[0] if short else weight
        codes, planes = self._round(whole.view(rows, -1, size), scale_dtype)
        return {"codes": self.code.pack(codes.flatten(1)[:, :in_dim]), **planes}

    def _round(self, groups: Tensor, scale_dtype: torch.dtype) -> tuple[Tensor, dict[str, Tensor]]:
        """Codes and other planes of groups [rows, groups, size]."""
        scales = self.code.fit(groups).to(scale_dtype)
        return self.code.encode(groups, scales.float()), {"scale": scales}

    def finish(self, packed: Packed, spec: LinearSpec) -> None:
        codes = packed.planes["codes"]
        read = codes.is_cuda and (self.code.bits == 4 or device_traits(codes.device).tensor_cores)
        if read and spec.experts is None and self.interleaves(spec):
            self.interleave(packed)

    def interleaves(self, spec: LinearSpec) -> bool:
        """Whether the kernels of codes in words read such a linear."""
        if isinstance(self.code, SignedCode):
            return not (self.group or self.zeros or self.shifts or self.outer or self.ordered)
        if self.outer:  # NVFP4
            return self.code == E2M1 and self.scale_dtype == torch.float8_e4m3fn and self._of_sixteen(spec.in_dim)
        special = self.ordered or (self.zeros and self.shifts)
        four_bit = isinstance(self.code, UnsignedCode | TableCode) and self.code.bits == 4
        return four_bit and not special and groups_suit(spec.in_dim, self.group or spec.in_dim)

    def _of_sixteen(self, in_dim: int) -> bool:
        return self.group == 16 < in_dim and in_dim % 16 == 0 and not (self.ordered or self.zeros or self.shifts)

    def interleave(self, packed: Packed) -> None:
        """Puts the codes of a linear that is complete into the order of the kernels."""
        codes = packed.planes.pop("codes")
        eight_bit = codes.dtype == torch.int8
        packed.planes["words"] = interleave_bytes(codes) if eight_bit else interleave_codes(codes, packed.in_dim)

    def decodes(self, device: torch.device) -> bool:
        return True

    def dequantize(self, packed: Packed, rows: Tensor | None = None) -> Tensor:
        planes = packed.planes
        codes = _codes(planes)
        if codes.ndim == 3:
            count = codes.shape[0]
            return torch.stack([self._matrix(one_expert(planes, e), packed) for e in range(count)])
        if rows is not None:
            planes = {name: plane if name == "order" else _pick(plane, rows) for name, plane in planes.items()}
        return self._matrix(planes, packed)

    def _matrix(self, planes: Mapping[str, Tensor], packed: Packed) -> Tensor:
        codes = _codes(planes)
        out = torch.empty((codes.shape[0], packed.in_dim), dtype=packed.dtype, device=codes.device)
        for begin, end in _runs(out, codes.device):
            out[begin:end] = self.decode(planes, packed.in_dim, begin, end)
        return out

    def decode(self, planes: Mapping[str, Tensor], in_dim: int, begin: int, end: int) -> Tensor:
        """Rows of one matrix in float32, [end - begin, in]."""
        if "words" in planes:
            separate = separate_bytes if isinstance(self.code, SignedCode) else separate_codes
            codes = separate(planes["words"][begin:end], in_dim)
        else:
            codes = self.code.unpack(planes["codes"][begin:end], in_dim)
        numbers = self.code.decode(codes)
        if self.zeros:
            numbers -= self._spread(planes["zero"][begin:end].float(), in_dim)
        scales = planes["scale"][begin:end].float()
        if self.outer:
            outer = planes["outer"][begin:end]
            scales = scales * outer if self.outer == "times" else scales / outer
        numbers *= self._spread(scales, in_dim)
        if self.shifts:
            numbers += self._spread(planes["shift"][begin:end].float(), in_dim)
        if self.ordered:
            numbers = torch.empty_like(numbers).index_copy_(1, planes["order"].long(), numbers)
        return numbers

    def _spread(self, scales: Tensor, in_dim: int) -> Tensor:
        """[rows, groups] to [rows, in], or [rows, 1] where it means the same."""
        return scales if not self.group else scales.repeat_interleave(self.group, dim=1)[:, :in_dim]

    def linear(self, x: Tensor, packed: Packed) -> Tensor:
        y = self.product(x, packed.planes, packed)
        return y if packed.bias is None else y.add_(packed.bias)

    def product(self, x: Tensor, planes: Mapping[str, Tensor], packed: Packed) -> Tensor:
        """x [T, in] times one matrix [out, in], without the bias."""
        codes = _codes(planes)
        y = x.new_empty((x.shape[0], codes.shape[0]))
        shape = torch.empty((codes.shape[0], packed.in_dim), device="meta")
        for begin, end in _runs(shape, codes.device):
            y[:, begin:end] = F.linear(x, self.decode(planes, packed.in_dim, begin, end).to(x.dtype))
        return y

    def linear_grouped(self, x: Tensor, packed: Packed, ends: Tensor) -> Tensor:
        out = x.new_empty((x.shape[0], packed.planes["codes"].shape[1]))
        begin = 0
        for expert, end in enumerate(ends.tolist()):  # on a device, this waits for it
            if end > begin:
                out[begin:end] = self.product(x[begin:end], one_expert(packed.planes, expert), packed)
            begin = end
        return out


# Shares of a group's range that are tried: cutting off what is outermost often makes the sum of squared errors smaller.
_RANGES = (1.0, 0.92, 0.84)
# Rows from so many columns on are rounded in groups of so many: small models suffer more from 4 bits.
_GROUP_SIZES = ((4096, 128), (2048, 64), (0, 32))


@dataclass(frozen=True)
class FittedFormat(GroupedFormat):
    """Codes of few bits whose scales, and shifts if there are any, are those of several with the least squared error.

    Without a group size it takes the one for the row's length, or the next smaller one that divides it; if none does,
    the last group of a row is shorter.
    """

    def fitted(self, spec: LinearSpec) -> FittedFormat:
        if self.group:
            return self
        sizes = [size for columns, size in _GROUP_SIZES if spec.in_dim >= columns]
        return replace(self, group=next((size for size in sizes if spec.in_dim % size == 0), sizes[-1]))

    def _round(self, groups: Tensor, scale_dtype: torch.dtype) -> tuple[Tensor, dict[str, Tensor]]:
        best: tuple[Tensor, dict[str, Tensor]] | None = None
        least = torch.empty(0)
        for share in _RANGES:
            codes, planes, error = self._try(groups, share, scale_dtype)
            if best is None:
                best, least = (codes, planes), error
                continue
            better = error < least
            least = torch.where(better, error, least)
            best = (
                torch.where(better.unsqueeze(-1), codes, best[0]),
                {name: torch.where(better, plane, best[1][name]) for name, plane in planes.items()},
            )
        assert best is not None
        return best

    def _try(self, groups: Tensor, share: float, scale_dtype: torch.dtype) -> tuple[Tensor, dict[str, Tensor], Tensor]:
        """Codes, other planes and squared error [rows, groups] if `share` of each group's range is used."""
        assert isinstance(self.code, UnsignedCode)
        if not self.shifts:
            scales = (self.code.fit(groups) * share).to(scale_dtype)
            codes = self.code.encode(groups, scales.float())
            error = self.code.decode(codes).mul_(scales.float().unsqueeze(-1)).sub_(groups)
            return codes, {"scale": scales}, error.square_().sum(-1)
        scales, low = self.code.fit_with_shifts(groups)
        low = (low + scales * (self.code.largest * (1 - share) / 2)).to(scale_dtype)
        scales = (scales * share).to(scale_dtype)
        shifts = low.float().unsqueeze(-1)
        codes = self.code.encode(groups - shifts, scales.float())
        error = self.code.decode(codes).mul_(scales.float().unsqueeze(-1)).add_(shifts).sub_(groups)
        return codes, {"scale": scales, "shift": low}, error.square_().sum(-1)


def _codes(planes: Mapping[str, Tensor]) -> Tensor:
    """The plane of the codes, whose first axes are those of the weight."""
    return planes["words"] if "words" in planes else planes["codes"]


def one_expert(planes: Mapping[str, Tensor], expert: int) -> dict[str, Tensor]:
    """The planes of one of a stack of matrices."""
    return {name: plane[expert] for name, plane in planes.items()}


def put(target: Tensor, rows: Tensor, row: int, expert: int | None) -> None:
    """Copies rows [rows, ...], or of all experts [experts, rows, ...], into a plane from `row` on."""
    place = target if expert is None else target[expert]
    axis = place.ndim - 2
    send(place.narrow(axis, row, rows.shape[axis]), rows)


def _pick(plane: Tensor, rows: Tensor) -> Tensor:
    """Rows of a plane; 8-bit floats have no such operation of their own everywhere."""
    if plane.is_floating_point() and plane.element_size() == 1:
        return plane.view(torch.uint8).index_select(0, rows).view(plane.dtype)
    return plane.index_select(0, rows)


def _runs(matrix: Tensor, device: torch.device) -> Iterator[tuple[int, int]]:
    """Begin and end of runs of rows that are decoded at a time."""
    limit = _CUDA_CHUNK if device.type == "cuda" else _CPU_CHUNK
    step = max(1, limit // max(1, matrix.shape[-1]))
    for begin in range(0, matrix.shape[0], step):
        yield begin, min(begin + step, matrix.shape[0])
