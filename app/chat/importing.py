"""Chats from files: our own exports, and what ChatGPT's export has in conversations.json.

Reading is tolerant: what is not understood is left out, and what cannot be a chat at all is a NotAChatError that names
the reason. Turns keep their ids, so that the same file brings nothing twice.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import fields, replace
from datetime import datetime
from typing import Any

from octavo.app.chat.cuts import SENTENCES
from octavo.app.chat.errors import ChatError
from octavo.app.chat.import_chatgpt import is_chatgpt, read_chatgpt
from octavo.app.chat.sampling import sampling_params
from octavo.app.chat.store_records import ChatRecord
from octavo.app.chat.titles import make_title
from octavo.app.chat.types import (
    TEMPORARY,
    Attachment,
    Chat,
    ChatSettings,
    Message,
    MessageStatus,
    Preset,
    ReplyStats,
    Role,
)
from octavo.app.text import without_halves
from octavo.engine.errors import OctavoError

ROLES: tuple[Role, ...] = ("user", "assistant")
STATUSES: tuple[MessageStatus, ...] = ("complete", "stopped", "failed")


class NotAChatError(ChatError):
    """Something in a file that is no chat of a known form."""

    def __init__(self, reason: str) -> None:
        super().__init__(
            f"This is no chat that can be read: {reason}.",
            remedy="Choose a file that was exported from Octavo, or ChatGPT's conversations.json.",
            code="not_a_chat",
        )


def read_chat(value: object) -> ChatRecord:
    """A chat out of a file of either kind. Raises NotAChatError."""
    if not isinstance(value, dict):
        raise NotAChatError("it is not a JSON object")
    if is_chatgpt(value):
        record = read_chatgpt(value)
    elif isinstance(value.get("messages"), list):
        record = _read_ours(value)
    else:
        raise NotAChatError("it has no messages")
    if not record.messages and not record.chat.title:
        raise NotAChatError("it is empty")
    return record


def read_presets(value: object) -> list[Preset]:
    """The presets of a file of ours; those without a name are left out."""
    presets = [item for item in _list(value) if isinstance(item, dict) and text(item.get("name")).strip()]
    return [
        Preset("", make_title(text(item["name"])), text(item.get("system")), _usable(item.get("sampling")))
        for item in presets
    ]


def _read_ours(value: Mapping[str, Any]) -> ChatRecord:
    chat_id = text(value.get("id"))
    if not chat_id or len(chat_id) > 64 or chat_id.startswith(TEMPORARY):
        chat_id = hashlib.sha256(repr(value).encode("utf-8", "replace")).hexdigest()[:16]
    messages: list[Message] = []
    active: list[str] = []
    known: set[str] = set()
    for number, item in enumerate(value["messages"]):
        message = _read_message(item, chat_id, number) if isinstance(item, dict) else None
        if message is None or message.id in known:
            continue
        if message.parent_id not in known:  # lost, or never there: a list without ids is one turn after the other
            message = replace(message, parent_id=messages[-1].id if messages and "id" not in item else None)
        known.add(message.id)
        messages.append(message)
        if item.get("shown"):
            active.append(message.id)
    chat = Chat(
        id=chat_id,
        title=make_title(text(value.get("title"))),
        created_s=seconds(value.get("created")),
        updated_s=seconds(value.get("updated")) or seconds(value.get("created")),
        pinned=value.get("pinned") is True,
        folder=make_title(text(value.get("folder"))),
        tags=tuple(make_title(tag) for tag in _list(value.get("tags")) if isinstance(tag, str)),
        model=text(value.get("model")) or None,
    )
    settings = ChatSettings(
        system=text(value.get("system")), sampling=_usable(value.get("sampling")), options=_object(value.get("options"))
    )
    return ChatRecord(chat, settings, tuple(messages), tuple(active))


def _read_message(item: Mapping[str, Any], chat_id: str, number: int) -> Message | None:
    role = next((role for role in ROLES if role == item.get("role")), None)
    if role is None:
        return None
    status = next((status for status in STATUSES if status == item.get("status")), STATUSES[0])
    error = text(item.get("error")) or None
    return Message(
        id=text(item.get("id"))[:64] or f"{chat_id}-{number}",
        chat_id=chat_id,
        role=role,
        content=text(item.get("text")),
        reasoning=text(item.get("reasoning")),
        status=status,
        error=error,
        error_code=next((cut for cut, sentence in SENTENCES.items() if sentence == error), None),
        stats=_read_stats(item.get("stats")),
        created_s=seconds(item.get("created")),
        parent_id=text(item.get("after")) or None,
        model=text(item.get("model")) or None,
        attachments=tuple(filter(None, map(_read_attachment, _list(item.get("attachments"))))),
    )


def _read_stats(value: object) -> ReplyStats | None:
    if not isinstance(value, dict):
        return None
    wanted = {field.name: field.type for field in fields(ReplyStats)}
    kept = {name: item for name, item in value.items() if name in wanted}
    for name, item in kept.items():
        number = isinstance(item, (int, float)) and not isinstance(item, bool)
        if not (number if name not in ("reason", "stopped_by") else item is None or isinstance(item, str)):
            return None
    try:
        return ReplyStats(**kept)
    except TypeError:  # a field is missing
        return None


def _read_attachment(value: object) -> Attachment | None:
    if not isinstance(value, dict) or not isinstance(value.get("text"), str):
        return None
    tokens = value.get("tokens")
    return Attachment(
        name=text(value.get("name"))[:200] or "file",
        type=text(value.get("type"))[:100] or "text/plain",
        tokens=tokens if isinstance(tokens, int) and not isinstance(tokens, bool) else 0,
        text=text(value["text"]),
    )


def _usable(value: object) -> dict[str, object]:
    """Sampling values without those that no reply could be made with."""
    usable: dict[str, object] = {}
    for name, item in _object(value).items():
        try:
            sampling_params({name: item})
        except OctavoError:
            continue
        usable[name] = item
    return usable


def text(value: object) -> str:
    return without_halves(value) if isinstance(value, str) else ""


def seconds(value: object) -> float:
    """A time as seconds since the epoch, from such a number or ISO 8601; 0 for anything else."""
    if isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < 1e11:
        return float(value)
    if isinstance(value, str):
        try:
            return datetime.fromisoformat(value).timestamp()
        except (ValueError, OverflowError, OSError):
            return 0.0
    return 0.0


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _object(value: object) -> dict[str, object]:
    return value if isinstance(value, dict) else {}
