"""AutoAWQ: 4-bit codes with whole zero points, in the layouts "gemm" (by columns, oddly ordered) and "gemv"."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from octavo.engine.errors import UnsupportedModelError
from octavo.engine.load.checkpoint import TensorInfo
from octavo.engine.load.packed.bits import code_of, unpack_words
from octavo.engine.load.packed.scheme import Planes, Read, Scheme, StoredWeight
from octavo.engine.quant.grouped import GroupedFormat

_PLACES = (0, 4, 1, 5, 2, 6, 3, 7)  # which nibble of a word, lowest first, holds each of its eight columns


class AWQ(Scheme):
    """weight = (code - zero) * scale; nothing is added to the zero point."""

    key = "qweight"
    roles = ("qweight", "qzeros", "scales")

    def __init__(self, settings: Mapping[str, Any], read: Read, path: Path) -> None:
        super().__init__(settings, read, path)
        self.version = str(settings.get("version", "gemm")).lower()
        bits = settings.get("bits", settings.get("w_bit", 4))
        if self.version not in ("gemm", "gemv") or bits != 4:
            raise UnsupportedModelError(
                f"{path.name} holds AWQ weights of {bits} bits in the layout {self.version!r}, which is not read.",
                remedy="Use a version of the model in the layout gemm, as compressed-tensors, or as a GGUF file.",
            )
        self.group = int(settings.get("group_size", settings.get("q_group_size", 128)))

    def weight(self, module: str, tensors: Mapping[str, TensorInfo]) -> StoredWeight:
        first, second = self.matrix(tensors, "qweight", "I32")
        gemm = self.version == "gemm"
        in_dim, out_dim = (first, second * 8) if gemm else (second * 8, first)
        group = self.group if self.group > 0 else in_dim
        groups = -(-in_dim // group)
        if gemm:
            self.expect(tensors, "qzeros", (groups, second))
            self.expect(tensors, "scales", (groups, out_dim))
        else:
            _, width = self.matrix(tensors, "qzeros", "I32")
            self.expect(tensors, "scales", (out_dim, width * 8))
        kind = self.scale_type(tensors["scales"])
        form = GroupedFormat("AWQ", code_of(4), group, kind, zeros=True, quantizes=False)
        convert = _from_gemm if gemm else lambda found: _from_gemv(found, groups)
        return StoredWeight(f"{module}.weight", (out_dim, in_dim), "AWQ 4-bit", form, tensors, convert)


def _from_gemm(found: Mapping[str, Tensor]) -> Planes:
    def columns(words: Tensor) -> Tensor:
        return unpack_words(words, 4).unflatten(-1, (-1, 8))[..., _PLACES].flatten(-2)

    codes = columns(found["qweight"]).t().contiguous()
    return {
        "codes": code_of(4).pack(codes),
        "zero": columns(found["qzeros"]).t(),
        "scale": found["scales"].t(),
    }


def _from_gemv(found: Mapping[str, Tensor], groups: int) -> Planes:
    return {
        "codes": code_of(4).pack(unpack_words(found["qweight"], 4)),
        "zero": unpack_words(found["qzeros"], 4)[:, :groups],
        "scale": found["scales"][:, :groups],
    }
