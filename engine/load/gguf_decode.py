"""GGUF blocks to float32, vectorised over blocks.

Formulas by the GGML block formats (GGUF specification). Every step is its own float32 operation in the order of the
reference (scale of the sub-block first, then times the integer, then the minimum), so results are bit-equal to it. In
the 32-element types the low nibbles are elements 0 to 15 and the high nibbles 16 to 31.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import torch
from torch import Tensor

from octavo.kernels.code_tables import TABLES

Decoder = Callable[[Tensor], Tensor]

# Just under the 32,768 elements from which torch splits an operation over threads: a chunk stays on the thread that
# decodes it and in that core's cache. (Measured on two busy cores: 0.7 s for 135 M weights, 8 s with larger chunks.)
CHUNK_ELEMENTS = 127 * 256


def decode_blocks(blocks: Tensor, type_name: str) -> Tensor:
    """uint8 [blocks, bytes a block] to float32 [blocks, elements a block]; KeyError for a type not in DECODERS."""
    return DECODERS[type_name](blocks)


@lru_cache(maxsize=64)
def _constant(values: tuple[float, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """A table where it is needed: a step that is captured as a graph must not copy it there."""
    return torch.tensor(values, dtype=dtype, device=device)


def _half(blocks: Tensor, start: int) -> Tensor:
    """The float16 at byte `start` of each block, as float32 [blocks, 1]."""
    return blocks[:, start : start + 2].contiguous().view(torch.float16).float()


def _two_halves(blocks: Tensor, start: int) -> tuple[Tensor, Tensor]:
    """The two float16 from byte `start` of each block on, each as float32 [blocks, 1]."""
    pair = blocks[:, start : start + 4].contiguous().view(torch.float16).float()
    return pair[:, :1], pair[:, 1:]


def _nibbles(packed: Tensor) -> Tensor:
    """uint8 [..., n] to uint8 [..., 2, n]: all low nibbles, then all high ones."""
    packed = packed.contiguous()  # two operations over scattered rows cost more than one copy
    return torch.stack((packed & 0x0F, packed >> 4), dim=-2)


def _bits(packed: Tensor) -> Tensor:
    """uint8 [blocks, n] to uint8 [blocks, 8 n] of 0 and 1, lowest bit first."""
    return ((packed.unsqueeze(-1) >> torch.arange(8, dtype=torch.uint8, device=packed.device)) & 1).flatten(1)


def _shifted(packed: Tensor, shifts: tuple[int, ...], mask: int) -> Tensor:
    """uint8 [blocks, groups, n] to uint8 [blocks, groups, shifts, n]: each byte shifted right, then masked."""
    by = _constant(shifts, torch.uint8, packed.device).unsqueeze(-1)
    return (packed.unsqueeze(-2) >> by) & mask


def _f32(blocks: Tensor) -> Tensor:
    return blocks.view(torch.float32)


def _f16(blocks: Tensor) -> Tensor:
    return blocks.view(torch.float16).float()


def _bf16(blocks: Tensor) -> Tensor:
    return blocks.view(torch.bfloat16).float()


def _q4_0(blocks: Tensor) -> Tensor:
    quants = _nibbles(blocks[:, 2:]).flatten(1).float()
    return quants.sub_(8).mul_(_half(blocks, 0))


def _q4_1(blocks: Tensor) -> Tensor:
    scale, minimum = _two_halves(blocks, 0)
    return _nibbles(blocks[:, 4:]).flatten(1).float().mul_(scale).add_(minimum)


def _q5_0(blocks: Tensor) -> Tensor:
    quants = _nibbles(blocks[:, 6:]).flatten(1) | (_bits(blocks[:, 2:6]) << 4)
    return quants.float().sub_(16).mul_(_half(blocks, 0))


def _q5_1(blocks: Tensor) -> Tensor:
    scale, minimum = _two_halves(blocks, 0)
    quants = _nibbles(blocks[:, 8:]).flatten(1) | (_bits(blocks[:, 4:8]) << 4)
    return quants.float().mul_(scale).add_(minimum)


def _q8_0(blocks: Tensor) -> Tensor:
    return blocks[:, 2:].contiguous().view(torch.int8).float().mul_(_half(blocks, 0))


def _scaled(quants: Tensor, scales: Tensor, minimums: Tensor | None = None) -> Tensor:
    """quants [blocks, 256] (any integer) times scales [blocks, sub-blocks], minus minimums if given."""
    sub_blocks = scales.shape[1]
    values = quants.reshape(-1, sub_blocks, 256 // sub_blocks).float().mul_(scales.unsqueeze(-1))
    if minimums is not None:
        values.sub_(minimums.unsqueeze(-1))
    return values.flatten(1)


def _q2_k(blocks: Tensor) -> Tensor:
    packed = blocks[:, :16]  # a nibble of scale, a nibble of minimum for 16 elements
    scale, minimum = _two_halves(blocks, 80)
    scales = (packed & 0x0F).float().mul_(scale)
    minimums = (packed >> 4).float().mul_(minimum)
    quants = _shifted(blocks[:, 16:80].reshape(-1, 2, 32), (0, 2, 4, 6), 3)
    return _scaled(quants, scales, minimums)


def _q3_k(blocks: Tensor) -> Tensor:
    high = _shifted(blocks[:, :32].unsqueeze(1), tuple(range(8)), 1)  # bit j of byte i: element 32 j + i
    low = _shifted(blocks[:, 32:96].reshape(-1, 2, 32), (0, 2, 4, 6), 3)
    quants = (low.flatten(1) | (high.flatten(1) << 2)).to(torch.int8).sub_(4)
    low_scales = torch.cat((blocks[:, 96:104] & 0x0F, blocks[:, 96:104] >> 4), dim=1)
    high_scales = _shifted(blocks[:, 104:108].unsqueeze(1), (0, 2, 4, 6), 3).flatten(1)
    scales = (low_scales | (high_scales << 4)).float().sub_(32).mul_(_half(blocks, 108))
    return _scaled(quants, scales)


def _six_bit_pairs(packed: Tensor) -> tuple[Tensor, Tensor]:
    """12 bytes hold 8 scales and 8 minimums of 6 bits (Q4_K, Q5_K); both float32 [blocks, 8]."""
    a, b, rest = packed[:, 0:4], packed[:, 4:8], packed[:, 8:12]
    scales = torch.cat((a & 0x3F, (rest & 0x0F) | ((a >> 6) << 4)), dim=1)
    minimums = torch.cat((b & 0x3F, (rest >> 4) | ((b >> 6) << 4)), dim=1)
    return scales.float(), minimums.float()


def _q4_k(blocks: Tensor) -> Tensor:
    scales, minimums = _six_bit_pairs(blocks[:, 4:16])
    scale, minimum = _two_halves(blocks, 0)
    quants = _nibbles(blocks[:, 16:144].reshape(-1, 4, 32))
    return _scaled(quants, scales.mul_(scale), minimums.mul_(minimum))


def _q5_k(blocks: Tensor) -> Tensor:
    scales, minimums = _six_bit_pairs(blocks[:, 4:16])
    high = _shifted(blocks[:, 16:48].unsqueeze(1), tuple(range(8)), 1)
    quants = _nibbles(blocks[:, 48:176].reshape(-1, 4, 32)).flatten(1) | (high.flatten(1) << 4)
    scale, minimum = _two_halves(blocks, 0)
    return _scaled(quants, scales.mul_(scale), minimums.mul_(minimum))


def _q6_k(blocks: Tensor) -> Tensor:
    low = _nibbles(blocks[:, :128].reshape(-1, 2, 64)).flatten(1)
    high = _shifted(blocks[:, 128:192].reshape(-1, 2, 32), (0, 2, 4, 6), 3).flatten(1)
    quants = (low | (high << 4)).to(torch.int8).sub_(32)
    scales = blocks[:, 192:208].contiguous().view(torch.int8).float().mul_(_half(blocks, 208))
    return _scaled(quants, scales)


def _on_iq4_grid(quants: Tensor) -> Tensor:
    return _constant(TABLES["iq4"], torch.float32, quants.device)[quants.int()]


def _iq4_nl(blocks: Tensor) -> Tensor:
    return _on_iq4_grid(_nibbles(blocks[:, 2:]).flatten(1)).mul_(_half(blocks, 0))


def iq4_xs_scales(blocks: Tensor) -> Tensor:
    """float32 [blocks, 8] of IQ4_XS blocks, uint8 [blocks, 136]: a scale for 32 columns."""
    low_scales = torch.stack((blocks[:, 4:8] & 0x0F, blocks[:, 4:8] >> 4), dim=-1).flatten(1)
    high_scales = torch.stack(tuple((blocks[:, 2:4] >> by) & 3 for by in (0, 2, 4, 6)), dim=-1).flatten(1)
    return (low_scales | (high_scales << 4)).float().sub_(32).mul_(_half(blocks, 0))


def _iq4_xs(blocks: Tensor) -> Tensor:
    return _scaled(_on_iq4_grid(_nibbles(blocks[:, 8:].reshape(-1, 8, 16))), iq4_xs_scales(blocks))


# Twice the numbers of E2M1 (OCP Microscaling specification), for scales that are halved in turn.
_E2M1_DOUBLED = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)


def _doubled_e2m1(quants: Tensor) -> Tensor:
    return _constant(_E2M1_DOUBLED, torch.float32, quants.device)[quants.int()]


def _mxfp4(blocks: Tensor) -> Tensor:
    exponent = blocks[:, :1].int()
    halved = torch.where(exponent < 2, 0x00200000 << exponent, (exponent - 1) << 23).view(torch.float32)
    return _doubled_e2m1(_nibbles(blocks[:, 1:]).flatten(1)).mul_(halved)


def _nvfp4(blocks: Tensor) -> Tensor:
    stored = blocks[:, :4].contiguous()
    scales = (stored & 0x7F).view(torch.float8_e4m3fn).float() * 0.5
    scales = torch.where(stored == 0x7F, 0.0, scales)  # no NaN in this type
    return (_doubled_e2m1(_nibbles(blocks[:, 4:].reshape(-1, 4, 8)).flatten(2)) * scales.unsqueeze(-1)).flatten(1)


DECODERS: dict[str, Decoder] = {
    "F32": _f32,
    "F16": _f16,
    "BF16": _bf16,
    "Q4_0": _q4_0,
    "Q4_1": _q4_1,
    "Q5_0": _q5_0,
    "Q5_1": _q5_1,
    "Q8_0": _q8_0,
    "Q2_K": _q2_k,
    "Q3_K": _q3_k,
    "Q4_K": _q4_k,
    "Q5_K": _q5_k,
    "Q6_K": _q6_k,
    "IQ4_NL": _iq4_nl,
    "IQ4_XS": _iq4_xs,
    "MXFP4": _mxfp4,
    "NVFP4": _nvfp4,
}
