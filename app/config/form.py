"""What a form needs to know of a key: which control, which values, which limits. Made from the one table of keys."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

from octavo.app.config import schema

Control = Literal["switch", "choice", "whole", "real", "text", "list", "secret", "size", "nothing"]


@dataclass(frozen=True, slots=True)
class KeyForm:
    """A key of config.yaml as a form shows it.

    `choices` are the values of a choice; `missing` those this version refuses, with the feature they need. A number may
    also be `auto` (`has_auto`) or left to the model (`has_none`). `above` and `least` are both lower limits, the first
    exclusive.
    """

    key: str
    control: Control
    default: Any
    about: str
    applies: schema.Applies
    choices: tuple[str, ...] = ()
    missing: Mapping[str, str] | None = None
    has_auto: bool = False
    has_none: bool = False
    least: float | None = None
    above: float | None = None
    most: float | None = None


@cache
def forms() -> dict[str, KeyForm]:
    """Every key, in the order of the file."""
    document = schema.Config.model_json_schema(mode="validation")
    defaults = schema.Config().model_dump(mode="json")
    found = {}
    for section, model in schema.sections().items():
        properties = document["$defs"][model.__name__]["properties"]
        for name, field in model.model_fields.items():
            key = f"{section}.{name}"
            found[key] = _form(key, properties[name], defaults[section][name], field.description or "")
    return found


def _form(key: str, prop: Mapping[str, Any], default: Any, about: str) -> KeyForm:
    kinds = [dict(part) for part in prop.get("anyOf", [prop])]
    main = next((part for part in kinds if part.get("type") != "null" and "const" not in part), kinds[0])
    has_auto = any(part.get("const") == "auto" for part in kinds if part is not main)
    missing = {name: feature for name, feature in schema.not_here(key).items() if name != "*"}
    return KeyForm(
        key,
        _control(main, default),
        default,
        about,
        schema.applies(key),
        choices=tuple(str(value) for value in main.get("enum", [main["const"]] if "const" in main else [])),
        missing=missing or None,
        has_auto=has_auto,
        has_none=any(part.get("type") == "null" for part in kinds if part is not main),
        least=main.get("minimum", main.get("ge")),
        above=main.get("exclusiveMinimum", main.get("gt")),
        most=main.get("maximum", main.get("le")),
    )


def _control(prop: Mapping[str, Any], default: Any) -> Control:
    kind = prop.get("type")
    if "enum" in prop or "const" in prop:
        return "choice"
    if kind == "string" and prop.get("writeOnly"):
        return "secret"
    if kind == "string" and default == "auto" and "B" in prop.get("pattern", ""):
        return "size"
    controls: dict[str, Control] = {"boolean": "switch", "integer": "whole", "number": "real", "array": "list"}
    return "nothing" if kind == "null" else controls.get(str(kind), "text")
