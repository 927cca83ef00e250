"""Which sampling values a reply gets.

A value is the request's, else the chat's, else the settings', else the model's own, else one of ours.
"""

from __future__ import annotations

from collections.abc import Mapping

from octavo.engine.request import SamplingParams

Values = Mapping[str, object]

PAGE_DEFAULTS: Values = {"temperature": 0.7, "top_p": 0.95}


def layered(*layers: Values) -> dict[str, object]:
    """The first value that is not null for every name, the most special layer first."""
    values: dict[str, object] = {}
    for layer in layers:
        for name, value in layer.items():
            if value is not None:
                values.setdefault(name, value)
    return values


def reply_params(
    *, chat: Values | None = None, settings: Values | None = None, model: Values | None = None
) -> SamplingParams:
    """The values of a chat's next reply. Raises RequestError naming the one that is out of range."""
    values = layered(chat or {}, settings or {}, model or {}, PAGE_DEFAULTS)
    known = {name: value for name, value in values.items() if name in SamplingParams.__slots__}
    return SamplingParams(**known)  # type: ignore[arg-type]


def make_params(values: Values) -> SamplingParams:
    known = {name: value for name, value in values.items() if name in SamplingParams.__slots__}
    return SamplingParams(**known)  # type: ignore[arg-type]
