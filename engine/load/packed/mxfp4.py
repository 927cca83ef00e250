"""MXFP4 as gpt-oss stores it: stacks of experts in blocks of 32 E2M1 codes with an exponent each.

Both projections are turned on their side when they are expanded, since that is how transformers holds them.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from octavo.engine.load.checkpoint import TensorInfo
from octavo.engine.load.packed.scheme import Planes, Scheme, StoredWeight
from octavo.engine.quant.base import Packed
from octavo.engine.quant.codes import E2M1
from octavo.engine.quant.grouped import GroupedFormat

_GROUP = 32


class MXFP4(Scheme):
    """`blocks` uint8 [experts, rows, in / 32, 16], low nibble first; `scales` uint8 [experts, rows, in / 32]."""

    key = "_blocks"
    roles = ("_blocks", "_scales")

    def module_of(self, name: str) -> tuple[str, str] | None:
        for role in self.roles:
            if name.endswith(role):
                return name.removesuffix(role), role
        return None

    def weight(self, module: str, tensors: Mapping[str, TensorInfo]) -> StoredWeight:
        blocks = self.expect(tensors, "_blocks")
        if blocks.dtype != "U8" or len(blocks.shape) != 4 or blocks.shape[-1] * 2 != _GROUP:
            self.fail(f"{blocks.name} is stored as {blocks.dtype} {list(blocks.shape)}", blocks)
        experts, rows, groups, _ = blocks.shape
        self.expect(tensors, "_scales", (experts, rows, groups))
        form = GroupedFormat("MXFP4", E2M1, _GROUP, torch.float8_e8m0fnu, quantizes=False)

        def convert(found: Mapping[str, Tensor]) -> Planes:
            out = torch.empty((experts, groups * _GROUP, rows), dtype=torch.bfloat16)
            for expert in range(experts):  # one at a time: they are most of such a model
                planes = {
                    "codes": found["_blocks"][expert].flatten(1),
                    "scale": found["_scales"][expert].view(torch.float8_e8m0fnu),
                }
                packed = Packed(planes, None, groups * _GROUP, torch.bfloat16)  # exact in bfloat16
                out[expert] = form.dequantize(packed).t()
            return {"weight": out}

        return StoredWeight(module, (experts, groups * _GROUP, rows), "MXFP4", None, tensors, convert)
