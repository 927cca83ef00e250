"""GPTQ: codes of 2, 3, 4 or 8 bits packed along the input, zero points along the output, groups in order or not.

Version 1 of the format stores zero points less one. Some files say so and do not: where the settings promise symmetric
weights, the first zero points tell which it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from octavo.engine.errors import UnsupportedModelError
from octavo.engine.load.checkpoint import TensorInfo
from octavo.engine.load.packed.bits import code_of, row_order, unpack_words
from octavo.engine.load.packed.scheme import Planes, Read, Scheme, StoredWeight
from octavo.engine.quant.grouped import GroupedFormat


class GPTQ(Scheme):
    """weight[n, k] = (code - zero of k's group) * scale of k's group."""

    key = "qweight"
    roles = ("qweight", "qzeros", "scales", "g_idx")

    def __init__(self, settings: Mapping[str, Any], read: Read, path: Path) -> None:
        super().__init__(settings, read, path)
        self.bits = settings.get("bits", 4)
        if self.bits not in (2, 3, 4, 8):
            raise UnsupportedModelError(
                f"{path.name} holds GPTQ weights of {self.bits} bits; 2, 3, 4 and 8 are read.",
                remedy="Use a version of the model with one of these, or a GGUF file.",
            )
        self.group = int(settings.get("group_size", -1))
        self.less_one: bool | None = None  # whether stored zero points lack one; unknown before the first
        if settings.get("checkpoint_format") == "gptq_v2":
            self.less_one = False

    def weight(self, module: str, tensors: Mapping[str, TensorInfo]) -> StoredWeight:
        words, out_dim = self.matrix(tensors, "qweight", "I32")
        in_dim = words * 32 // self.bits
        group = self.group if self.group > 0 else in_dim
        groups = -(-in_dim // group)
        zeros = self.expect(tensors, "qzeros", (groups, out_dim * self.bits // 32))
        self.expect(tensors, "scales", (groups, out_dim))
        if self.less_one is None:
            self.less_one = self._lacks_one(zeros)
        kind = self.scale_type(tensors["scales"])
        form = GroupedFormat("GPTQ", code_of(self.bits), group, kind, zeros=True, quantizes=False)
        order = None
        if "g_idx" in tensors:
            self.expect(tensors, "g_idx", (in_dim,))
            columns = self.read(tensors["g_idx"].name).long()
            order = self._order(columns, group, groups, tensors["g_idx"])
            form = replace(form, ordered=order is not None)
        less_one = self.less_one

        def convert(found: Mapping[str, Tensor]) -> Planes:
            return _planes(found, self.bits, less_one, order)

        return StoredWeight(f"{module}.weight", (out_dim, in_dim), f"GPTQ {self.bits}-bit", form, tensors, convert)

    def _lacks_one(self, zeros: TensorInfo) -> bool:
        """Whether zero points are stored less one, by the settings and, if these say symmetric, by what is stored."""
        if self.settings.get("sym", True):
            found = unpack_words(self.read(zeros.name), self.bits)
            if bool((found == 1 << (self.bits - 1)).all()):
                return False
        return True

    def _order(self, columns: Tensor, group: int, groups: int, info: TensorInfo) -> Tensor | None:
        """The order in which columns of a group follow each other; None if they do already."""
        usual = torch.arange(columns.numel()) // group
        if torch.equal(columns, usual):
            return None
        order, sorted_groups = row_order(columns)
        if not torch.equal(sorted_groups, usual):
            self.fail(f"{info.name} does not give {groups} groups of {group} columns each", info)
        return order


def _planes(found: Mapping[str, Tensor], bits: int, less_one: bool, order: Tensor | None) -> Planes:
    codes = unpack_words(found["qweight"].t(), bits)
    zeros = unpack_words(found["qzeros"], bits)
    if less_one:
        zeros = (zeros + 1) & ((1 << bits) - 1)
    planes = {"zero": zeros.t(), "scale": found["scales"].t()}
    if order is not None:
        codes = codes[:, order.long()]
        planes["order"] = order
    return {"codes": code_of(bits).pack(codes), **planes}
