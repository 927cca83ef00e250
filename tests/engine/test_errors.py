"""Errors are sentences that any encoding can carry, and say what to do."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator
from pathlib import Path

from octavo.engine.errors import CheckpointError, LoadError, ModelConfigError, UnsupportedModelError

ROOT = Path(__file__).parents[2]
NEEDS_NONE = {
    "ConfigError",  # each of its problems says what is allowed
    "FetchCancelledError",  # the user asked for it
    "LoadCancelled",
    "TemplateFailure",  # caught and told in other words
}
SAYS_ENOUGH = {  # (file, how the message begins)
    ("app/cli.py", "'Nothing was deleted.'"),  # the user answered no
    ("app/server.py", "failures[0]"),  # as the host words it, with its remedy
    ("app/library/inspect.py", "f'{path} cannot be loaded: '"),  # what it quotes brings its remedy along
    ("app/ui/panels/model_desk.py", "problem"),
}


def test_half_characters_quoted_from_a_file_are_replaced() -> None:
    error = CheckpointError("tensor \ud800 is unknown.", remedy="Fetch \udfff again.")
    assert str(error).encode("utf-8") == b"tensor ? is unknown. Fetch ? again."


def test_an_error_without_a_remedy_of_its_own_has_that_of_its_class() -> None:
    assert str(LoadError("It is not there.")) == "It is not there."
    assert "Choose another model" in str(UnsupportedModelError("It cannot run."))
    assert "config.json" in str(ModelConfigError("Its hidden_size is -1."))
    assert str(ModelConfigError("It has no length.", remedy="Add it.")) == "It has no length. Add it."


def test_every_error_says_what_to_do() -> None:
    trees = {path: ast.parse(path.read_text(encoding="utf-8")) for path in _sources()}
    errors = _error_classes(trees.values())
    assert {"UnsupportedModelError", "RequestError", "LibraryError", "ChatError"} <= errors.keys()
    made = [
        (path.relative_to(ROOT).as_posix(), node, ast.unparse(node.args[:1]))
        for path, tree in trees.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and _name(node.func) in errors
    ]
    assert len(made) > 300
    silent = [
        f"{where}:{call.lineno} {_name(call.func)}({message})"
        for where, call, message in made
        if not any(where == file and message.startswith(begins) for file, begins in SAYS_ENOUGH)
        and not _says_what_to_do(call, errors)
    ]
    assert silent == []


def _sources() -> list[Path]:
    return [path for package in ("app", "engine") for path in sorted((ROOT / package).rglob("*.py"))]


def _error_classes(trees: Collection[ast.Module]) -> dict[str, ast.ClassDef]:
    """Those derived from OctavoError, itself included, by name."""
    classes = {node.name: node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.ClassDef)}
    found = {"OctavoError": classes["OctavoError"]}
    while more := {
        name: node
        for name, node in classes.items()
        if name not in found and any(_name(base) in found for base in node.bases)
    }:
        found |= more
    return found


def _says_what_to_do(call: ast.Call, errors: dict[str, ast.ClassDef]) -> bool:
    if _gives_remedy(call) or "must be" in ast.unparse(call.args[:1]):
        return True
    for name in _line(_name(call.func), errors):
        if name in NEEDS_NONE:
            return True
        body = errors[name].body
        if any(isinstance(node, ast.Assign) and _name(node.targets[0]) == "default_remedy" for node in body):
            return True
        own = next((node for node in body if isinstance(node, ast.FunctionDef) and node.name == "__init__"), None)
        if own is not None and any(_gives_remedy(inner) for inner in _calls(own)):
            takes_it = any(argument.arg == "remedy" for argument in own.args.kwonlyargs)
            return not takes_it  # handed through: then it is for the caller to give
    return False


def _gives_remedy(call: ast.Call) -> bool:
    return any(
        keyword.arg == "remedy" and not (isinstance(keyword.value, ast.Constant) and not keyword.value.value)
        for keyword in call.keywords
    )


def _calls(node: ast.AST) -> Iterator[ast.Call]:
    return (inner for inner in ast.walk(node) if isinstance(inner, ast.Call))


def _line(name: str, errors: dict[str, ast.ClassDef]) -> list[str]:
    """A class and those errors that it is derived from, nearest first."""
    if name not in errors:
        return []
    return [name, *(higher for base in errors[name].bases for higher in _line(_name(base), errors))]


def _name(node: ast.expr) -> str:
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""
