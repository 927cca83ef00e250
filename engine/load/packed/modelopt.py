"""NVIDIA ModelOpt: NVFP4 weights (E2M1 codes, an E4M3 scale for 16, one for the tensor) and E4M3 weights."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from octavo.engine.errors import UnsupportedModelError
from octavo.engine.load.checkpoint import TensorInfo
from octavo.engine.load.packed.float8 import block_scales, float8_format
from octavo.engine.load.packed.scheme import Planes, Read, Scheme, StoredWeight
from octavo.engine.quant.codes import E2M1
from octavo.engine.quant.grouped import GroupedFormat

_GROUP = 16


class ModelOpt(Scheme):
    """weight = code * weight_scale * weight_scale_2; scales of activations are not used."""

    key = "weight_scale"
    roles = ("weight_scale_2", "weight_scale", "weight")
    ignored = ("input_scale", "k_scale", "v_scale", "pre_quant_scale")

    def __init__(self, settings: Mapping[str, Any], read: Read, path: Path) -> None:
        super().__init__(settings, read, path)
        inner = settings.get("quantization")
        inner = inner if isinstance(inner, Mapping) else settings
        method = str(inner.get("quant_algo") or settings.get("quant_algo") or "").upper()
        if method not in ("NVFP4", "FP8", "MIXED_PRECISION", ""):
            raise UnsupportedModelError(
                f"{path.name} holds weights that ModelOpt quantized as {method}, which is not read.",
                remedy="Use a version of the model as NVFP4, FP8 or a GGUF file.",
            )

    def weight(self, module: str, tensors: Mapping[str, TensorInfo]) -> StoredWeight:
        weight, scale = self.expect(tensors, "weight"), self.expect(tensors, "weight_scale")
        if weight.dtype == "F8_E4M3":
            form: Any = float8_format(scale.shape, weight.shape, None)

            def convert(found: Mapping[str, Tensor]) -> Planes:
                return {"codes": found["weight"], "scale": block_scales(found["weight_scale"], weight.shape, None)}

            return StoredWeight(f"{module}.weight", weight.shape, "FP8", form, tensors, convert)
        if weight.dtype != "U8" or scale.dtype != "F8_E4M3" or len(weight.shape) != 2:
            self.fail(f"{weight.name} is stored as {weight.dtype} with a scale of {scale.dtype}", weight)
        out_dim, in_dim = weight.shape[0], weight.shape[1] * 2
        self.expect(tensors, "weight_scale", (out_dim, in_dim // _GROUP))
        self.expect(tensors, "weight_scale_2", (), (1,))
        form = GroupedFormat("NVFP4", E2M1, _GROUP, torch.float8_e4m3fn, outer="times", quantizes=False)

        def convert_four(found: Mapping[str, Tensor]) -> Planes:
            outer = found["weight_scale_2"].float().reshape(1, 1).expand(out_dim, 1)
            return {"codes": found["weight"], "scale": found["weight_scale"], "outer": outer}

        return StoredWeight(f"{module}.weight", (out_dim, in_dim), "NVFP4", form, tensors, convert_four)
