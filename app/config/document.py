"""What is generated from the model of config.yaml: the commented example file and the JSON schema."""

from __future__ import annotations

import json
import textwrap
from typing import Any

from octavo.app.config import schema

_UNBREAKABLE = "\u00a0"
_HEAD = """\
# Octavo's settings. Whatever is left out has the default shown here; keys beginning with x- are kept and ignored.
# In brackets: when a change takes effect. Flags and environment variables (OCTAVO_SERVER__PORT=80) go before this file.
# `octavo config check` checks it, `octavo config show` prints what is in force and where each value came from.
"""


def example_text() -> str:
    """config.yaml with every key, its default and its description: the first start's file and config.example.yaml."""
    parts = [_HEAD]
    for section, model in schema.sections().items():
        summary = (model.__doc__ or "").strip().replace("\n    ", " ")
        parts.append("\n" + _comment(summary, "") + f"{section}:\n")
        for name, field in model.model_fields.items():
            note = f"{field.description} [{schema.applies(f'{section}.{name}').replace(' ', _UNBREAKABLE)}]"
            parts.append(_comment(note, "  ") + f"  {name}: {_scalar(field.default)}\n")
    return "".join(parts)


def json_schema() -> dict[str, Any]:
    """The JSON schema of config.yaml, for editors that complete and check it."""
    document = schema.Config.model_json_schema(mode="validation")
    for part in (document, *document.get("$defs", {}).values()):
        part["patternProperties"] = {"^x-": {}}
        for prop in part["properties"].values():
            prop.pop("not_here", None)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **document, "title": "Octavo's config.yaml"}


def json_schema_text() -> str:
    return json.dumps(json_schema(), indent=2, ensure_ascii=False) + "\n"


def _comment(text: str, indent: str) -> str:
    mark = f"{indent}# "
    filled = textwrap.fill(text, 118, initial_indent=mark, subsequent_indent=mark, break_on_hyphens=False)
    return filled.replace(_UNBREAKABLE, " ") + "\n"


def _scalar(value: object) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, tuple):
        return "[]"
    return f"{value:g}" if isinstance(value, float) else str(value)
