"""Which sampling values a reply gets.

A value is the request's, else the chat's, else the settings', else the model's own, else one of ours.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from octavo.engine.request import SamplingParams

Values = Mapping[str, object]
Source = Literal["settings", "model", "octavo"]

PAGE_DEFAULTS: Values = {"temperature": 0.7, "top_p": 0.95}
API_DEFAULTS: Values = {"temperature": 1.0, "top_p": 1.0}  # OpenAI's

ANY_VOCABULARY = 2**31 - 1  # for values that are checked before there is a model


@dataclass(frozen=True, slots=True)
class ChatField:
    """A sampling value that a chat can set for itself: what it is where nobody says anything, the range of its slider,
    and the least and most it may be (as in `engine.sample.fields`; None: no such bound)."""

    default: float | None
    low: float = 0.0
    high: float = 1.0
    step: float = 0.05
    least: float | None = None
    most: float | None = None


CHAT_FIELDS: Mapping[str, ChatField] = {  # in the page's order
    "temperature": ChatField(1.0, 0.0, 2.0, least=0, most=5),
    "top_p": ChatField(1.0, 0.05, 1.0, least=0.001, most=1),
    "top_k": ChatField(0, 0, 200, 1, least=-1),
    "min_p": ChatField(0.0, 0.0, 0.5, 0.01, least=0, most=1),
    "repetition_penalty": ChatField(1.0, 0.5, 2.0, least=0.01, most=10),
    "presence_penalty": ChatField(0.0, -2.0, 2.0, 0.1, least=-2, most=2),
    "frequency_penalty": ChatField(0.0, -2.0, 2.0, 0.1, least=-2, most=2),
    "max_tokens": ChatField(None, 1, 8192, 1, least=1),
    "seed": ChatField(None, 0, 0, 1),
    "stop": ChatField(None, 0, 0, 0),
}


@dataclass(frozen=True, slots=True)
class Inherited:
    """What a chat's value is while the chat says nothing, and whose word that is."""

    value: object
    source: Source


def sampling_params(
    request: Values,
    *,
    chat: Values | None = None,
    settings: Values | None = None,
    model: Values | None = None,
    ours: Values = PAGE_DEFAULTS,
    vocab_size: int = ANY_VOCABULARY,
    allow_zero_tokens: bool = False,
) -> SamplingParams:
    """The values of a reply, put together from all who have a say. Raises RequestError naming the wrong one."""
    from octavo.engine.sample.fields import make_params, usable_defaults  # brings torch: the page is up before it

    usable, _ = usable_defaults(model or {}, vocab_size=vocab_size)
    defaults = layered(chat or {}, settings or {}, usable, ours)
    return make_params(request, vocab_size=vocab_size, defaults=defaults, allow_zero_tokens=allow_zero_tokens)


def inherited(settings: Values, model: Values | None) -> dict[str, Inherited]:
    """For each field of a chat: its value without the chat's own. `model` is None while none is loaded."""
    usable: Values = {}
    if model is not None:
        from octavo.engine.sample.fields import usable_defaults

        usable, _ = usable_defaults(model, vocab_size=ANY_VOCABULARY)
    layers: tuple[tuple[Source, Values], ...] = (
        ("settings", settings),
        ("model", usable),
        ("octavo", PAGE_DEFAULTS),
        ("octavo", {name: field.default for name, field in CHAT_FIELDS.items()}),
    )
    found: dict[str, Inherited] = {}
    for name in CHAT_FIELDS:
        source, value = next(
            ((source, layer[name]) for source, layer in layers if layer.get(name) is not None), ("octavo", None)
        )
        found[name] = Inherited(value, source)
    return found


def layered(*layers: Values) -> dict[str, object]:
    """The first value that is not null for every name, the most special layer first."""
    values: dict[str, object] = {}
    for layer in layers:
        for name, value in layer.items():
            if value is not None:
                values.setdefault(name, value)
    return values
