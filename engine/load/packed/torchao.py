"""torchao's safetensors: each weight flattened into tensors of its parts, described in the header's metadata."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from octavo.engine.errors import UnsupportedModelError
from octavo.engine.load.checkpoint import TensorInfo
from octavo.engine.load.packed.bits import code_of
from octavo.engine.load.packed.float8 import block_scales, float8_format
from octavo.engine.load.packed.scheme import Planes, Read, Scheme, StoredWeight
from octavo.engine.load.safetensors_header import read_metadata
from octavo.engine.quant.base import Format
from octavo.engine.quant.codes import INT8
from octavo.engine.quant.dynamic import DynamicInt8Format
from octavo.engine.quant.grouped import GroupedFormat

_READ = ("Int4Tensor", "Int8Tensor", "Float8Tensor", "IntxUnpackedToInt8Tensor")


class TorchAO(Scheme):
    """The types Int4Tensor, Int8Tensor, Float8Tensor and IntxUnpackedToInt8Tensor."""

    key = "_weight_qdata"
    roles: tuple[str, ...] = (
        "_weight_qdata",
        "_weight_scale",
        "_weight_zero_point",
        "_weight_act_pre_scale",
        "_weight_act_quant_scale",
        "_weight_act_quant_zero_point",
    )

    def __init__(self, settings: Mapping[str, Any], read: Read, path: Path) -> None:
        super().__init__(settings, read, path)
        self._metadata: dict[Path, dict[str, str]] = {}

    def weight(self, module: str, tensors: Mapping[str, TensorInfo]) -> StoredWeight:
        codes = self.expect(tensors, "_weight_qdata")
        kind, data = self._description(f"{module}.weight", codes)
        if kind not in _READ or "_weight_act_pre_scale" in tensors:
            raise UnsupportedModelError(
                f"{codes.file.name} holds {module} as {kind} of torchao, which is not read.",
                remedy=f"Use a version of the model as {', '.join(_READ[:3])}, or a GGUF file.",
            )
        scale = self.expect(tensors, "_weight_scale")
        self.matrix(tensors, "_weight_qdata", "I8", "U8", "F8_E4M3")
        if kind == "Float8Tensor":
            return self._float8(module, tensors, codes, scale)
        if kind == "Int4Tensor":
            return self._int4(module, tensors, codes, scale)
        return self._int8(module, tensors, data)

    def _float8(
        self, module: str, tensors: Mapping[str, TensorInfo], codes: TensorInfo, scale: TensorInfo
    ) -> StoredWeight:
        if codes.dtype != "F8_E4M3" or scale.shape not in ((), (1,), (1, 1), (codes.shape[0], 1)):
            self.fail(f"{codes.name} is {codes.dtype} with scales {list(scale.shape)}", codes)
        form = float8_format(scale.shape, codes.shape, None)

        def convert(found: Mapping[str, Tensor]) -> Planes:
            return {
                "codes": found["_weight_qdata"],
                "scale": block_scales(found["_weight_scale"], codes.shape, None),
            }

        return StoredWeight(f"{module}.weight", codes.shape, "torchao FP8", form, tensors, convert)

    def _int4(
        self, module: str, tensors: Mapping[str, TensorInfo], codes: TensorInfo, scale: TensorInfo
    ) -> StoredWeight:
        """Signed nibbles, low first; weight = code * scale + zero_point, both [groups, out]."""
        out_dim, in_dim = codes.shape[0], codes.shape[1] * 2
        groups = scale.shape[0]
        self.expect(tensors, "_weight_scale", (groups, out_dim))
        self.expect(tensors, "_weight_zero_point", (groups, out_dim))
        if in_dim % groups:
            self.fail(f"{groups} groups do not divide the {in_dim} columns of {codes.name}", scale)
        form = GroupedFormat(
            "torchao",
            code_of(4, symmetric=True),
            in_dim // groups,
            self.scale_type(scale),
            shifts=True,
            quantizes=False,
        )

        def convert(found: Mapping[str, Tensor]) -> Planes:
            return {
                "codes": found["_weight_qdata"].view(torch.uint8) ^ 0x88,  # from -8..7 to 0..15
                "scale": found["_weight_scale"].t(),
                "shift": found["_weight_zero_point"].t().to(found["_weight_scale"].dtype),
            }

        return StoredWeight(f"{module}.weight", (out_dim, in_dim), "torchao int4", form, tensors, convert)

    def _int8(self, module: str, tensors: Mapping[str, TensorInfo], data: Mapping[str, Any]) -> StoredWeight:
        """Signed bytes about zero points that may be left out: weight = (code - zero_point) * scale."""
        codes, scale = tensors["_weight_qdata"], tensors["_weight_scale"]
        out_dim, in_dim = codes.shape
        block = data.get("block_size")
        if codes.dtype != "I8" or not isinstance(block, list) or len(block) != 2 or block[0] not in (1, out_dim):
            self.fail(f"{codes.name} is stored as {codes.dtype} in blocks of {block}", codes)
        groups = in_dim // int(block[1]) if int(block[1]) > 0 else 0
        if groups < 1 or in_dim % groups:
            self.fail(f"blocks of {block} do not divide {codes.name}", codes)
        rows = 1 if block[0] == out_dim and out_dim > 1 else out_dim
        group = in_dim // groups if groups > 1 else 0
        shifted = "_weight_zero_point" in tensors and bool(self.read(tensors["_weight_zero_point"].name).any())
        kind = self.scale_type(scale)
        rounds_tokens = data.get("act_quant_kwargs") is not None or data.get("activation_quantization") is not None
        if shifted:
            form: Format = GroupedFormat("torchao", code_of(8), group, kind, zeros=True, quantizes=False)
        elif rounds_tokens and not group:
            form = DynamicInt8Format(scale_dtype=kind, quantizes=False)
        else:
            form = GroupedFormat("torchao", INT8, group, kind, quantizes=False)

        def spread(values: Tensor) -> Tensor:
            return values.reshape(rows, groups).expand(out_dim, groups)

        def convert(found: Mapping[str, Tensor]) -> Planes:
            planes = {"codes": found["_weight_qdata"], "scale": spread(found["_weight_scale"])}
            if shifted:
                planes["codes"] = (planes["codes"].to(torch.int16) + 128).to(torch.uint8)
                planes["zero"] = spread((found["_weight_zero_point"].to(torch.int16) + 128).to(torch.uint8))
            return planes

        return StoredWeight(f"{module}.weight", (out_dim, in_dim), "torchao int8", form, tensors, convert)

    def _description(self, name: str, info: TensorInfo) -> tuple[str, Mapping[str, Any]]:
        try:
            if info.file not in self._metadata:
                self._metadata[info.file] = read_metadata(info.file)
            found = json.loads(self._metadata[info.file][name])
            return str(found["_type"]), dict(found["_data"])
        except (KeyError, ValueError, TypeError):
            self.fail(f"nothing in the header says what {info.name} is", info)
