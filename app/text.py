"""Text from outside, made storable."""

from __future__ import annotations


def without_halves(text: str) -> str:
    """Halves of surrogate pairs, which JSON can carry and no encoding holds, become the replacement character."""
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
