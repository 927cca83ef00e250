"""Sizes as people write them: `auto`, `6 GiB`, `512MB`, `80%`."""

from __future__ import annotations

import re
from dataclasses import dataclass

_UNITS = {
    "b": 1,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "tb": 10**12,
    "kib": 2**10,
    "mib": 2**20,
    "gib": 2**30,
    "tib": 2**40,
}
_FORM = re.compile(r"(\d+(?:\.\d+)?)\s*(%|[kmgt]?i?b)", re.IGNORECASE)

SIZE_FORMS = 'auto, a size such as "6 GiB", or a share of the free memory such as "80%"'


@dataclass(frozen=True, slots=True)
class Size:
    """An amount of memory: a number of bytes, a share (0..1] of what is free, or, with neither, `auto`."""

    size_bytes: int | None = None
    share: float | None = None
    text: str = "auto"

    @classmethod
    def parse(cls, text: str) -> Size:
        """Reads `auto`, `6 GiB` (also kB, MB, GB in powers of ten) or `80%`. Raises ValueError."""
        cleaned = text.strip()
        if cleaned.lower() == "auto":
            return cls()
        match = _FORM.fullmatch(cleaned)
        if match is None:
            raise ValueError(f"must be {SIZE_FORMS}")
        number, unit = float(match[1]), match[2].lower()
        if unit == "%":
            if not 0 < number <= 100:
                raise ValueError("must be a share above 0% and at most 100%")
            return cls(share=number / 100, text=cleaned)
        size_bytes = int(number * _UNITS[unit])
        if size_bytes <= 0:
            raise ValueError("must be more than 0 bytes")
        return cls(size_bytes=size_bytes, text=cleaned)

    @property
    def is_auto(self) -> bool:
        return self.size_bytes is None and self.share is None

    def __str__(self) -> str:
        return self.text


def format_size(size_bytes: float) -> str:
    """Bytes in words people read: `512 MiB`, `6.3 GiB`."""
    if size_bytes >= 2**30:
        return f"{size_bytes / 2**30:.1f} GiB"
    if size_bytes >= 2**20:
        return f"{size_bytes / 2**20:.0f} MiB"
    return f"{size_bytes / 2**10:.0f} KiB"
