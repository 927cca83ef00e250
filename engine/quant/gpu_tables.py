"""GGUF blocks whose 4-bit codes name numbers of a table, on a GPU: as the planes of kernels/quant_weight.py.

Nothing is rounded. IQ4_XS gets a float32 scale for 32 columns, the product of the two it has (5 bits a weight instead
of 4.25); IQ4_NL and MXFP4 take the room that they take in the file.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from octavo.engine.load.gguf_decode import iq4_xs_scales
from octavo.engine.quant.base import Format, Packed
from octavo.engine.quant.blocks import BlockFormat
from octavo.engine.quant.gpu_codes import decoded, enter_blocks, ready
from octavo.kernels.gguf_weight import interleaved
from octavo.kernels.quant_weight import BLOCK, CodedWeight

_GROUP = 32
_RUN = 1 << 24  # weights put into order at a time: some hundred megabytes


def view_of(form: Format, packed: Packed) -> CodedWeight:
    """The weight as kernels read it; codes and scales take the place of the blocks."""
    assert isinstance(form, BlockFormat)
    table, block_size, split = _SPLIT[form.kind]
    blocks, size = packed.planes.pop("blocks"), packed.in_dim
    cut = blocks.view(blocks.shape[0], size // block_size, -1)
    step = max(1, _RUN // size)
    parts = [split(cut[begin : begin + step]) for begin in range(0, cut.shape[0], step)]
    words = torch.cat([interleaved(codes.flatten(1), BLOCK) for codes, _ in parts])
    packed.planes = {"words": words, "scale": torch.cat([scale.flatten(1) for _, scale in parts])}
    ready(table, words.device)
    return CodedWeight(table, words, packed.planes["scale"], size, _GROUP)


def _nibbles(packed: Tensor) -> Tensor:
    """uint8 [..., 16] to the codes of 32 columns: all low nibbles, then all high ones."""
    return torch.cat((packed & 15, packed >> 4), -1)


def _split_iq4_nl(cut: Tensor) -> tuple[Tensor, Tensor]:
    """Codes and scales of blocks [rows, blocks, bytes]."""
    return _nibbles(cut[:, :, 2:]), cut[:, :, :2].contiguous().view(torch.float16)


def _split_iq4_xs(cut: Tensor) -> tuple[Tensor, Tensor]:
    return _nibbles(cut[:, :, 8:].unflatten(2, (8, 16))), iq4_xs_scales(cut.flatten(0, 1)).view(*cut.shape[:2], 8)


def _split_mxfp4(cut: Tensor) -> tuple[Tensor, Tensor]:
    return _nibbles(cut[:, :, 1:]), cut[:, :, :1]


# by type: the table, the columns of a block, and what takes blocks apart
_SPLIT: dict[str, tuple[str, int, Callable[[Tensor], tuple[Tensor, Tensor]]]] = {
    "IQ4_NL": ("iq4", 32, _split_iq4_nl),
    "IQ4_XS": ("iq4", 256, _split_iq4_xs),
    "MXFP4": ("e2m1", 32, _split_mxfp4),
}


enter_blocks(_SPLIT, view_of, decoded)
