"""Blocks of GGUF files on a GPU through kernels that read them: their planes, made once when a model is loaded.

Up to 16 rows (1 without tensor cores) a product is one launch with what stands around it, up to 64 it decodes on the
way to the tensor cores, and beyond that the weight is decoded to 16 bit by one kernel and multiplied by the library.
Types that are not in `KINDS` stay in their blocks and are decoded for every product.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from octavo.engine.quant.base import Format, Packed
from octavo.engine.quant.blocks import BlockFormat
from octavo.engine.quant.gpu_codes import enter_blocks
from octavo.kernels.gguf_decode import decode_planes
from octavo.kernels.gguf_weight import KINDS, BlockWeight, by_blocks, fifth_words, high_words, interleaved

_RUN = 1 << 24  # weights put into order at a time: some hundred megabytes


def planes_of(blocks: Tensor, kind: str, size: int) -> BlockWeight:
    """The planes of a weight's blocks, uint8 [outs, bytes of a row]."""
    step = max(1, _RUN // size)
    made: dict[str, Tensor] = {}
    for begin in range(0, blocks.shape[0], step):
        some = _SPLIT[kind](blocks[begin : begin + step], size)
        for name, plane in some.items():
            if name not in made:
                made[name] = torch.empty((blocks.shape[0], plane.shape[1]), dtype=plane.dtype, device=plane.device)
            made[name][begin : begin + step] = plane
    return BlockWeight(kind, size=size, group=KINDS[kind].group, **made)  # type: ignore[arg-type]


def view_of(form: Format, packed: Packed) -> BlockWeight:
    """The weight as kernels read it; the planes take the place of the blocks."""
    assert isinstance(form, BlockFormat)
    weight = planes_of(packed.planes["blocks"], form.kind, packed.in_dim)
    packed.planes = weight.planes
    return weight


def decoded(x: Tensor, packed: Packed) -> Tensor:
    """For any number of rows: the library's product with a weight that was decoded for it."""
    assert isinstance(packed.fused, BlockWeight)
    return F.linear(x, decode_planes(packed.fused, x.dtype), packed.bias)


def _nibbles(packed: Tensor) -> Tensor:
    """uint8 [..., n] to [..., 2 n]: all low nibbles, then all high ones."""
    return torch.cat((packed & 15, packed >> 4), -1)


def _cut(blocks: Tensor, count: int) -> Tensor:
    return blocks.reshape(blocks.shape[0], count, -1)


def _floats(blocks: Tensor, begin: int) -> Tensor:
    """The float16 at byte `begin` of every block [rows, blocks, bytes]: [rows, blocks]."""
    return blocks[:, :, begin : begin + 2].contiguous().view(torch.float16).squeeze(-1)


def _split_q4_0(blocks: Tensor, size: int) -> dict[str, Tensor]:
    cut = _cut(blocks, size // 32)
    return {"codes": interleaved(_nibbles(cut[:, :, 2:]).flatten(1), 128), "scale": by_blocks(_floats(cut, 0))}


def _split_q4_1(blocks: Tensor, size: int) -> dict[str, Tensor]:
    cut = _cut(blocks, size // 32)
    scales = by_blocks(_floats(cut, 0), _floats(cut, 2))
    return {"codes": interleaved(_nibbles(cut[:, :, 4:]).flatten(1), 128), "scale": scales}


def _split_q5_0(blocks: Tensor, size: int) -> dict[str, Tensor]:
    cut = _cut(blocks, size // 32)
    codes, high = interleaved(_nibbles(cut[:, :, 6:]).flatten(1), 128), _fifth_bits(cut[:, :, 2:6])
    return {"codes": codes, "high": high, "scale": by_blocks(_floats(cut, 0))}


def _split_q5_1(blocks: Tensor, size: int) -> dict[str, Tensor]:
    cut = _cut(blocks, size // 32)
    codes, high = interleaved(_nibbles(cut[:, :, 8:]).flatten(1), 128), _fifth_bits(cut[:, :, 4:8])
    return {"codes": codes, "high": high, "scale": by_blocks(_floats(cut, 0), _floats(cut, 2))}


def _fifth_bits(packed: Tensor) -> Tensor:
    """Of four bytes a group [rows, groups, 4], bit by bit, the words that kernels read."""
    by = torch.arange(8, dtype=torch.uint8, device=packed.device)
    return fifth_words(((packed[..., None] >> by) & 1).flatten(1))


def _split_q4_k(blocks: Tensor, size: int) -> dict[str, Tensor]:
    cut = _cut(blocks, size // 256)
    codes = _nibbles(cut[:, :, 16:].unflatten(2, (4, 32))).flatten(1)
    return {"codes": interleaved(codes, 128), **_six_bit_scales(cut)}


def _split_q5_k(blocks: Tensor, size: int) -> dict[str, Tensor]:
    cut = _cut(blocks, size // 256)
    codes = _nibbles(cut[:, :, 48:].unflatten(2, (4, 32))).flatten(1)
    by = torch.arange(8, dtype=torch.uint8, device=cut.device).view(8, 1)
    high = fifth_words(((cut[:, :, None, 16:48] >> by) & 1).flatten(1))
    return {"codes": interleaved(codes, 128), "high": high, **_six_bit_scales(cut)}


def _six_bit_scales(cut: Tensor) -> dict[str, Tensor]:
    """The planes of scales and their units from the first 16 bytes of every block."""
    first, second, rest = cut[:, :, 4:8], cut[:, :, 8:12], cut[:, :, 12:16]
    scales = torch.cat((first & 63, (rest & 15) | (first >> 6) << 4), -1).flatten(1)
    minimums = torch.cat((second & 63, (rest >> 4) | (second >> 6) << 4), -1).flatten(1)
    unit = torch.stack((_floats(cut, 0), _floats(cut, 2)), -1).flatten(1)
    return {"scale": by_blocks(scales, minimums), "unit": unit}


def _split_q6_k(blocks: Tensor, size: int) -> dict[str, Tensor]:
    cut = _cut(blocks, size // 256)
    low = _nibbles(cut[:, :, :128].unflatten(2, (2, 64))).flatten(1)
    packed = cut[:, :, 128:192].unflatten(2, (2, 32))
    high = torch.stack([(packed >> by) & 3 for by in (0, 2, 4, 6)], 3).flatten(1)
    scales = cut[:, :, 192:208].contiguous().view(torch.int8).flatten(1)
    return {
        "codes": interleaved(low, KINDS["Q6_K"].span),
        "high": high_words(high),
        "scale": scales,
        "unit": _floats(cut, 208),
    }


def _split_q8_0(blocks: Tensor, size: int) -> dict[str, Tensor]:
    cut = _cut(blocks, size // 32)
    return {"codes": cut[:, :, 2:].contiguous().view(torch.int8).flatten(1), "scale": by_blocks(_floats(cut, 0))}


_SPLIT: dict[str, Callable[[Tensor, int], dict[str, Tensor]]] = {
    "Q4_0": _split_q4_0,
    "Q4_1": _split_q4_1,
    "Q4_K": _split_q4_k,
    "Q5_0": _split_q5_0,
    "Q5_1": _split_q5_1,
    "Q5_K": _split_q5_k,
    "Q6_K": _split_q6_k,
    "Q8_0": _split_q8_0,
}


enter_blocks(_SPLIT, view_of, decoded)
