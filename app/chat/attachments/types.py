"""What a file that was read is, and the sentences by which one that cannot be read is refused."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from octavo.app.chat.types import Remark
from octavo.engine.errors import OctavoError

Kind = Literal["text", "pdf", "docx"]

MEDIA_TYPES: dict[Kind, str] = {
    "text": "text/plain",
    "pdf": "application/pdf",
    "docx": "application/vnd.openxmlformats-officedocument.wordprocessingml.document",
}
LARGEST_FILE_BYTES = 20 * 1024 * 1024
LONGEST_TEXT = 1_000_000  # characters of one file; the longest contexts hold about four million
MOST_FILES = 20  # with one message
LONGEST_NAME = 120

# What a file is that Octavo does not read, as a user calls it.
WHATS: Mapping[str, str] = {
    "picture": "a picture",
    "sound": "a sound",
    "film": "a film or picture",
    "media": "a picture, sound or film",
    "archive": "a packed archive",
    "program": "a program",
    "database": "a database",
    "spreadsheet": "a spreadsheet",
    "presentation": "a presentation",
    "document": "a document of another program",
}

# code: what was found, what to do. The page has them in its own language under `said.file_<code>`.
REFUSALS: Mapping[str, tuple[str, str]] = {
    "empty": ("{name} is empty.", ""),
    "large": ("{name} has {size} MiB; a file can have {most} MiB at most.", "Attach the part that matters."),
    "long": ("{name} has more than {most} characters of text.", "Attach the part that matters."),
    "blank": ("{name} has no text in it.", ""),
    "other": ("{name} is {what}; Octavo reads text, code, PDF and .docx files.", "Convert it, or paste what matters."),
    "unknown": ("{name} is not a text; Octavo reads text, code, PDF and .docx files.", "Convert it first."),
    "old_office": (
        "{name} is an old Office file or has a password.",
        "Save it as .docx without a password, or as PDF.",
    ),
    "locked": ("{name} is protected with a password.", "Save it without the password and attach it again."),
    "scanned": ("{name} has no text in it; its pages are pictures.", "Run it through text recognition (OCR) first."),
    "damaged": ("{name} is damaged, or not what its beginning says it is.", "Save it again, or as plain text."),
    "bomb": ("{name} is far larger inside than outside and was not unpacked.", ""),
    "doctype": ("{name} holds a document type, which a Word file must not have.", "Save it again from Word."),
    "slow": ("Reading {name} took longer than {seconds} seconds and was given up.", "Attach fewer pages."),
    "lost": ("A file of this message is no longer held by Octavo.", "Remove it and attach it again."),
    "many": ("A message can have {most} files at most.", "Send it in parts."),
}  # fmt: skip

# code: what of a file is missing or was guessed, under `said.file_<code>` too.
REMARKS: Mapping[str, str] = {
    "guessed": "{name} is not UTF-8; it was read as {encoding}.",
    "silent": "{name}: no text could be read from page {pages}.",
    "first": "Only the first {most} pages of {name} were read.",
}


class AttachmentError(OctavoError):
    """A file cannot be attached: one sentence that names it, and what to do instead."""

    def __init__(self, code: str, **values: int | str) -> None:
        message, remedy = REFUSALS[code]
        shown = _shown(values)
        super().__init__(message.format_map(shown), remedy=remedy.format_map(shown) or None)
        self.code = f"file_{code}"
        self.values: Mapping[str, int | str] = values


def remark(code: str, **values: int | str) -> Remark:
    """Something to say about a file that was read."""
    return Remark(REMARKS[code].format_map(_shown(values)), f"file_{code}", values)


def _shown(values: Mapping[str, int | str]) -> dict[str, str]:
    shown = {name: f"{value:,}" if isinstance(value, int) else value for name, value in values.items()}
    if "what" in shown:
        shown["what"] = WHATS[shown["what"]]
    return shown


@dataclass(frozen=True, slots=True)
class ReadFile:
    """A file that was read. `remarks` say what of it is missing or was guessed."""

    name: str
    kind: Kind
    text: str
    remarks: tuple[Remark, ...] = ()
