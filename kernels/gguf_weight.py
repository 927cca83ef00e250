"""Blocks of a GGUF file in planes that kernels read: the same codes and scales to the bit, in another order.

Scales and codes of one block lie side by side in a file, 18 to 210 bytes together, which no thread can load at once.
Here each is a plane of its own, and nothing is rounded: d * scale is never stored, only what it is made of.

Four-bit codes of 128 neighbours are interleaved as in quant_weight.py. Those of Q6_K, whose scales belong to 16
columns, are so by 64: word e (0 to 15) has the low four bits of columns e, 16 + e, 32 + e and 48 + e. Their high two
bits stand in `high`, where 16-bit word e of 128 neighbours has those of columns e, 16 + e, ... 112 + e, each at the
bit that HIGH_BITS names: moved by a swap of bytes and one shift, they come to stand above their low ones. The fifth
bits of five-bit codes stand there too: 16-bit word 2 t + e (e 0 or 1) of 128 neighbours has in bit 4 q + k the one of
column 32 q + 8 t + 2 k + e, so that two words have all of a thread with 8 neighbours of each quarter.
A row is filled with zeros up to a multiple of 128 columns.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields

import torch
import torch.nn.functional as F
from torch import Tensor

from octavo.kernels.quant_weight import BLOCK, CodedWeight

HIGH_BITS = (4, 8, 6, 10, 12, 0, 14, 2)


@dataclass(frozen=True, slots=True)
class BlockKind:
    """A type of block: what is taken from its codes, whether groups have a minimum, and columns of a group, of a run of
    interleaved codes (0: in the order of the row) and of a super-block, whose scales are whole multiples of a float.
    Types that differ in the fifth bit alone share a `number`, which is how kernels are told; `high` bits of a code lie
    apart from the four lowest."""

    number: int
    offset: int = 0
    minimum: bool = False
    group: int = 32
    span: int = BLOCK
    unit: int = 0
    high: int = 0


KINDS: Mapping[str, BlockKind] = {
    "Q4_0": BlockKind(0, offset=8),
    "Q4_1": BlockKind(1, minimum=True),
    "Q4_K": BlockKind(2, minimum=True, unit=256),
    "Q5_0": BlockKind(0, offset=16, high=1),
    "Q5_1": BlockKind(1, minimum=True, high=1),
    "Q5_K": BlockKind(2, minimum=True, unit=256, high=1),
    "Q6_K": BlockKind(3, offset=32, group=16, span=64, unit=256, high=2),
    "Q8_0": BlockKind(4, offset=128, span=0),
}


@dataclass(frozen=True, slots=True)
class BlockWeight(CodedWeight):
    """A weight [outs, size] of GGUF blocks; `code` is their type.

    codes: int16 words [outs, blocks * 32], a block being 128 columns, or of Q8_0 int8 [outs, size]; high int16
    [outs, blocks * 8] of five bits, [outs, blocks * 16] of Q6_K. scale: float16 [outs, blocks * 4] (Q4_0, Q5_0, Q8_0),
    each block's 4 scales and 4 minimums [outs, blocks * 8] as float16 (Q4_1, Q5_1) or uint8 (Q4_K, Q5_K), int8
    [outs, blocks * 8] (Q6_K). unit: float16, what whole scales are multiples of, [outs, blocks / 2] (Q6_K), with that
    of the minimums beside it [outs, blocks] (Q4_K, Q5_K).
    """

    high: Tensor | None = None
    unit: Tensor | None = None

    @property
    def kind(self) -> BlockKind:
        """What its format fixes: groups, units, planes."""
        return KINDS[self.code]

    @property
    def planes(self) -> dict[str, Tensor]:
        """Every plane there is, one entry a row of the weight."""
        found = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: plane for name, plane in found.items() if isinstance(plane, Tensor)}

    @property
    def nbytes(self) -> int:
        """What a product has to read."""
        return sum(plane.numel() * plane.element_size() for plane in self.planes.values())

    def plain(self, dtype: torch.dtype = torch.float32) -> Tensor:
        """[outs, size]: in float32 to the bit what the format's own arithmetic gives (GGUF specification)."""
        numbers = self._whole_codes().to(dtype)
        scales, minimums = self._scales(dtype)
        numbers = numbers * self._spread(scales)
        if minimums is None:
            return numbers
        return numbers - self._spread(minimums) if self.kind.unit else numbers + self._spread(minimums)

    def _whole_codes(self) -> Tensor:
        if self.code == "Q8_0":
            return self.codes
        nibbles = _separated(self.codes, self.kind.span)
        if self.high is not None:
            nibbles = nibbles | (_fifth_bits(self.high) if self.kind.high == 1 else _high_bits(self.high)) << 4
        return nibbles[:, : self.size] - self.kind.offset

    def _scales(self, dtype: torch.dtype) -> tuple[Tensor, Tensor | None]:
        """Scale and minimum of every group, [outs, groups]."""
        scales, minimums = self.scale.to(dtype), None
        if self.kind.minimum:
            both = scales.unflatten(1, (-1, 2, 4))
            scales, minimums = both[:, :, 0].flatten(1), both[:, :, 1].flatten(1)
        if self.unit is not None:
            units = self.unit.to(dtype).view(self.unit.shape[0], self.size // self.kind.unit, -1)
            per_unit = self.kind.unit // self.kind.group
            scales = scales * units[:, :, 0].repeat_interleave(per_unit, 1)
            if minimums is not None:
                minimums = minimums * units[:, :, 1].repeat_interleave(per_unit, 1)
        return scales, minimums

    def _spread(self, scales: Tensor) -> Tensor:
        return scales.repeat_interleave(self.kind.group, 1)[:, : self.size]


def interleaved(codes: Tensor, span: int) -> Tensor:
    """uint8 [rows, size], one 4-bit code an entry, to int16 words [rows, blocks * 32] of runs of `span` columns."""
    parts = _filled(codes, 1, BLOCK).to(torch.int32).view(codes.shape[0], -1, 4, span // 4)
    words = parts[:, :, 0] | parts[:, :, 1] << 4 | parts[:, :, 2] << 8 | parts[:, :, 3] << 12
    return words.flatten(1).to(torch.int16)


def high_words(codes: Tensor) -> Tensor:
    """uint8 [rows, size], one 2-bit code an entry, to int16 words [rows, blocks * 16]."""
    parts = _filled(codes, 1, BLOCK).to(torch.int32).view(codes.shape[0], -1, 8, 16)
    words = parts[:, :, 0] << HIGH_BITS[0]
    for field in range(1, 8):
        words |= parts[:, :, field] << HIGH_BITS[field]
    return words.flatten(1).to(torch.int16)


def fifth_words(codes: Tensor) -> Tensor:
    """uint8 [rows, size], the fifth bit of a code an entry, to int16 words [rows, blocks * 8]."""
    parts = _filled(codes, 1, BLOCK).to(torch.int32).view(codes.shape[0], -1, 4, 4, 4, 2)
    by = torch.arange(16, dtype=torch.int32, device=codes.device).view(1, 1, 4, 1, 4, 1)
    return (parts << by).sum((2, 4), dtype=torch.int32).flatten(1).to(torch.int16)


def by_blocks(scales: Tensor, minimums: Tensor | None = None) -> Tensor:
    """Scales [rows, groups of 32] filled up to whole blocks; with minimums, four of these after four of those."""
    whole = _filled(scales, 1, 4)
    if minimums is None:
        return whole
    both = (whole.unflatten(1, (-1, 4)), _filled(minimums, 1, 4).unflatten(1, (-1, 4)))
    return torch.stack(both, 2).flatten(1).contiguous()


def _separated(words: Tensor, span: int) -> Tensor:
    """What `interleaved` made, int32 [rows, blocks * 128]."""
    runs = words.int().view(words.shape[0], -1, 1, span // 4)
    by = torch.tensor((0, 4, 8, 12), dtype=torch.int32, device=words.device).view(1, 1, 4, 1)
    return ((runs >> by) & 15).flatten(1)


def _high_bits(words: Tensor) -> Tensor:
    """What `high_words` made, int32 [rows, blocks * 128]."""
    by = torch.tensor(HIGH_BITS, dtype=torch.int32, device=words.device).view(1, 1, 8, 1)
    return ((words.int().view(words.shape[0], -1, 1, 16) >> by) & 3).flatten(1)


def _fifth_bits(words: Tensor) -> Tensor:
    """What `fifth_words` made, int32 [rows, blocks * 128]."""
    by = torch.arange(16, dtype=torch.int32, device=words.device).view(1, 1, 4, 1, 4, 1)
    return ((words.int().view(words.shape[0], -1, 1, 4, 1, 2) >> by) & 1).flatten(1)


def _filled(plane: Tensor, axis: int, multiple: int) -> Tensor:
    short = -plane.shape[axis] % multiple
    return F.pad(plane, (0, short)) if short else plane
