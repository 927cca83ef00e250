"""What a file that was read is, and how one that cannot be read is refused."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

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


class AttachmentError(OctavoError):
    """A file cannot be attached: one sentence that names it, and what to do instead."""


@dataclass(frozen=True, slots=True)
class ReadFile:
    """A file that was read. `notices` say what of it is missing or was guessed."""

    name: str
    kind: Kind
    text: str
    notices: tuple[str, ...] = ()
