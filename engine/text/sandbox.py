"""Chat templates run as untrusted code. Knows jinja and what templates expect to find in it, no tokenizer."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from datetime import datetime
from typing import Any

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from octavo.engine.errors import OctavoError


class TemplateFailure(OctavoError):
    """A template does not compile, or refuses what it was given; the message is its own."""


class CompiledTemplate:
    """A chat template that sees plain JSON values only and cannot change them."""

    def __init__(self, source: str) -> None:
        """Raises TemplateFailure if `source` is not a jinja template."""
        try:
            self._template = _environment().from_string(source)
        except (jinja2.TemplateError, RecursionError) as error:
            raise TemplateFailure(_one_line(error)) from error

    def render(self, variables: Mapping[str, Any]) -> str:
        """Raises TemplateFailure whatever goes wrong inside the template."""
        try:
            return self._template.render(variables)
        except Exception as error:  # a template is a program: it can raise anything
            raise TemplateFailure(_one_line(error)) from error


def plain(value: Any) -> Any:
    """A copy made of dict, list, str, int, float, bool and None only; anything else becomes its type's name."""
    match value:
        case None | bool():
            return value
        case str():
            return str.__str__(value)
        case int():
            return int(value)
        case float():
            return float(value)
        case Mapping():
            return {str(key): plain(item) for key, item in value.items()}
        case list() | tuple():
            return [plain(item) for item in value]
        case _:
            return f"<{type(value).__name__}>"


class _GenerationTag(jinja2.ext.Extension):
    """`{% generation %}` marks the assistant's text for training; here it is just its body."""

    tags = {"generation"}  # noqa: RUF012 - jinja's own way of declaring it

    def parse(self, parser: jinja2.parser.Parser) -> list[jinja2.nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[jinja2.ext.loopcontrols, _GenerationTag]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise
    environment.globals["strftime_now"] = _now
    return environment


def _raise(message: str) -> str:
    raise jinja2.TemplateError(message)


def _now(form: str) -> str:
    return datetime.now().strftime(form)


def _to_json(
    value: Any, ensure_ascii: bool = False, indent: int | None = None, separators: Any = None, sort_keys: bool = False
) -> str:
    """As models were trained: not escaped for HTML, unlike jinja's own filter. Noncharacters stay what they are."""
    text = json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
    return re.sub(r"\\u(fd[de][0-9a-f])", lambda match: chr(int(match[1], 16)), text) if ensure_ascii else text


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__
