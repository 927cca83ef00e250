"""How one number of a quantized weight is stored: integers of 2 to 8 bits, 4-bit tables, 8-bit floats.

A code turns numbers that were divided by their group's scale into stored bytes and back. Codes of fewer than 8 bits
share a byte along the row, the first in the lowest bits.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from octavo.kernels.code_tables import TABLES


class Code(ABC):
    """One way to store a number. Codes are values: equal ones are interchangeable."""

    name: str
    bits: int
    dtype: torch.dtype  # of the plane that holds them

    @property
    def per_byte(self) -> int:
        return 8 // self.bits

    def columns(self, in_dim: int) -> int:
        """Entries of a plane's row that hold `in_dim` codes."""
        return -(-in_dim // self.per_byte)

    @abstractmethod
    def fit(self, groups: Tensor) -> Tensor:
        """Scales [..., groups] with which float32 groups [..., groups, size] use the whole range."""

    @abstractmethod
    def encode(self, groups: Tensor, scales: Tensor) -> Tensor:
        """float32 [..., groups, size] and float32 scales [..., groups] to one code an entry, not yet packed."""

    @abstractmethod
    def decode(self, codes: Tensor) -> Tensor:
        """Unpacked codes to float32, before the scale."""

    def pack(self, codes: Tensor) -> Tensor:
        """[..., in] codes to the plane's rows [..., columns]; a last byte that is not full ends in zeros."""
        if self.per_byte == 1:
            return codes
        short = -codes.shape[-1] % self.per_byte
        padded = torch.nn.functional.pad(codes, (0, short)) if short else codes
        lanes = padded.unflatten(-1, (-1, self.per_byte))
        packed = lanes[..., 0].clone()
        for lane in range(1, self.per_byte):
            packed |= lanes[..., lane] << (lane * self.bits)
        return packed

    def unpack(self, plane: Tensor, in_dim: int) -> Tensor:
        """The plane's rows [..., columns] to [..., in] codes."""
        if self.per_byte == 1:
            return plane
        mask = (1 << self.bits) - 1
        lanes = [(plane >> (lane * self.bits)) & mask for lane in range(self.per_byte)]
        return torch.stack(lanes, dim=-1).flatten(-2)[..., :in_dim]


@dataclass(frozen=True, slots=True)
class SignedCode(Code):
    """Whole numbers from -127 to 127 in a signed byte."""

    name: str = "int8"
    bits: int = 8
    dtype: torch.dtype = torch.int8

    def fit(self, groups: Tensor) -> Tensor:
        return groups.abs().amax(-1) / 127.0

    def encode(self, groups: Tensor, scales: Tensor) -> Tensor:
        return _divided(groups, scales).round_().clamp_(-127, 127).to(torch.int8)

    def decode(self, codes: Tensor) -> Tensor:
        return codes.float()


@dataclass(frozen=True, slots=True)
class UnsignedCode(Code):
    """Whole numbers from 0 to 2^bits - 1 of which `offset` means zero, where the group has no zero point of its own.

    A symmetric group's number of largest magnitude becomes code 0, whatever its sign: so all codes are used.
    """

    bits: int
    offset: int = 0
    dtype: torch.dtype = torch.uint8

    @property
    def name(self) -> str:  # type: ignore[override]
        return f"uint{self.bits}"

    @property
    def largest(self) -> int:
        return (1 << self.bits) - 1

    def fit(self, groups: Tensor) -> Tensor:
        at = groups.abs().argmax(-1, keepdim=True)
        return groups.gather(-1, at).squeeze(-1) / -self.offset

    def encode(self, groups: Tensor, scales: Tensor) -> Tensor:
        return _divided(groups, scales).round_().add_(self.offset).clamp_(0, self.largest).to(torch.uint8)

    def fit_with_shifts(self, groups: Tensor) -> tuple[Tensor, Tensor]:
        """Scales and the least numbers of groups that need not lie about zero: number = code * scale + least."""
        low, high = groups.amin(-1), groups.amax(-1)
        return (high - low) / self.largest, low

    def decode(self, codes: Tensor) -> Tensor:
        return codes.float().sub_(self.offset) if self.offset else codes.float()


@dataclass(frozen=True, slots=True)
class TableCode(Code):
    """Four bits that name one of sixteen numbers."""

    name: str
    bits: int = 4
    dtype: torch.dtype = torch.uint8

    @property
    def table(self) -> tuple[float, ...]:
        return TABLES[self.name]

    def fit(self, groups: Tensor) -> Tensor:
        return groups.abs().amax(-1) / max(self.table)

    def encode(self, groups: Tensor, scales: Tensor) -> Tensor:
        # by the reciprocal, as the definition has it: a division would round some numbers to another code
        ordered, order = torch.tensor(self.table).sort(stable=True)
        scaled = groups * (1.0 / scales.clamp(min=1e-38)).unsqueeze(-1)
        rank = torch.zeros(groups.shape, dtype=torch.uint8, device=groups.device)
        for middle in ((ordered[1:] + ordered[:-1]) / 2).tolist():  # fifteen comparisons are faster than a search
            rank += scaled > middle
        return rank if order.equal(torch.arange(16)) else order.to(groups.device, torch.uint8)[rank.int()]

    def decode(self, codes: Tensor) -> Tensor:
        return _on_device(self.table, codes.device).index_select(0, codes.flatten().int()).view(codes.shape)


@dataclass(frozen=True, slots=True)
class Float8Code(Code):
    """E4M3 without infinities: one sign, four exponent and three mantissa bits, at most 448."""

    name: str = "float8_e4m3"
    bits: int = 8
    dtype: torch.dtype = torch.float8_e4m3fn

    def fit(self, groups: Tensor) -> Tensor:
        return groups.abs().amax(-1) / 448.0

    def encode(self, groups: Tensor, scales: Tensor) -> Tensor:
        # clamped here, since older torch turns what is too large into NaN
        return _divided(groups, scales).clamp_(-448.0, 448.0).to(torch.float8_e4m3fn)

    def decode(self, codes: Tensor) -> Tensor:
        return codes.float()


@lru_cache(maxsize=32)
def _on_device(table: tuple[float, ...], device: torch.device) -> Tensor:
    """A table where it is needed: a step that is captured as a graph must not copy it there."""
    return torch.tensor(table, device=device)


def _divided(groups: Tensor, scales: Tensor) -> Tensor:
    """groups [..., size] over scales [...]; a group without a scale is all zeros and stays so."""
    scales = torch.where(scales == 0, 1.0, scales)
    return groups / scales.unsqueeze(-1)


INT8 = SignedCode()
FLOAT8 = Float8Code()
NF4 = TableCode("nf4")
FP4 = TableCode("fp4")
E2M1 = TableCode("e2m1")
