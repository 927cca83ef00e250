"""Chats as files to keep or to take elsewhere: JSON with everything, Markdown to read.

The JSON is `{"format": "octavo-chats", "version": 1, "chats": [...]}`. A chat has all versions of all turns; `after`
names the turn one follows, and `shown` marks those that are shown.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

from octavo.app.chat.store_records import ChatRecord
from octavo.app.chat.types import Chat, Message, Preset

FORMAT = "octavo-chats"
VERSION = 1
NAME_LENGTH = 60
_UNSAFE = re.compile(r'[\x00-\x1f<>:"/\\|?*\u200e\u200f\u202a-\u202e]+')
_RESERVED = re.compile(r"(?i)(con|prn|aux|nul|com\d|lpt\d)")  # names that Windows keeps for devices


def json_pieces(records: Iterable[ChatRecord], presets: Iterable[Preset] = ()) -> Iterator[str]:
    """The file in pieces, a chat at a time."""
    head = {"format": FORMAT, "version": VERSION, "exported": _time(datetime.now(UTC).timestamp())}
    head["presets"] = [{"name": p.name, "system": p.system, "sampling": dict(p.sampling)} for p in presets]  # type: ignore[assignment]
    yield json.dumps(head, ensure_ascii=False, indent=1)[:-2] + ',\n "chats": ['
    for number, record in enumerate(records):
        yield (",\n" if number else "\n") + json.dumps(chat_to_json(record), ensure_ascii=False, indent=1)
    yield "\n ]\n}\n"


def chat_to_json(record: ChatRecord) -> dict[str, Any]:
    chat, settings = record.chat, record.settings
    active = set(record.active)
    values: dict[str, Any] = {
        "id": chat.id,
        "title": chat.title,
        "created": _time(chat.created_s),
        "updated": _time(chat.updated_s),
        "model": chat.model,
        "pinned": chat.pinned,
        "folder": chat.folder,
        "tags": list(chat.tags),
        "system": settings.system,
        "sampling": dict(settings.sampling),
        "options": dict(settings.options),
        "messages": [_message_to_json(message, message.id in active) for message in record.messages],
    }
    return _without_empty(values, keep=("id", "title", "messages"))


def markdown(chat: Chat) -> str:
    """The branch that is shown, to be read: texts as they were written, without the reasoning."""
    lines = [f"# {chat.title or 'Chat'}", ""]
    if chat.system:
        lines += ["## System", "", chat.system, ""]
    for message in chat.messages:
        who = "You" if message.role == "user" else message.model or "Reply"
        lines += [f"## {who} · {_minute(message.created_s)}" if message.created_s else f"## {who}", ""]
        lines += [f"- attached: {file.name}" for file in message.attachments]
        lines += [""] if message.attachments else []
        lines += [message.content, ""]
    return "\n".join(lines)


def file_name(title: str, suffix: str, taken: set[str] | None = None) -> str:
    """A name for a file that every system takes, numbered where it is in `taken`, to which it is added."""
    name = " ".join(_UNSAFE.sub(" ", title).split()).strip(" .")[:NAME_LENGTH].strip(" .") or "chat"
    if _RESERVED.fullmatch(name.split(".")[0]):
        name = f"_{name}"
    wanted, number = f"{name}{suffix}", 1
    while taken is not None and wanted.casefold() in taken:
        number += 1
        wanted = f"{name} ({number}){suffix}"
    if taken is not None:
        taken.add(wanted.casefold())
    return wanted


def _message_to_json(message: Message, shown: bool) -> dict[str, Any]:
    values: dict[str, Any] = {
        "id": message.id,
        "after": message.parent_id,
        "role": message.role,
        "text": message.content,
        "reasoning": message.reasoning,
        "status": message.status if message.status != "complete" else None,
        "error": message.error,
        "model": message.model,
        "created": _time(message.created_s),
        "stats": asdict(message.stats) if message.stats is not None else None,
        "attachments": [asdict(file) for file in message.attachments],
        "shown": shown,
    }
    return _without_empty(values, keep=("id", "role", "text"))


def _without_empty(values: dict[str, Any], *, keep: tuple[str, ...]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value or name in keep}


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat().replace("+00:00", "Z")


def _minute(seconds: float) -> str:
    return datetime.fromtimestamp(seconds).strftime("%Y-%m-%d %H:%M")
