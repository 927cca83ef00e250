"""compressed-tensors: packed integers, int8, E4M3, NVFP4 and MXFP4, each module by the group of settings it matches."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from octavo.engine.errors import UnsupportedModelError
from octavo.engine.load.checkpoint import TensorInfo
from octavo.engine.load.packed.bits import code_of, row_order, unpack_words
from octavo.engine.load.packed.float8 import block_scales, float8_format
from octavo.engine.load.packed.scheme import Planes, Read, Scheme, StoredWeight
from octavo.engine.quant.base import Format
from octavo.engine.quant.codes import E2M1, INT8
from octavo.engine.quant.dynamic import DynamicInt8Format
from octavo.engine.quant.grouped import GroupedFormat

_READ: tuple[str, ...] = (
    "dense",
    "pack-quantized",
    "int-quantized",
    "float-quantized",
    "naive-quantized",
    "nvfp4-pack-quantized",
    "mxfp4-pack-quantized",
    "mixed-precision",
)

_WIDTHS = frozenset("12345678")  # bits of a packed number, as its settings spell them


class CompressedTensors(Scheme):
    """A module's weight is packed exactly if it has a weight_scale."""

    key = "weight_scale"
    roles: tuple[str, ...] = (
        "weight_packed",
        "weight_scale",
        "weight_zero_point",
        "weight_shape",
        "weight_g_idx",
        "weight_global_scale",
        "weight",
    )
    ignored: tuple[str, ...] = (
        "input_scale",
        "input_zero_point",
        "input_global_scale",
        "output_scale",
        "q_scale",
        "k_scale",
        "v_scale",
        "k_zero_point",
        "v_zero_point",
    )

    def __init__(self, settings: Mapping[str, Any], read: Read, path: Path) -> None:
        super().__init__(settings, read, path)
        groups = [group for group in (settings.get("config_groups") or {}).values() if isinstance(group, Mapping)]
        for form in {str(settings.get("format")), *(str(g["format"]) for g in groups if g.get("format"))}:
            if form not in (*_READ, "None"):
                raise UnsupportedModelError(
                    f"{path.name} stores its weights as {form!r} of compressed-tensors, which is not read.",
                    remedy=f"Use a version of the model in one of {', '.join(_READ[1:-1])}, or a GGUF file.",
                )
        if settings.get("sparsity_config", {}).get("format", "dense") != "dense":
            raise UnsupportedModelError(
                f"{path.name} leaves out the zeros of its weights (a sparse form of compressed-tensors).",
                remedy="Use a dense version of the model.",
            )
        self.groups = groups

    def weight(self, module: str, tensors: Mapping[str, TensorInfo]) -> StoredWeight:
        group = self._group(module)
        weights = group.get("weights") or {}
        if "weight_packed" not in tensors:
            return self._plain_codes(module, tensors, group)
        packed, scale = tensors["weight_packed"], tensors["weight_scale"]
        if packed.dtype == "U8":
            return self._four_bit_floats(module, tensors)
        bits = self._bits(weights, packed)
        out_dim, in_dim = self._shape(tensors, bits)
        symmetric = "weight_zero_point" not in tensors
        self.expect(tensors, "weight_packed", (out_dim, -(-in_dim * bits // 32)))
        groups = self.expect(tensors, "weight_scale").shape[-1]
        size = int(weights.get("group_size") or -1) if groups > 1 else -1
        self.expect(tensors, "weight_scale", (out_dim, -(-in_dim // size) if size > 0 else 1))
        if not symmetric:
            self.expect(tensors, "weight_zero_point", (-(-out_dim * bits // 32), groups))
        code = code_of(bits, symmetric=symmetric)
        form = GroupedFormat(
            "compressed-tensors", code, max(size, 0), self.scale_type(scale), zeros=not symmetric, quantizes=False
        )
        order = None
        if "weight_g_idx" in tensors:
            columns = self.read(tensors["weight_g_idx"].name).long()
            if columns.numel() == in_dim and bool((columns >= 0).all()):
                order, in_order = row_order(columns)
                if not torch.equal(in_order, torch.arange(in_dim) // max(size, 1)):
                    self.fail("its groups of columns are not all of one size", tensors["weight_g_idx"])
                form = replace(form, ordered=True)

        def convert(found: Mapping[str, Tensor]) -> Planes:
            codes = unpack_words(found["weight_packed"], bits)[:, :in_dim]
            planes = {"scale": found["weight_scale"].view(out_dim, -1)}
            if order is not None:
                codes, planes["order"] = codes[:, order.long()], order
            if not symmetric:
                planes["zero"] = unpack_words(found["weight_zero_point"].t(), bits)[:, :out_dim].t()
            return {"codes": code.pack(codes), **planes}

        return StoredWeight(
            f"{module}.weight", (out_dim, in_dim), f"compressed-tensors {bits}-bit", form, tensors, convert
        )

    def _four_bit_floats(self, module: str, tensors: Mapping[str, TensorInfo]) -> StoredWeight:
        """NVFP4, with a scale for the tensor to divide by, and MXFP4."""
        out_dim, columns = self.matrix(tensors, "weight_packed", "U8")
        in_dim = columns * 2
        nvidia = "weight_global_scale" in tensors
        size = 16 if nvidia else 32
        self.expect(tensors, "weight_scale", (out_dim, in_dim // size))
        if nvidia:
            form = GroupedFormat("NVFP4", E2M1, size, torch.float8_e4m3fn, outer="over", quantizes=False)
        else:
            form = GroupedFormat("MXFP4", E2M1, size, torch.float8_e8m0fnu, quantizes=False)

        def convert(found: Mapping[str, Tensor]) -> Planes:
            scale = found["weight_scale"]
            planes = {"codes": found["weight_packed"]}
            if nvidia:
                planes["outer"] = found["weight_global_scale"].float().reshape(1, 1).expand(out_dim, 1)
                return planes | {"scale": scale}
            return planes | {"scale": scale.view(torch.float8_e8m0fnu)}

        return StoredWeight(f"{module}.weight", (out_dim, in_dim), form.name, form, tensors, convert)

    def _plain_codes(self, module: str, tensors: Mapping[str, TensorInfo], group: Mapping[str, Any]) -> StoredWeight:
        """int8 and E4M3 weights, each in a tensor of its own type."""
        weight = self.expect(tensors, "weight")
        scale = tensors["weight_scale"]
        out_dim, in_dim = self.matrix(tensors, "weight", "I8", "F8_E4M3")
        weights = group.get("weights") or {}
        if weight.dtype == "F8_E4M3":
            block = weights.get("block_structure")
            form: Format = float8_format(scale.shape, weight.shape, block)

            def convert(found: Mapping[str, Tensor]) -> Planes:
                return {"codes": found["weight"], "scale": block_scales(found["weight_scale"], weight.shape, block)}

            return StoredWeight(f"{module}.weight", weight.shape, "FP8", form, tensors, convert)
        size = int(weights.get("group_size") or 0) if scale.shape[-1:] not in ((), (1,)) else 0
        shifted = "weight_zero_point" in tensors
        activations = group.get("input_activations")
        kind = self.scale_type(scale)
        if shifted:  # about zero points of their own: as unsigned numbers, both moved by 128
            form = GroupedFormat("compressed-tensors", code_of(8), max(size, 0), kind, zeros=True, quantizes=False)
        elif activations and not size:
            form = DynamicInt8Format(scale_dtype=kind, quantizes=False)
        else:
            form = GroupedFormat("compressed-tensors", INT8, max(size, 0), kind, quantizes=False)

        def convert_int8(found: Mapping[str, Tensor]) -> Planes:
            codes, scales = found["weight"], _by_row(found["weight_scale"], out_dim)
            if not shifted:
                return {"codes": codes, "scale": scales}
            zeros = _by_row(found["weight_zero_point"], out_dim)
            return {"codes": _unsigned(codes), "scale": scales, "zero": _unsigned(zeros)}

        return StoredWeight(
            f"{module}.weight", (out_dim, in_dim), "compressed-tensors int8", form, tensors, convert_int8
        )

    def _bits(self, weights: Mapping[str, Any], packed: TensorInfo) -> int:
        """A number in quotes is the number it spells, as for the library that writes these files."""
        found = weights.get("num_bits", 4)
        if str(found) not in _WIDTHS:
            self.fail(f"{packed.name} has the num_bits {found!r}; a whole number from 1 to 8 is needed", packed)
        return int(found)

    def _shape(self, tensors: Mapping[str, TensorInfo], bits: int) -> tuple[int, int]:
        rows, words = self.matrix(tensors, "weight_packed", "I32")
        if "weight_shape" not in tensors:
            return rows, words * 32 // bits
        found = self.read(tensors["weight_shape"].name).flatten().tolist()
        if len(found) != 2 or found[0] != rows or not 0 < found[1] <= words * 32 // bits:
            self.fail(f"the shape {found} is not that of {tensors['weight_packed'].name}", tensors["weight_shape"])
        return int(found[0]), int(found[1])

    def _group(self, module: str) -> Mapping[str, Any]:
        """The settings of a module: those that name it, else those for all linears."""
        rest: Mapping[str, Any] = {}
        for group in self.groups:
            for target in group.get("targets") or ():
                if target == module or (str(target).startswith("re:") and re.match(str(target)[3:], module)):
                    return group
                if not str(target).startswith("re:") and "." not in str(target):
                    rest = rest or group  # the name of a class, such as Linear
        return rest


def _by_row(values: Tensor, rows: int) -> Tensor:
    """One for the tensor, for each row or for each group, as [rows, groups]."""
    return values.reshape(1, 1).expand(rows, 1) if values.numel() == 1 else values.reshape(rows, -1)


def _unsigned(codes: Tensor) -> Tensor:
    return (codes.to(torch.int16) + 128).to(torch.uint8)
