"""Weight formats, one module each, and the table that names them."""

from __future__ import annotations

from octavo.engine.errors import LoadError
from octavo.engine.quant.base import Format
from octavo.engine.quant.plain import PlainFormat

FORMATS: dict[str, type[Format]] = {PlainFormat.name: PlainFormat}


def weight_format(name: str) -> Format:
    """The format a `quantization` setting names. Raises LoadError naming those that exist."""
    if name not in FORMATS:
        raise LoadError(
            f"The weight format {name!r} does not exist here.", remedy=f"Use one of: {', '.join(sorted(FORMATS))}."
        )
    return FORMATS[name]()
