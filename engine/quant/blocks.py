"""Weights as the blocks of a GGUF file: scales and codes of 32 or 256 neighbours of a row together, untouched.

The plane `blocks` is uint8 [out, blocks of a row * bytes of a block]. Products decode a run of rows at a time. On a GPU
with kernels for a type, planes of another order take the place of the blocks (gpu_blocks.py, gpu_tables.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from octavo.engine.load.gguf_decode import CHUNK_ELEMENTS, decode_blocks
from octavo.engine.load.gguf_types import GGML_TYPES
from octavo.engine.quant.base import Format, LinearSpec, Packed
from octavo.engine.quant.grouped import put
from octavo.kernels.gguf_weight import BlockWeight
from octavo.kernels.quant_weight import CodedWeight

_CUDA_CHUNK = 1 << 23  # entries decoded at a time: their float32 copies take some hundred megabytes
_TYPES = {kind.name: kind for kind in GGML_TYPES.values()}


@dataclass(frozen=True)
class BlockFormat(Format):
    """`kind` is the type's name in GGUF, such as Q4_K."""

    kind: str
    shares_embedding: bool = True

    @property
    def name(self) -> str:  # type: ignore[override]
        return self.kind

    def stored(self, spec: LinearSpec, dtype: torch.dtype) -> dict[str, tuple[tuple[int, ...], torch.dtype]]:
        kind = _TYPES[self.kind]
        return {"blocks": ((*spec.shape[:-1], spec.in_dim // kind.block_size * kind.block_bytes), torch.uint8)}

    def pack(
        self, packed: Packed, spec: LinearSpec, planes: Mapping[str, Tensor], *, row: int = 0, expert: int | None = None
    ) -> None:
        put(packed.planes["blocks"], planes["blocks"], row, expert)

    def decodes(self, device: torch.device) -> bool:
        return True

    def dequantize(self, packed: Packed, rows: Tensor | None = None) -> Tensor:
        if packed.fused is not None:
            return _decode_planes(packed.fused, rows, packed.dtype)
        blocks = packed.planes["blocks"]
        if rows is not None:
            blocks = blocks.index_select(0, rows)
        out = torch.empty((*blocks.shape[:-1], packed.in_dim), dtype=packed.dtype, device=blocks.device)
        flat, source = out.view(-1, packed.in_dim), blocks.view(-1, blocks.shape[-1])
        for begin, end in _runs(flat.shape[0], packed):
            flat[begin:end] = self._decode(source[begin:end])
        return out

    def linear(self, x: Tensor, packed: Packed) -> Tensor:
        if packed.fused is not None:
            return F.linear(x, _decode_planes(packed.fused, None, x.dtype), packed.bias)
        y = self._product(x, packed.planes["blocks"], packed)
        return y if packed.bias is None else y.add_(packed.bias)

    def linear_grouped(self, x: Tensor, packed: Packed, ends: Tensor) -> Tensor:
        blocks = packed.planes["blocks"]
        out = x.new_empty((x.shape[0], blocks.shape[1]))
        begin = 0
        for expert, end in enumerate(ends.tolist()):  # on a device, this waits for it
            if end > begin:
                out[begin:end] = self._product(x[begin:end], blocks[expert], packed)
            begin = end
        return out

    def randomize(self, packed: Packed, spec: LinearSpec, generator: torch.Generator, std: float) -> None:
        if self.kind not in _FACTORS:
            raise NotImplementedError(f"{self.kind} blocks come from files alone")
        kind = _TYPES[self.kind]
        blocks = packed.planes["blocks"].view(-1)
        whole = blocks.numel() // 8 * 8
        blocks[:whole].view(torch.int64).random_(-(1 << 63), None, generator=generator)  # eight bytes a number
        blocks[whole:].random_(0, 256, generator=generator)
        cells = blocks.view(-1, kind.block_bytes)
        for begin, factor in _FACTORS[self.kind]:
            size = torch.tensor([factor * std], dtype=torch.float16, device=blocks.device)
            cells[:, begin : begin + 2] = size.view(torch.uint8)

    def _product(self, x: Tensor, blocks: Tensor, packed: Packed) -> Tensor:
        y = x.new_empty((x.shape[0], blocks.shape[0]))
        for begin, end in _runs(blocks.shape[0], packed):
            y[:, begin:end] = F.linear(x, self._decode(blocks[begin:end]).to(x.dtype))
        return y

    def _decode(self, rows: Tensor) -> Tensor:
        """uint8 [rows, bytes] to float32 [rows, in]."""
        kind = _TYPES[self.kind]
        return decode_blocks(rows.reshape(-1, kind.block_bytes), self.kind).view(rows.shape[0], -1)


# Where the float16 of a block stand that has random bits elsewhere, and what they are for a standard deviation of one.
_FACTORS = {
    "Q4_0": ((0, 0.215),),
    "Q4_1": ((0, 0.217), (2, -1.63)),
    "Q4_K": ((0, 0.00389), (2, 0.0291)),
    "Q5_0": ((0, 0.108),),
    "Q5_1": ((0, 0.108), (2, -1.68)),
    "Q5_K": ((0, 0.0019), (2, 0.0294)),
    "Q6_K": ((208, 0.000731),),
    "Q8_0": ((0, 0.0135),),
}


def block_format(kind: str, shape: tuple[int, ...]) -> BlockFormat | None:
    """How a GGUF weight [..., out, in] is kept as it is; None if it is not in blocks, or rows share one."""
    size = _TYPES[kind].block_size
    return BlockFormat(kind) if size > 1 and len(shape) >= 2 and shape[-1] % size == 0 else None


def _decode_planes(weight: CodedWeight, rows: Tensor | None, dtype: torch.dtype) -> Tensor:
    """[out, in], or int64 rows of it. Such weights are where kernels can run."""
    from octavo.kernels.gguf_decode import decode_planes
    from octavo.kernels.quant_decode import decode

    if not isinstance(weight, BlockWeight):
        picked = weight if rows is None else replace(weight, codes=weight.codes[rows], scale=weight.scale[rows])
        return decode(picked, dtype)
    return decode_planes(weight, dtype, None if rows is None else rows.contiguous())


def _runs(rows: int, packed: Packed) -> Iterator[tuple[int, int]]:
    limit = _CUDA_CHUNK if packed.planes["blocks"].is_cuda else CHUNK_ELEMENTS * 8
    step = max(1, limit // packed.in_dim)
    for begin in range(0, rows, step):
        yield begin, min(begin + step, rows)
