"""Random GGUF blocks, and the planes that kernels read of them."""

from __future__ import annotations

import torch
from torch import Tensor

from octavo.engine.load.gguf_decode import decode_blocks
from octavo.engine.load.gguf_types import GGML_TYPES
from octavo.engine.quant.gpu_blocks import planes_of
from octavo.kernels.gguf_weight import BlockWeight

TYPES = {kind.name: kind for kind in GGML_TYPES.values()}
_ONE = dict.fromkeys(("Q4_0", "Q5_0", "Q8_0"), (0,))  # where a block's float16 stand
_TWO = dict.fromkeys(("Q4_1", "Q4_K", "Q5_1", "Q5_K"), (0, 2))
FACTORS = {**_ONE, **_TWO, "Q6_K": (208,)}
KINDS = tuple(sorted(FACTORS))
_OF_TABLES = {"IQ4_NL": (0,), "IQ4_XS": (0,), "MXFP4": ()}  # whose planes are those of 4-bit codes


def random_blocks(kind: str, outs: int, size: int, device: torch.device | str = "cpu") -> Tensor:
    """uint8 [outs, bytes of a row], every bit of codes and scales by chance, numbers of about 0.1 to 1."""
    form = TYPES[kind]
    blocks = torch.randint(0, 256, (outs, size // form.block_size, form.block_bytes), dtype=torch.uint8, device=device)
    least = {
        "Q4_K": 1e-3,
        "Q5_K": 5e-4,
        "Q6_K": 2e-4,
        "Q8_0": 5e-3,
        "Q5_0": 0.025,
        "Q5_1": 0.025,
        "IQ4_NL": 4e-3,
        "IQ4_XS": 2e-4,
    }.get(kind, 0.05)
    for index, begin in enumerate((FACTORS | _OF_TABLES)[kind]):
        factor = (torch.rand(*blocks.shape[:2], 1, device=device) + 0.5) * least
        if index:  # minimums, so that numbers lie about zero
            factor *= {"Q4_K": 7.0, "Q5_K": 15.0, "Q5_1": -16.0}.get(kind, -8.0)
        blocks[:, :, begin : begin + 2] = factor.half().view(torch.uint8)
    if kind == "MXFP4":  # exponents: numbers of up to three
        blocks[:, :, 0] = 123 + blocks[:, :, 0] % 4
    return blocks.flatten(1)


def decoded(blocks: Tensor, kind: str) -> Tensor:
    """float32 [outs, size] by the decoder of files."""
    return decode_blocks(blocks.view(-1, TYPES[kind].block_bytes), kind).view(blocks.shape[0], -1)


def random_weight(kind: str, outs: int, size: int, device: torch.device | str = "cpu") -> tuple[BlockWeight, Tensor]:
    """Planes, and the weight in float64 by the decoder of files."""
    blocks = random_blocks(kind, outs, size, device)
    return planes_of(blocks, kind, size), decoded(blocks, kind).double()
