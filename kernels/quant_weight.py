"""Weights in fewer bits as kernels read them: which planes there are, and the order of codes in words.

Four-bit codes of 128 neighbours are interleaved: their 16-bit word e (from 0 to 31) holds the codes of columns e,
32 + e, 64 + e and 96 + e, the first in its lowest bits. So are int8 codes where tensor cores multiply by them: their
word e (from 0 to 63) holds the code of column e in its lower half, that of column 64 + e in its upper one. So 16 bytes
that a thread loads at once meet two or four runs of 8 activations, each 16 bytes too, and the codes of two words become
two operands of a matrix product by one shift and one mask. A row is filled up to a multiple of 128 columns; what is
beyond its size is not used. E4M3 stays in the order of the row, and so do int8 codes that are multiplied by int8
activations or without tensor cores.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from octavo.kernels.code_tables import TABLES

BLOCK = 128  # columns whose codes are interleaved
_RUN = 1 << 24  # codes put into order at a time: some ten megabytes


@dataclass(frozen=True, slots=True)
class CodedWeight:
    """A weight [outs, size] = (code - offset or zero) * scale + shift, or table[code] * scale * outer.

    codes: "int8" int8 and "e4m3" uint8 [outs, size]; "int4" and the names of tables (code_tables.py) int16
    [outs, blocks * 32], "int8" in words int16 [outs, blocks * 64]. scale [outs, groups], a group being `group` columns:
    a multiple of 32, of 128 in E4M3, or the whole row, which it always is in int8. Of tables, scales may be uint8,
    which is E8M0, or E4M3 if a group is 16 columns, as one row and decoding have it, with outer float32 [outs, 1].
    zero uint8 and shift [outs, groups] where there are any, not with tables. Blocks of GGUF are a kind of their own:
    gguf_weight.py.
    """

    code: str
    codes: Tensor
    scale: Tensor
    size: int
    group: int
    offset: int = 0
    zero: Tensor | None = None
    shift: Tensor | None = None
    outer: Tensor | None = None

    @property
    def shape(self) -> tuple[int, int]:
        """(outs, size), as of a plain weight."""
        return self.codes.shape[0], self.size

    @property
    def in_words(self) -> bool:
        """Whether codes are interleaved."""
        return (self.four_bit or self.code == "int8") and self.codes.dtype == torch.int16

    @property
    def four_bit(self) -> bool:
        """Whether a word holds four codes."""
        return self.code == "int4" or self.code in TABLES

    @property
    def scale_columns(self) -> int:
        """How many columns share a scale; 0 if the whole row does."""
        return self.group if self.group < self.size else 0

    @property
    def nbytes(self) -> int:
        """What a product has to read."""
        planes = (self.codes, self.scale, self.zero, self.shift, self.outer)
        return sum(plane.numel() * plane.element_size() for plane in planes if plane is not None)

    def plain(self, dtype: torch.dtype = torch.float32) -> Tensor:
        """[outs, size] in plain numbers."""
        if self.code in TABLES:
            table = torch.tensor(TABLES[self.code], device=self.codes.device)
            numbers = table[separate_codes(self.codes, self.size).int()].to(dtype)
        elif self.code == "int4":
            numbers = separate_codes(self.codes, self.size).to(dtype)
        elif self.code == "e4m3":
            numbers = self.codes.view(torch.float8_e4m3fn).to(dtype)
        else:
            codes = separate_bytes(self.codes, self.size) if self.in_words else self.codes
            numbers = codes.to(dtype)

        def spread(plane: Tensor) -> Tensor:
            return plane.to(dtype).repeat_interleave(self.group, 1)[:, : self.size]

        numbers = numbers - (self.offset if self.zero is None else spread(self.zero))
        scale = self.scale
        if scale.dtype == torch.uint8:
            scale = scale.view(torch.float8_e4m3fn if self.group == 16 else torch.float8_e8m0fnu)
        numbers = numbers * spread(scale if self.outer is None else scale.to(dtype) * self.outer)
        return numbers if self.shift is None else numbers + spread(self.shift)


def groups_suit(size: int, group: int) -> bool:
    """Whether the kernels of 4-bit codes read rows of so many columns, of which `group` share a scale."""
    return size % 8 == 0 and (group in (32, 64) or group % BLOCK == 0 or group >= size)


def words_of(size: int) -> int:
    """16-bit words of a row of 4-bit codes."""
    return -(-size // BLOCK) * (BLOCK // 4)


def interleave_codes(codes: Tensor, size: int) -> Tensor:
    """uint8 [..., size / 2], two codes a byte with the first in the lower bits, to int16 [..., words]."""
    flat = codes.reshape(-1, codes.shape[-1])
    blocks = -(-size // BLOCK)
    out = torch.empty((flat.shape[0], blocks, BLOCK // 4, 2), dtype=torch.uint8, device=codes.device)
    step = max(1, _RUN // max(1, size))
    for begin in range(0, flat.shape[0], step):
        some = flat[begin : begin + step]
        single = torch.stack((some & 15, some >> 4), -1).flatten(1)[:, :size]
        quarters = torch.nn.functional.pad(single, (0, blocks * BLOCK - size)).view(-1, blocks, 4, BLOCK // 4)
        out[begin : begin + step, :, :, 0] = quarters[:, :, 0] | quarters[:, :, 1] << 4
        out[begin : begin + step, :, :, 1] = quarters[:, :, 2] | quarters[:, :, 3] << 4
    return out.flatten(1).view(torch.int16).view(*codes.shape[:-1], words_of(size))


def interleave_bytes(codes: Tensor) -> Tensor:
    """int8 [rows, size] to int16 [rows, blocks * 64]."""
    rows, size = codes.shape
    out = torch.empty((rows, -(-size // BLOCK), BLOCK // 2, 2), dtype=torch.int8, device=codes.device)
    step = max(1, _RUN // max(1, size))
    for begin in range(0, rows, step):
        some = torch.nn.functional.pad(codes[begin : begin + step], (0, -size % BLOCK))
        out[begin : begin + step] = some.view(some.shape[0], -1, 2, BLOCK // 2).transpose(2, 3)
    return out.view(torch.int16).flatten(1)


def separate_bytes(words: Tensor, size: int) -> Tensor:
    """The way back."""
    halves = words.contiguous().view(torch.int8).view(words.shape[0], -1, BLOCK // 2, 2)
    return halves.transpose(2, 3).flatten(1)[:, :size]


def separate_codes(words: Tensor, size: int) -> Tensor:
    """int16 [rows, words] to one code an entry, uint8 [rows, size]."""
    pairs = words.contiguous().view(torch.uint8).view(words.shape[0], -1, BLOCK // 4, 2)
    low, high = pairs.unbind(-1)
    return torch.stack((low & 15, low >> 4, high & 15, high >> 4), 2).flatten(1)[:, :size]


def coded_reference(weight: CodedWeight, dtype: torch.dtype = torch.float32) -> Tensor:
    """[outs, size] in plain numbers."""
    return weight.plain(dtype)
