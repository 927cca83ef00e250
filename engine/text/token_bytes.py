"""Which bytes a vocabulary entry stands for. Knows the decoders of tokenizer.json files, no tokenizer object."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

_BYTE_PIECE = re.compile(r"<0x([0-9A-Fa-f]{2})>")


@dataclass(frozen=True, slots=True)
class ByteRecipe:
    """How entries turn into bytes: `to_bytes(entry)`, joined over all tokens, is the text in UTF-8.

    `drops_first_blank`: the tokenizer puts a blank before the text, so that decoding takes one away at its start.
    """

    to_bytes: Callable[[str], bytes]
    drops_first_blank: bool


def byte_recipe(decoder: Mapping[str, Any] | None) -> ByteRecipe | None:
    """The recipe for a decoder as tokenizer.json writes it, or None if its tokens depend on their neighbours.

    Covers byte-level BPE and SentencePiece with or without byte fallback; word pieces and suffix marks are not covered.
    """
    if decoder is None:
        return None
    steps = decoder["decoders"] if decoder.get("type") == "Sequence" else [decoder]
    kinds = {step.get("type") for step in steps}
    if "ByteLevel" in kinds:
        return ByteRecipe(_byte_level_bytes, False) if kinds <= {"ByteLevel", "Fuse"} else None
    replacements: list[tuple[str, str]] = []
    byte_fallback = drops_first_blank = False
    for step in steps:
        match step:
            case {"type": "Replace", "pattern": {"String": str(old)}, "content": str(new)}:
                replacements.append((old, new))
            case {"type": "Metaspace", "replacement": str(mark), **rest}:
                replacements.append((mark, " "))
                drops_first_blank = rest.get("prepend_scheme", "always") != "never"
            case {"type": "ByteFallback"}:
                byte_fallback = True
            case {"type": "Strip", "content": " ", "start": 1, "stop": 0}:
                drops_first_blank = True
            case {"type": "Fuse"}:
                pass
            case _:
                return None
    if not replacements:
        return None

    def to_bytes(entry: str) -> bytes:
        if byte_fallback and (match := _BYTE_PIECE.fullmatch(entry)):
            return bytes([int(match[1], 16)])
        for old, new in replacements:
            entry = entry.replace(old, new)
        return entry.encode("utf-8", "replace")

    return ByteRecipe(to_bytes, drops_first_blank)


def _byte_level_alphabet() -> dict[str, int]:
    """Byte-level BPE writes printable Latin-1 as itself and the other 68 bytes as U+0100 and up, in order (GPT-2)."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in set(printable)]
    return {chr(byte): byte for byte in printable} | {chr(0x100 + place): byte for place, byte in enumerate(others)}


_ALPHABET = _byte_level_alphabet()


def _byte_level_bytes(entry: str) -> bytes:
    try:
        return bytes(map(_ALPHABET.__getitem__, entry))
    except KeyError:  # an added token, stored as plain text
        return entry.encode("utf-8", "replace")
