"""One linear whose parts are held in different formats, as in GGUF files that give more bits to some."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from octavo.engine.quant.base import Format, LinearSpec, Packed, multiply


@dataclass(frozen=True)
class JoinedFormat(Format):
    """`pieces` hold consecutive parts of the linear, `counts` of them each; their results stand side by side."""

    pieces: tuple[Format, ...]
    counts: tuple[int, ...]
    name: str = "joined"

    @classmethod
    def of(cls, formats: tuple[Format, ...]) -> Format:
        """The format of a linear from those of its parts: the one they share, or a joined one."""
        pieces: list[Format] = []
        counts: list[int] = []
        for one in formats:
            if pieces and pieces[-1] == one and one.merges:
                counts[-1] += 1
            else:
                pieces.append(one)
                counts.append(1)
        return pieces[0] if len(pieces) == 1 else cls(tuple(pieces), tuple(counts))

    @property
    def quantizes(self) -> bool:  # type: ignore[override]
        return any(piece.quantizes for piece in self.pieces)

    @property
    def whole_planes(self) -> frozenset[str]:  # type: ignore[override]
        return frozenset().union(*(piece.whole_planes for piece in self.pieces))

    def specs(self, spec: LinearSpec) -> list[LinearSpec]:
        """What each piece holds."""
        found, begin = [], 0
        for count in self.counts:
            parts = spec.parts[begin : begin + count]
            found.append(replace(spec, name=f"{spec.name}.{begin}", parts=parts))
            begin += count
        return found

    def allocate(self, spec: LinearSpec, dtype: torch.dtype, device: torch.device) -> Packed:
        pieces = tuple(piece.allocate(one, dtype, device) for piece, one in zip(self.pieces, self.specs(spec)))
        if not spec.bias:
            return Packed({}, None, spec.in_dim, dtype, pieces)
        bias = torch.empty(spec.out_dim, dtype=dtype, device=device)
        row = 0
        for packed, one in zip(pieces, self.specs(spec)):
            packed.bias = bias[row : row + one.out_dim]
            row += one.out_dim
        return Packed({}, bias, spec.in_dim, dtype, pieces)

    def stored(self, spec: LinearSpec, dtype: torch.dtype) -> dict[str, tuple[tuple[int, ...], torch.dtype]]:
        planes: dict[str, tuple[tuple[int, ...], torch.dtype]] = {}
        for index, (piece, one) in enumerate(zip(self.pieces, self.specs(spec))):
            planes |= {f"{index}.{name}": what for name, what in piece.stored(one, dtype).items()}
        return planes

    def pack(
        self, packed: Packed, spec: LinearSpec, planes: Mapping[str, Tensor], *, row: int = 0, expert: int | None = None
    ) -> None:
        first = 0
        for piece, one, held in zip(self.pieces, self.specs(spec), packed.pieces):
            if row < first + one.out_dim:
                piece.pack(held, one, planes, row=row - first, expert=expert)
                return
            first += one.out_dim
        raise IndexError(row)

    def finish(self, packed: Packed, spec: LinearSpec) -> None:
        for piece, one, held in zip(self.pieces, self.specs(spec), packed.pieces):
            piece.finish(held, one)

    def dequantize(self, packed: Packed, rows: Tensor | None = None) -> Tensor:
        weight = torch.cat([piece.dequantize(held) for piece, held in zip(self.pieces, packed.pieces)], dim=-2)
        return weight if rows is None else weight[rows]

    def linear(self, x: Tensor, packed: Packed) -> Tensor:
        return torch.cat([multiply(piece, x, held) for piece, held in zip(self.pieces, packed.pieces)], dim=-1)

    def linear_grouped(self, x: Tensor, packed: Packed, ends: Tensor) -> Tensor:
        return torch.cat(
            [piece.linear_grouped(x, held, ends) for piece, held in zip(self.pieces, packed.pieces)], dim=-1
        )

    def waits_for_experts(self, spec: LinearSpec, dtype: torch.dtype, device: torch.device) -> bool:
        return any(piece.waits_for_experts(one, dtype, device) for piece, one in zip(self.pieces, self.specs(spec)))

    def randomize(self, packed: Packed, spec: LinearSpec, generator: torch.Generator, std: float) -> None:
        for piece, one, held in zip(self.pieces, self.specs(spec), packed.pieces):
            piece.randomize(held, one, generator, std)
