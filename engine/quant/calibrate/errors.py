"""What can be wrong with a wish to quantize a model."""

from __future__ import annotations

from octavo.engine.errors import OctavoError


class QuantizeError(OctavoError):
    """A model cannot be quantized as it was asked; nothing that was there before is changed."""
