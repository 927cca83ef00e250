"""What an attached file becomes, and how one that cannot be read is refused."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal

from octavo.engine.errors import OctavoError

Kind = Literal["text", "pdf", "docx"]

LARGEST_FILE_BYTES = 20 * 1024 * 1024
LONGEST_TEXT = 1_000_000  # characters of one file; the longest contexts hold about four million
MOST_FILES = 20  # with one message
LONGEST_NAME = 120


class AttachmentError(OctavoError):
    """A file cannot be attached: one sentence that names it, and what to do instead."""


@dataclass(frozen=True, slots=True)
class Attachment:
    """A file of a message, as its text. `tokens` by the model that was loaded then, 0 if there was none."""

    name: str
    kind: Kind
    text: str
    tokens: int = 0


@dataclass(frozen=True, slots=True)
class ReadFile:
    """A file that was read. `notices` say what of it is missing or was guessed."""

    name: str
    kind: Kind
    text: str
    notices: tuple[str, ...] = ()


def to_json(attachments: Iterable[Attachment]) -> list[dict[str, Any]]:
    """For the store and for exports."""
    return [asdict(attachment) for attachment in attachments]


def from_json(values: object) -> tuple[Attachment, ...]:
    """The inverse of `to_json`. What is not an attachment, or a field nobody knows, is passed over."""
    known = {field.name for field in fields(Attachment)}
    found = []
    for value in values if isinstance(values, list) else []:
        if isinstance(value, Mapping) and isinstance(value.get("name"), str) and isinstance(value.get("text"), str):
            kind: Kind = value["kind"] if value.get("kind") in ("text", "pdf", "docx") else "text"
            tokens = value.get("tokens")
            known_values = {"tokens": tokens if isinstance(tokens, int) else 0, "kind": kind}
            found.append(Attachment(**{**{k: v for k, v in value.items() if k in known}, **known_values}))
    return tuple(found)
