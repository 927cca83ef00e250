"""Weight formats, one module each, and the table that names them."""

from __future__ import annotations

import torch

from octavo.engine.errors import LoadError
from octavo.engine.quant.base import Format
from octavo.engine.quant.cpu import BlockedFormat
from octavo.engine.quant.plain import PlainFormat

FORMATS: dict[str, type[Format]] = {PlainFormat.name: PlainFormat}


def weight_format(name: str, *, device: torch.device, dtype: torch.dtype, fusion: bool) -> Format:
    """The format a `quantization` setting means on a device. Raises LoadError naming those that exist."""
    if name not in FORMATS:
        raise LoadError(
            f"The weight format {name!r} does not exist here.", remedy=f"Use one of: {', '.join(sorted(FORMATS))}."
        )
    if name == PlainFormat.name and fusion and device.type == "cpu" and BlockedFormat.available(dtype):
        return BlockedFormat()
    return FORMATS[name]()
