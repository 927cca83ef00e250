"""Turns raw values into a checked `Config`, and every fault into a sentence: key, found, allowed or nearest name."""

from __future__ import annotations

import difflib
import types
import typing
from collections.abc import Callable, Mapping
from datetime import date
from pathlib import Path
from typing import Any, Literal

from pydantic import ValidationError
from ruamel.yaml.comments import TaggedScalar

from octavo.app.config import schema
from octavo.app.config.errors import ConfigError, Problem

SECRETS = frozenset({"server.api_key"})

Locate = Callable[[str], tuple[str, int | None]]  # dotted key -> (where it was set, its line)


def check(raw: Mapping[str, Any], locate: Locate, path: Path | None = None) -> schema.Config:
    """Validates section -> key -> value. Raises ConfigError listing every fault, in the order of the file."""
    try:
        return schema.Config.model_validate(dict(raw))
    except ValidationError as error:
        problems: dict[str, Problem] = {}
        for fault in error.errors(include_url=False):
            names = [part for part in fault["loc"][:2] if isinstance(part, str)]
            dotted = ".".join(names)
            if fault["type"] == "octavo_host":
                dotted = "server.host"
            where, line = locate(dotted)
            problems.setdefault(dotted, Problem(_explain(dotted, fault, raw), where, dotted, line))
        ordered = sorted(problems.values(), key=lambda problem: problem.line or 0)
        raise ConfigError(tuple(ordered), path) from None


def unknown_key(dotted: str) -> str:
    """What to say about a key nobody reads: where it belongs, or the nearest name."""
    known = schema.fields()
    section, _, name = dotted.partition(".")
    if not name and section not in schema.sections():
        homes = [key for key in known if key.endswith(f".{section}")]
        if homes:
            return f"is at the wrong level; it belongs under `{homes[0].split('.')[0]}:` ({' or '.join(homes)})."
        nearest = difflib.get_close_matches(section, [*schema.sections(), *known], 1, 0.6)
        if not nearest:
            nearest = _by_last_name(section, known)
        return _unknown(nearest, "sections are " + ", ".join(schema.sections()))
    if "." in section or dotted in known:
        return _unknown([dotted], "")
    elsewhere = [key for key in known if key.endswith(f".{name}")]
    if elsewhere:
        return f"is at the wrong level; it belongs under `{elsewhere[0].split('.')[0]}:` ({' or '.join(elsewhere)})."
    own = [key for key in known if key.startswith(f"{section}.")]
    nearest = difflib.get_close_matches(dotted, own, 1, 0.75) or _by_last_name(name, known)
    return _unknown(nearest, f"keys of {section} are " + ", ".join(key.split(".")[1] for key in own))


def allowed(dotted: str) -> str:
    """The values a key takes, in words."""
    return _allowed(schema.fields()[dotted].annotation, schema.fields()[dotted].metadata)


def _by_last_name(name: str, known: Mapping[str, Any]) -> list[str]:
    by_name = {key.split(".")[1]: key for key in known}
    return [by_name[match] for match in difflib.get_close_matches(name, by_name, 1, 0.75)]


def _unknown(nearest: list[str], otherwise: str) -> str:
    return f"is not a known key; did you mean {nearest[0]}?" if nearest else f"is not a known key; {otherwise}."


def _explain(dotted: str, fault: Any, raw: Mapping[str, Any]) -> str:
    kind, found = fault["type"], fault["input"]
    if kind == "extra_forbidden":
        if "." in fault["loc"][0]:
            section, _, name = str(fault["loc"][0]).partition(".")
            return f"is at the wrong level; write `{name}:` indented under `{section}:`."
        return unknown_key(dotted)
    if kind == "model_type":
        return f"is a section: put its keys on the lines below it, indented by two spaces; found {show(found)}."
    if kind == "octavo_host":
        return f"{raw['server'].get('host')!r} {fault['msg']}."
    if isinstance(found, (str, int, float)) and (feature := _missing_feature(dotted, str(found))):
        return f"cannot be {show(found)}: this version has no {feature}; allowed: {allowed(dotted)}."
    if dotted in SECRETS and kind in ("too_short", "string_too_short"):
        return "is empty; give it a value or leave the key out."
    if dotted in SECRETS and kind in ("too_long", "string_too_long"):
        return f"is longer than {schema.LONGEST_KEY} characters; take a shorter one."
    shown = "something else" if dotted in SECRETS else show(found)
    if kind == "octavo":
        return f"{fault['msg']}, found {shown}{_list_place(fault)}."
    if isinstance(found, TaggedScalar):
        return f"must not carry a YAML tag, found {show(found)}."
    return f"must be {allowed(dotted)}, found {shown}{_nearest_value(dotted, found)}"


def _missing_feature(dotted: str, found: str) -> str | None:
    missing = schema.not_here(dotted)
    return missing.get(found, missing.get("*"))


def _list_place(fault: Any) -> str:
    return f" (entry {fault['loc'][2] + 1})" if len(fault["loc"]) > 2 and isinstance(fault["loc"][2], int) else ""


def _nearest_value(dotted: str, found: object) -> str:
    choices = _choices(schema.fields()[dotted].annotation)
    nearest = difflib.get_close_matches(str(found), choices, 1, 0.6)
    return f"; did you mean {nearest[0]}?" if nearest else "."


def show(value: object) -> str:
    """A value as it may be repeated to the user: short, on one line."""
    if value is None:
        return "nothing (null)"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, TaggedScalar):
        return f"{value.tag}"
    if isinstance(value, date):
        return f"the date {value} (put it in quotes)"
    if isinstance(value, dict):
        return "keys of its own"
    if isinstance(value, (list, tuple)):
        return "a list"
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


def _choices(annotation: Any) -> list[str]:
    if typing.get_origin(annotation) is Literal:
        return [str(choice) for choice in typing.get_args(annotation)]
    return [choice for part in typing.get_args(annotation) for choice in _choices(part)]


def _allowed(annotation: Any, metadata: list[Any]) -> str:
    origin, parts = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Annotated:
        return _allowed(parts[0], [*parts[1:], *metadata])
    if origin is Literal:
        return " or ".join(part for part in (", ".join(map(str, parts[:-1])), str(parts[-1])) if part)
    if origin in (typing.Union, types.UnionType):
        return " or ".join(_allowed(part, metadata) for part in parts)
    if annotation in (None, type(None)):
        return "null"
    if origin is tuple:
        return "a list"
    if annotation is bool:
        return "true or false"
    if annotation in (int, float):
        return ("a whole number" if annotation is int else "a number") + _range(metadata)
    for limit in metadata:
        if getattr(limit, "pattern", None):
            return limit.pattern.strip("^$()").replace("|", ", ").replace(r"\d+", "N")
    return "text"


def _range(metadata: list[Any]) -> str:
    flat = [part for limit in metadata for part in getattr(limit, "metadata", [limit])]
    low = next((f"from {part.ge}" for part in flat if hasattr(part, "ge")), None)
    low = low or next((f"above {part.gt}" for part in flat if hasattr(part, "gt")), None)
    high = next((f"to {part.le}" for part in flat if hasattr(part, "le")), None)
    limits = " ".join(part for part in (low, high) if part)
    return f" {limits}" if limits else ""
