"""A chat's own settings as the page sends and shows them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from octavo.app.api.body import Body, wrong
from octavo.app.api.errors import ApiError
from octavo.app.chat.context import overflow_of
from octavo.app.chat.sampling import CHAT_FIELDS
from octavo.app.chat.types import ChatSettings

LONGEST_SYSTEM = 200_000  # characters


def read_settings(value: object) -> ChatSettings:
    """The settings in a JSON value (null: none). What nobody knows is passed over. Raises ApiError."""
    if value is None:
        return ChatSettings()
    if not isinstance(value, Mapping):
        raise wrong("settings", value, "an object")
    fields = Body(value)
    system, preset = fields.text("system") or "", fields.text("preset")
    if len(system) > LONGEST_SYSTEM:
        raise ApiError(400, f"A system text can have {LONGEST_SYSTEM:,} characters at most.", param="system")
    sampling, options = _table(fields, "sampling"), _table(fields, "options")
    return ChatSettings(
        system=system.strip("\n"),
        preset=preset,
        sampling={name: sampling[name] for name in CHAT_FIELDS if sampling.get(name) is not None},
        options={"overflow": "stop"} if overflow_of(options) == "stop" else {},
    )


def _table(fields: Body, name: str) -> Mapping[str, Any]:
    value = fields.get(name) or {}
    if not isinstance(value, Mapping):
        raise wrong(name, value, "an object")
    return value


def as_json(settings: ChatSettings) -> dict[str, Any]:
    """The inverse of `read_settings`."""
    return {
        "system": settings.system,
        "preset": settings.preset,
        "sampling": dict(settings.sampling),
        "options": dict(settings.options),
    }
