"""From a file's name and bytes to its text, or to one sentence about why there is none."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping
from pathlib import PurePosixPath

from octavo.app.chat.attachments.apart import read_apart
from octavo.app.chat.attachments.plain import decode
from octavo.app.chat.attachments.types import (
    LARGEST_FILE_BYTES,
    LONGEST_NAME,
    LONGEST_TEXT,
    AttachmentError,
    ReadFile,
)

_OLD_OFFICE = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"  # compound file: .doc, .xls, or a document with a password
_PICTURES: Mapping[bytes, str] = {
    b"\x89PNG\r\n\x1a\n": "a picture",
    b"\xff\xd8\xff": "a picture",
    b"GIF8": "a picture",
    b"BM": "a picture",
    b"II*\x00": "a picture",
    b"MM\x00*": "a picture",
    b"ID3": "a sound",
    b"OggS": "a sound",
    b"fLaC": "a sound",
    b"\x1a\x45\xdf\xa3": "a film",
    b"\x1f\x8b": "a packed archive",
    b"7z\xbc\xaf\x27\x1c": "a packed archive",
    b"Rar!": "a packed archive",
    b"\xfd7zXZ": "a packed archive",
    b"\x7fELF": "a program",
    b"MZ": "a program",
    b"SQLite format 3": "a database",
}


def read_file(name: str, data: bytes) -> ReadFile:
    """The text of a file. What it is is decided by its bytes; the name alone never is trusted.

    Takes up to half a minute for a PDF or Word file; call it in a thread. Raises AttachmentError.
    """
    name = clean_name(name)
    if not data:
        raise AttachmentError(f"{name} is empty.")
    if len(data) > LARGEST_FILE_BYTES:
        raise AttachmentError(
            f"{name} has {len(data) / 1024**2:.1f} MiB; a file can have {LARGEST_FILE_BYTES // 1024**2} MiB at most.",
            remedy="Attach the part that matters.",
        )
    if b"%PDF-" in data[:1024]:
        return _checked(read_apart(name, "pdf", data))
    if data.startswith(b"PK\x03\x04"):
        return _checked(read_apart(name, "docx", data))
    if data.startswith(_OLD_OFFICE):
        raise AttachmentError(
            f"{name} is an old Office file or has a password.", remedy="Save it as .docx without a password, or as PDF."
        )
    text, notices = decode(name, data, what=_what(data))
    return _checked(ReadFile(name, "text", text, notices))


def clean_name(name: str) -> str:
    """A file's name without folders, control characters and marks that turn the direction of what follows."""
    bare = PurePosixPath(name.replace("\\", "/")).name
    kept = "".join(c for c in bare if unicodedata.category(c) not in ("Cc", "Cf", "Cs", "Zl", "Zp"))
    kept = re.sub(r"\s+", " ", kept).strip()
    if len(kept) > LONGEST_NAME:
        stem, dot, suffix = kept.rpartition(".")
        suffix = dot + suffix if stem and len(suffix) <= 10 else ""
        kept = kept[: LONGEST_NAME - len(suffix) - 1] + "…" + suffix
    return kept or "file"


def _what(data: bytes) -> str | None:
    """What a file is that is no text, by its first bytes."""
    if data[4:8] == b"ftyp":
        return "a film or picture"
    if data[:4] == b"RIFF":
        return "a picture, sound or film"
    return next((what for mark, what in _PICTURES.items() if data.startswith(mark)), None)


def _checked(file: ReadFile) -> ReadFile:
    if not file.text.strip():
        raise AttachmentError(f"{file.name} has no text in it.")
    if len(file.text) > LONGEST_TEXT:
        raise AttachmentError(
            f"{file.name} has more than {LONGEST_TEXT:,} characters of text.", remedy="Attach the part that matters."
        )
    return file
