"""Text from outside, made storable."""

from __future__ import annotations

import codecs
import json
from collections.abc import Iterable
from typing import Any

LARGE = 1 << 18  # bytes or characters of JSON: reading more is worth a thread of its own
_PIECE = 1 << 20


def without_halves(text: str) -> str:
    """Halves of surrogate pairs, which JSON can carry and no encoding holds, become the replacement character."""
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def read_json(raw: str | bytes) -> Any:
    """The values of a JSON text, every text and name among them without halves, at whatever depth. Raises ValueError,
    and RecursionError for what is nested too deep.

    Other threads get their turn every few milliseconds, however long the text is. json's own reader is one call of C
    that lets nobody in but where it calls Python back, so a large one calls back for every object and whole number.
    """
    text, may_have_halves = (raw, not _is_whole(raw)) if isinstance(raw, str) else _decoded(raw)
    values = json.loads(text, object_hook=_as_it_is, parse_int=_number) if len(text) > LARGE else json.loads(text)
    if may_have_halves or _has_escapes(raw):
        return _mended(values)
    return values


def _decoded(raw: bytes) -> tuple[str, bool]:
    """The text, and whether there are halves in it as they are."""
    encoding = json.detect_encoding(raw)
    try:
        decoder = codecs.getincrementaldecoder(encoding)()
        pieces = [decoder.decode(raw[at : at + _PIECE]) for at in range(0, len(raw), _PIECE)]
        return "".join([*pieces, decoder.decode(b"", True)]), False
    except UnicodeDecodeError:
        return raw.decode(encoding, "surrogatepass"), True


def _has_escapes(raw: str | bytes) -> bool:
    """Whether halves may be written in escapes, as parts of whole pairs are too."""
    if isinstance(raw, str):
        return "\\ud" in raw or "\\uD" in raw
    return b"\\ud" in raw or b"\\uD" in raw or not json.detect_encoding(raw).startswith("utf-8")


def _as_it_is(value: dict[str, Any]) -> dict[str, Any]:
    return value


def _number(digits: str) -> int:
    return int(digits)


def _is_whole(text: str) -> bool:
    """Whether a text has no halves."""
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _mended(value: Any) -> Any:
    """The same values, changed in place, without halves."""
    root = [value]
    unseen: list[dict[str, Any] | list[Any]] = [root]
    while unseen:
        holder: Any = unseen.pop()
        places: Iterable[tuple[Any, Any]] = enumerate(holder)
        if isinstance(holder, dict):
            if not all(map(_is_whole, holder)):
                pairs = [(without_halves(name), item) for name, item in holder.items()]
                holder.clear()
                holder.update(pairs)
            places = holder.items()
        for place, item in places:
            if isinstance(item, str):
                if not _is_whole(item):
                    holder[place] = without_halves(item)
            elif isinstance(item, (dict, list)):
                unseen.append(item)
    return root[0]
