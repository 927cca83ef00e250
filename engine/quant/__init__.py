"""Weight formats, one module each, and the table that names those a model can be converted to."""

from __future__ import annotations

import torch

from octavo.engine.errors import LoadError
from octavo.engine.quant.base import Format
from octavo.engine.quant.codes import FP4, INT8, NF4, UnsignedCode
from octavo.engine.quant.cpu import BlockedFormat
from octavo.engine.quant.dynamic import DynamicInt8Format, Float8Format, LLMInt8Format
from octavo.engine.quant.grouped import FittedFormat, GroupedFormat
from octavo.engine.quant.plain import PlainFormat

PACKED = "packed"  # weights stay as a quantized checkpoint stores them, whether or not that is fast
FORMATS: dict[str, Format] = {
    "none": PlainFormat(),
    PACKED: PlainFormat(),
    "int8": GroupedFormat("int8", INT8),
    "int8-dynamic": DynamicInt8Format(),
    "llm-int8": LLMInt8Format(),
    "int4": FittedFormat("int4", UnsignedCode(4), scale_dtype=None, shifts=True),
    "int4-symmetric": FittedFormat("int4-symmetric", UnsignedCode(4, offset=8), scale_dtype=None),
    "fp8": Float8Format(),
    "nf4": GroupedFormat("nf4", NF4, group=64),
    "fp4": GroupedFormat("fp4", FP4, group=64),
}


def weight_format(name: str, *, device: torch.device, dtype: torch.dtype, fusion: bool) -> Format:
    """The format a `quantization` setting means on a device. Raises LoadError naming those that exist."""
    if name not in FORMATS:
        raise LoadError(
            f"The weight format {name!r} does not exist here.", remedy=f"Use one of: {', '.join(sorted(FORMATS))}."
        )
    if FORMATS[name].name == PlainFormat.name and fusion and device.type == "cpu" and BlockedFormat.available(dtype):
        return BlockedFormat()
    return FORMATS[name]
