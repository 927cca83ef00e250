"""Changes values in config.yaml and nothing else: comments, order, quotes, spacing and line ends stay as they are."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from octavo.app.config import schema
from octavo.app.config.check import check
from octavo.app.config.document import example_text
from octavo.app.config.errors import ConfigError, Problem
from octavo.app.config.files import write_atomically
from octavo.app.config.sizes import Size
from octavo.app.config.yaml_file import YamlFile, read_text, read_yaml_text

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


def save(path: Path, changes: Mapping[str, object]) -> None:
    """Sets dotted keys (`server.port`) in the file; a file that is not there is written with all its comments first.

    The result is checked as a whole before anything is written, and the write is atomic. Raises ConfigError.
    """
    unknown = [key for key in changes if key not in schema.fields()]
    if unknown:
        raise ConfigError((Problem("is not a known key.", str(path), unknown[0]),), path)
    exists = path.exists()
    mark = _BYTE_ORDER_MARK if exists and path.read_bytes().startswith(_BYTE_ORDER_MARK) else b""
    text = read_text(path) if exists else example_text()
    before = read_yaml_text(text, path)
    plain = {dotted: _plain(value) for dotted, value in changes.items()}
    expected = _merged(before, plain)
    check(expected, lambda dotted: (str(path), before.lines.get(dotted)), path)
    ends = "\r\n" if "\r\n" in text else "\n"
    try:
        for dotted, value in plain.items():
            section, name = dotted.split(".")
            text = _with_value(text, section, name, _as_yaml(value), ends)
        is_right = read_yaml_text(text, path).values == expected
    except (ConfigError, YAMLError):
        is_right = False
    if not is_right:
        problem = Problem("is written in a way that Octavo cannot change safely; change it in an editor.", str(path))
        raise ConfigError((problem,), path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, mark + text.encode("utf-8"))
    except OSError as error:
        raise ConfigError((Problem(f"cannot be written ({error.strerror or error}).", str(path)),), path) from error


def _plain(value: object) -> object:
    if isinstance(value, Size):
        return str(value)
    return [_plain(item) for item in value] if isinstance(value, (tuple, list)) else value


def _merged(file: YamlFile, changes: Mapping[str, object]) -> dict[str, Any]:
    merged = {name: dict(value) if isinstance(value, dict) else value for name, value in file.values.items()}
    for dotted, value in changes.items():
        section, name = dotted.split(".")
        if isinstance(content := merged.setdefault(section, {}), dict):
            content[name] = value
    return merged


def _as_yaml(value: object) -> str:
    """A value on one line. Text is quoted where YAML would read something else; single quotes keep backslashes."""
    if isinstance(value, list):
        return "[" + ", ".join(_as_yaml(item) for item in value) + "]"
    if not isinstance(value, str):
        return json.dumps(value)
    plain = value and value == value.strip() and not set(value) & set("#,[]{}&*!|>'\"%@`\\") and ": " not in value
    if plain and value[-1] != ":" and value[0] not in "-?:=<" and YAML(typ="safe", pure=True).load(value) == value:
        return value
    return "'" + value.replace("'", "''") + "'"


def _with_value(text: str, section: str, name: str, value: str, ends: str) -> str:
    """The text with one key set: its value replaced in place, or a line added at the end of its section."""
    root = YAML(typ="rt").compose(text)
    if not isinstance(root, MappingNode):
        return _at_end(text, section, name, value, ends)
    found = _find(root, section)
    if found is None:
        if root.flow_style:
            return _into_flow(text, root, f"{section}: {{{name}: {value}}}")
        return _at_end(text, section, name, value, ends)
    section_key, content = found
    if not isinstance(content, MappingNode):  # an empty section
        if _is_empty(content):
            return _line_after(text, section_key.end_mark.index, f"  {name}: {value}", ends)
        return _replace(text, content.start_mark.index, content.end_mark.index, f"{{{name}: {value}}}")
    pair = _find(content, name)
    if pair is None:
        if content.flow_style:
            return _into_flow(text, content, f"{name}: {value}")
        indent = " " * content.value[0][0].start_mark.column
        return _line_after(text, _end(content), f"{indent}{name}: {value}", ends)
    key, old = pair
    after_colon = text.index(":", key.end_mark.index) + 1
    if _is_empty(old):
        return _replace(text, after_colon, after_colon, f" {value}")
    if isinstance(old, (MappingNode, SequenceNode)) and not old.flow_style:
        return _replace(text, after_colon, _end(old), f" {value}")
    return _replace(text, old.start_mark.index, old.end_mark.index, value)


def _find(mapping: MappingNode, name: str) -> tuple[Node, Node] | None:
    return next(((key, value) for key, value in mapping.value if key.value == name), None)


def _is_empty(node: Node) -> bool:
    return isinstance(node, ScalarNode) and node.start_mark.index == node.end_mark.index


def _end(node: Node) -> int:
    """Where a node's last word ends; a block's own end mark stands behind the comments that follow it."""
    if isinstance(node, (MappingNode, SequenceNode)) and not node.flow_style and node.value:
        last = node.value[-1]
        if isinstance(last, tuple):
            return _end(last[0]) + 1 if _is_empty(last[1]) else _end(last[1])
        return _end(last)
    return int(node.end_mark.index)


def _replace(text: str, start: int, end: int, new: str) -> str:
    return text[:start] + new + text[end:]


def _into_flow(text: str, mapping: MappingNode, pair: str) -> str:
    place = mapping.end_mark.index - 1
    return _replace(text, place, place, f", {pair}" if mapping.value else pair)


def _line_after(text: str, index: int, line: str, ends: str) -> str:
    newline = text.find("\n", index)
    if newline < 0:
        return text + ends + line + ends
    return _replace(text, newline + 1, newline + 1, line + ends)


def _at_end(text: str, section: str, name: str, value: str, ends: str) -> str:
    gap = "" if not text or text.endswith("\n") else ends
    return f"{text}{gap}{section}:{ends}  {name}: {value}{ends}"
