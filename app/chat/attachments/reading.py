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
    b"\x89PNG\r\n\x1a\n": "picture",
    b"\xff\xd8\xff": "picture",
    b"GIF8": "picture",
    b"BM": "picture",
    b"II*\x00": "picture",
    b"MM\x00*": "picture",
    b"ID3": "sound",
    b"OggS": "sound",
    b"fLaC": "sound",
    b"\x1a\x45\xdf\xa3": "film",
    b"\x1f\x8b": "archive",
    b"7z\xbc\xaf\x27\x1c": "archive",
    b"Rar!": "archive",
    b"\xfd7zXZ": "archive",
    b"\x7fELF": "program",
    b"MZ": "program",
    b"SQLite format 3": "database",
}


def read_file(name: str, data: bytes) -> ReadFile:
    """The text of a file. What it is is decided by its bytes; the name alone never is trusted.

    Takes up to half a minute for a PDF or Word file; call it in a thread. Raises AttachmentError.
    """
    name = clean_name(name)
    if not data:
        raise AttachmentError("empty", name=name)
    if len(data) > LARGEST_FILE_BYTES:
        raise AttachmentError("large", name=name, size=f"{len(data) / 1024**2:.1f}", most=LARGEST_FILE_BYTES // 1024**2)
    if b"%PDF-" in data[:1024]:
        return _checked(read_apart(name, "pdf", data))
    if data.startswith(b"PK\x03\x04"):
        return _checked(read_apart(name, "docx", data))
    if data.startswith(_OLD_OFFICE):
        raise AttachmentError("old_office", name=name)
    text, remarks = decode(name, data, what=_what(data))
    return _checked(ReadFile(name, "text", text, remarks))


def clean_name(name: str) -> str:
    """A file's name without folders, control characters and marks that turn the direction of what follows."""
    bare = unicodedata.normalize("NFC", PurePosixPath(name.replace("\\", "/")).name)  # macOS writes letters apart
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
        return "film"
    if data[:4] == b"RIFF":
        return "media"
    return next((what for mark, what in _PICTURES.items() if data.startswith(mark)), None)


def _checked(file: ReadFile) -> ReadFile:
    if not file.text.strip():
        raise AttachmentError("blank", name=file.name)
    if len(file.text) > LONGEST_TEXT:
        raise AttachmentError("long", name=file.name, most=LONGEST_TEXT)
    return file
