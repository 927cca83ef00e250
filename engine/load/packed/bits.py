"""Whole numbers out of 32-bit words, and into the codes of engine/quant."""

from __future__ import annotations

import torch
from torch import Tensor

from octavo.engine.quant.codes import UnsignedCode


def unpack_words(words: Tensor, bits: int) -> Tensor:
    """int32 words [..., n] to uint8 numbers [..., n * 32 / bits]: one stream of bits, lowest first, in which numbers
    of 3, 5, 6 and 7 bits run over the ends of words."""
    stored = words.contiguous().view(torch.uint8)  # little-endian: the stream byte by byte
    if bits == 8:
        return stored
    if 8 % bits == 0:
        lanes = [(stored >> shift) & ((1 << bits) - 1) for shift in range(0, 8, bits)]
        return torch.stack(lanes, dim=-1).flatten(-2)
    count = stored.shape[-1] * 8 // bits
    at = torch.arange(count) * bits
    padded = torch.nn.functional.pad(stored, (0, 1))
    low, high = padded[..., at // 8].int(), padded[..., at // 8 + 1].int()
    return (((high << 8 | low) >> (at % 8).int()) & ((1 << bits) - 1)).to(torch.uint8)


def code_of(bits: int, *, symmetric: bool = False) -> UnsignedCode:
    """The code that holds unsigned numbers of so many bits; 3 take the room of 4, and 5 to 7 that of 8."""
    room = 2 if bits <= 2 else 4 if bits <= 4 else 8
    return UnsignedCode(room, offset=1 << (bits - 1) if symmetric else 0)


def halves(packed: Tensor) -> Tensor:
    """uint8 [..., n] whose high nibble comes first, with the nibbles exchanged."""
    return (packed << 4) | (packed >> 4)


def row_order(columns: Tensor) -> tuple[Tensor, Tensor]:
    """From each column's group [in] to an order of columns [in] in which groups follow each other, and the group of
    every column then."""
    order = torch.argsort(columns, stable=True)
    return order.to(torch.int32), columns[order]
