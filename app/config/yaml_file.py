"""Reads a YAML file into plain values that know their line, and says in words why one does not parse."""

from __future__ import annotations

import codecs
import io
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap, CommentedSeq, TaggedScalar
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.reader import ReaderError
from ruamel.yaml.scanner import RoundTripScanner

from octavo.app.config.errors import ConfigError, Problem

_BYTE_ORDER_MARKS = {
    codecs.BOM_UTF32_LE: "UTF-32",
    codecs.BOM_UTF32_BE: "UTF-32",
    codecs.BOM_UTF16_LE: "UTF-16",
    codecs.BOM_UTF16_BE: "UTF-16",
}

_MOST_LEVELS = 64  # of lists and sections in each other
_HEAD = 2048  # bytes that tell the encoding
_MOST_BITS = 8192  # of a whole number; Python cannot write much larger ones into a message


@dataclass(frozen=True, slots=True)
class YamlFile:
    """A parsed file: `values` section -> key -> value, and the line (from 1) of each dotted key."""

    values: dict[str, Any]
    lines: dict[str, int] = field(default_factory=dict)
    is_empty: bool = False


def read_text(path: Path) -> str:
    """The file's text: UTF-8 with or without a byte order mark. Raises ConfigError for other encodings."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ConfigError((Problem(f"cannot be read ({error.strerror or error}).", str(path)),), path) from error
    encoding = next((name for mark, name in _BYTE_ORDER_MARKS.items() if data.startswith(mark)), None)
    if encoding is None and _is_utf16(data[:_HEAD]):
        encoding = "UTF-16"
    if encoding is not None:
        problem = Problem(
            f"is saved as {encoding}. Save it as UTF-8 (in the editor: Save as, encoding UTF-8).", str(path)
        )
        raise ConfigError((problem,), path)
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        found = f"byte 0x{data[error.start]:02x} is not UTF-8. Save the file as UTF-8 (in the editor: Save as)."
        raise ConfigError((Problem(found, str(path), line=line),), path) from error


def _is_utf16(head: bytes) -> bool:
    """Whether zeros fill much of one half of the byte pairs, as in UTF-16 without a mark. A stray zero, or a file of
    nothing else as a power cut leaves it, is left to YAML's reader, which names the character."""
    fewer, more = sorted((head[0::2].count(0), head[1::2].count(0)))
    return more > 1 and more * 8 >= len(head) and more >= 2 * fewer


class _Scanner(RoundTripScanner):
    """Stops where lists and sections stand too deep in each other, which its parent needs seconds to find out."""

    def fetch_flow_collection_start(self, *arguments: Any, **named: Any) -> None:
        if self.flow_level >= _MOST_LEVELS:
            raise RecursionError
        super().fetch_flow_collection_start(*arguments, **named)

    def add_indent(self, column: int) -> bool:
        if len(self.indents) >= _MOST_LEVELS:
            raise RecursionError
        return bool(super().add_indent(column))


def read_yaml(path: Path) -> YamlFile:
    """Parses config.yaml. Sections without content count as empty; `x-` keys are left out. Raises ConfigError."""
    return read_yaml_text(read_text(path), path)


def read_yaml_text(text: str, path: Path) -> YamlFile:
    """The same for text that stands, or will stand, in `path`."""
    tree = parse(text, path)
    if tree is None:
        return YamlFile({}, is_empty=True)
    if not isinstance(tree, CommentedMap):
        kind = "a list" if isinstance(tree, CommentedSeq) else "a single value"
        raise ConfigError((Problem(f"must hold sections such as `model:`, found {kind}.", str(path), line=1),), path)
    values: dict[str, Any] = {}
    lines: dict[str, int] = {}
    problems: list[Problem] = []
    for section, content in tree.items():
        if not _is_plain_key(section, str(path), _line(tree, section), problems) or section.startswith("x-"):
            continue
        lines[section] = _line(tree, section)
        if content is None:
            values[section] = {}
        elif isinstance(content, CommentedMap):
            values[section] = {}
            for name, value in content.items():
                line = _line(content, name, lines[section])
                if not _is_plain_key(name, str(path), line, problems) or name.startswith("x-"):
                    continue
                lines[f"{section}.{name}"] = line
                values[section][name] = _plain(value)
        else:
            values[section] = _plain(content)
    if problems:
        raise ConfigError(tuple(problems), path)
    return YamlFile(values, lines)


