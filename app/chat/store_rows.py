"""Rows of the file of chats as data classes, and back."""

from __future__ import annotations

import json
import secrets
import sqlite3
import sys
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import asdict, fields

from octavo.app.chat.types import Attachment, Chat, ChatSettings, ChatSummary, Message, ReplyStats

SUMMARY_COLUMNS = "id, title, updated_s, pinned, folder, tags, model"


def to_summary(row: sqlite3.Row) -> ChatSummary:
    return ChatSummary(
        id=row["id"],
        title=row["title"],
        updated_s=row["updated_s"],
        pinned=bool(row["pinned"]),
        folder=row["folder"],
        tags=tuple(json.loads(row["tags"])),
        model=row["model"],
    )


def to_chat(row: sqlite3.Row, messages: Sequence[Message]) -> Chat:
    return Chat(
        id=row["id"],
        title=row["title"],
        created_s=row["created_s"],
        messages=tuple(messages),
        updated_s=row["updated_s"],
        pinned=bool(row["pinned"]),
        folder=row["folder"],
        tags=tuple(json.loads(row["tags"])),
        model=row["model"],
        system=row["system"],
    )


def to_settings(row: sqlite3.Row) -> ChatSettings:
    values = json.loads(row["settings"])
    return ChatSettings(
        system=row["system"],
        preset=values.get("preset"),
        sampling=values.get("sampling", {}),
        options=values.get("options", {}),
    )


def from_settings(settings: ChatSettings) -> str:
    values: dict[str, object] = {
        "preset": settings.preset,
        "sampling": {name: value for name, value in settings.sampling.items() if value is not None},
        "options": dict(settings.options),
    }
    return json.dumps({name: value for name, value in values.items() if value}, ensure_ascii=False)


def to_message(row: sqlite3.Row) -> Message:
    """`row` has the columns of messages, and of a shown one `version` and `versions`."""
    counted = "versions" in row.keys()  # noqa: SIM118 (`in` looks at a row's values)
    return Message(
        id=row["id"],
        chat_id=row["chat_id"],
        role=row["role"],
        content=row["content"],
        reasoning=row["reasoning"],
        status=row["status"],
        error=row["error"],
        error_code=row["error_code"],
        stats=to_stats(row["stats"]),
        created_s=row["created_s"],
        token_ids=unpack(row["token_ids"]),
        parent_id=row["parent_id"],
        model=row["model"],
        attachments=to_attachments(row["attachments"]),
        version=row["version"] if counted else 1,
        versions=row["versions"] if counted else 1,
    )


def to_stats(text: str | None) -> ReplyStats | None:
    if text is None:
        return None
    known = {field.name for field in fields(ReplyStats)}
    return ReplyStats(**{name: value for name, value in json.loads(text).items() if name in known})


def from_stats(stats: ReplyStats | None) -> str | None:
    return None if stats is None else json.dumps(asdict(stats))


def to_attachments(text: str) -> tuple[Attachment, ...]:
    known = {field.name for field in fields(Attachment)}
    return tuple(
        Attachment(**{name: value for name, value in item.items() if name in known}) for item in json.loads(text)
    )


def from_attachments(attachments: Iterable[Attachment]) -> str:
    return json.dumps([asdict(attachment) for attachment in attachments], ensure_ascii=False)


def new_id() -> str:
    return secrets.token_hex(8)


def pack(ids: Sequence[int]) -> bytes:
    """Token ids as little-endian 32-bit integers."""
    values = array("I", ids)
    if sys.byteorder == "big":
        values.byteswap()
    return values.tobytes()


def unpack(data: bytes | None) -> tuple[int, ...]:
    values = array("I")
    values.frombytes(data or b"")
    if sys.byteorder == "big":
        values.byteswap()
    return tuple(values)
