"""Text from outside, made storable."""

from __future__ import annotations

import json
import re
from typing import Any

_HALF = re.compile(r"\\ud[89a-f]|[\ud800-\udfff]", re.IGNORECASE)  # as JSON escapes it, or as it is


def without_halves(text: str) -> str:
    """Halves of surrogate pairs, which JSON can carry and no encoding holds, become the replacement character."""
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def read_json(raw: str | bytes) -> Any:
    """The values of a JSON text, every text and name among them without halves, at whatever depth. Raises ValueError,
    and RecursionError for what is nested too deep."""
    text = raw if isinstance(raw, str) else raw.decode(json.detect_encoding(raw), "surrogatepass")
    values = json.loads(text)
    if _HALF.search(text):
        values = json.loads(without_halves(json.dumps(values, ensure_ascii=False)))
    return values