def parse(text: str, path: Path) -> Any:
    """The round-trip tree of one YAML document. Raises ConfigError with line, column and a hint."""
    yaml = YAML(typ="rt")
    yaml.Scanner = _Scanner
    try:
        return yaml.load(io.StringIO(text))
    except ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        character = error.character if isinstance(error.character, int) else ord(error.character)
        problem = Problem(f"the character U+{character:04X} is not allowed in YAML; remove it.", str(path), line=line)
        raise ConfigError((problem,), path) from error
    except MarkedYAMLError as error:
        raise ConfigError((_syntax_problem(error, text, path),), path) from error
    except YAMLError as error:
        raise ConfigError((Problem(f"is not valid YAML ({error}).", str(path)),), path) from error
    except RecursionError as error:
        problem = Problem("is nested too deep; settings are sections with keys below them.", str(path))
        raise ConfigError((problem,), path) from error
    except (ValueError, OverflowError) as error:  # a number or a date that Python cannot hold
        problem = Problem("holds a number or a date that cannot be read; shorten it or put it in quotes.", str(path))
        raise ConfigError((problem,), path) from error


def _syntax_problem(error: MarkedYAMLError, text: str, path: Path) -> Problem:
    mark = error.problem_mark or error.context_mark
    row, column = (mark.line, mark.column) if mark else (0, 0)
    what = (error.problem or "is not valid YAML").strip()
    lines = text.splitlines()
    source = lines[row] if row < len(lines) else ""
    if "\t" in what or source[: column + 1].strip(" ").startswith("\t") or "'\\t'" in what:
        message = "a tab is used as indentation; YAML allows only spaces. Replace it by two spaces."
    elif "escape" in what:
        message = (
            f"a backslash in double quotes begins an escape ({what}). Write a Windows path in single quotes "
            r"('C:\Users\me\model') or with / ."
        )
    elif "duplicate key" in what:
        name = what.split('"')[1] if '"' in what else ""
        message = f"the key {name!r} is there twice; remove one."
    elif "another document" in what:
        message = "a second document begins here (---); keep one."
    elif "mapping values" in what:
        message = "a colon is not allowed here. Put a text that holds `: ` in quotes, and each key on its own line."
    else:
        message = f"is not valid YAML: {what}."
    return Problem(message, str(path), line=row + 1, column=column + 1)


def _is_plain_key(key: object, where: str, line: int, problems: list[Problem]) -> bool:
    if isinstance(key, str):
        return True
    problems.append(Problem(f"a key must be a word, found {key!r}.", where, line=line))
    return False


def _line(mapping: CommentedMap, key: Any, fallback: int = 1) -> int:
    try:
        return int(mapping.lc.key(key)[0]) + 1
    except (KeyError, AttributeError, TypeError):  # a key that came in through a merge (<<) has no place of its own
        return fallback


def _plain(value: Any) -> Any:
    """ruamel's carriers of quotes and notation as the plain values they stand for; unknown tags stay visible."""
    if isinstance(value, TaggedScalar):
        return value
    if isinstance(value, (CommentedMap, dict)):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, (CommentedSeq, list)):
        return [_plain(item) for item in value]
    if isinstance(value, bool) or value is None:
        return value
    if isinstance(value, int) and value.bit_length() > _MOST_BITS:
        return math.inf if value > 0 else -math.inf
    for kind in (str, int, float):
        if isinstance(value, kind):
            return kind(value)
    return bool(value) if type(value).__name__ == "ScalarBoolean" else value
