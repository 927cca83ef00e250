"""Finds in the source every sentence that an error or a notice can have."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

ROOT = Path(__file__).parents[3]
PACKAGES = ("app", "engine")
# Only programs and terminals see these: the API's answers, the command line, what keeps the server from starting.
NOT_ON_THE_PAGE = (
    *("app/api", "app/cli.py", "app/doctor.py", "app/ports.py", "app/start.py", "app/shortcut.py", "app/window.py"),
    *("app/guards.py", "app/ui/door.py", "engine/bench", "engine/text/messages.py", "engine/quant/calibrate"),
    *("app/quantize", "engine/load/write"),
)
REFUSALS = ("why_not_foreign",)  # functions that return the reason for an error
OF_A_FILE = ("_error", "_fail")  # helpers that make a CheckpointError of a file
_PLACE = re.compile(r"\{[^{}]*\}")


def pattern(template: str) -> str:
    """A template with its places unnamed: what two templates for the same sentences have in common."""
    return _PLACE.sub("{}", template)


def sentences() -> Iterator[tuple[str, str]]:
    """(where, template) of each."""
    trees = {path: ast.parse(path.read_text(encoding="utf-8")) for path in _sources()}
    constants = _constants(trees.values())
    errors = _subclasses(trees.values(), "OctavoError")
    for path, tree in trees.items():
        name = path.relative_to(ROOT).as_posix()
        if name.startswith(NOT_ON_THE_PAGE):
            continue
        for node in ast.walk(tree):
            for part in _spoken(node, errors, in_panels=name.startswith("app/ui/")):
                for template in _templates(constants.get(_name(part), part)):
                    yield f"{name}:{part.lineno}", template


def _sources() -> list[Path]:
    return [path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))]


def _subclasses(trees: object, base: str) -> set[str]:
    parents: dict[str, list[str]] = {}
    for tree in trees:  # type: ignore[attr-defined]
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                parents[node.name] = [_name(parent) for parent in node.bases]
    found = {base}
    while more := {name for name, bases in parents.items() if name not in found and found & set(bases)}:
        found |= more
    return found


def _constants(trees: Iterable[ast.Module]) -> dict[str, ast.expr]:
    """Sentences that a module keeps under a name, by that name."""
    return {
        _name(node.targets[0]): node.value
        for tree in trees
        for node in tree.body
        if isinstance(node, ast.Assign) and _name(node.targets[0]).isupper()
    }


def _spoken(node: ast.AST, errors: set[str], *, in_panels: bool) -> Iterator[ast.expr]:
    """The arguments of a call that make sentences."""
    if isinstance(node, ast.ClassDef) and node.name in errors:
        yield from (inner.value for inner in node.body if isinstance(inner, ast.Assign))
        for inner in ast.walk(node):
            is_init = isinstance(inner, ast.Call) and _name(inner.func) == "__init__"
            if isinstance(inner, ast.Call) and is_init:
                yield from _of_error(inner)
    if isinstance(node, ast.FunctionDef) and ("notice" in node.name or node.name in REFUSALS):
        yield from (inner.value for inner in ast.walk(node) if isinstance(inner, ast.Return) and inner.value)
    if isinstance(node, ast.Assign) and any("notice" in _name(target) for target in node.targets):
        yield node.value
    if not isinstance(node, ast.Call):
        return
    name = _name(node.func)
    if name in OF_A_FILE and len(node.args) > 1 and ast.unparse(node.args[0]) in ("path", "self.path"):
        yield _of_a_file(node.args[1])
    elif name in errors:
        yield from _of_error(node)
    elif name == "ApiError" and in_panels:
        yield from node.args[1:2]
    elif name == "append" and isinstance(node.func, ast.Attribute) and "notices" in ast.dump(node.func.value):
        yield from node.args


def _of_a_file(what: ast.expr) -> ast.expr:
    """The helpers of file formats put the file's name before, and a full stop behind."""
    parts = what.values if isinstance(what, ast.JoinedStr) else [what]
    name = ast.FormattedValue(ast.Name("file"), -1)
    return ast.copy_location(ast.JoinedStr([name, ast.Constant(" "), *parts, ast.Constant(".")]), what)


def _of_error(call: ast.Call) -> Iterator[ast.expr]:
    yield from call.args[:1]
    yield from (keyword.value for keyword in call.keywords if keyword.arg == "remedy")


def _templates(node: ast.expr) -> Iterator[str]:
    """The texts an expression can have, as far as it says them itself. One without a space is a code, or a name."""
    if isinstance(node, ast.IfExp):
        yield from _templates(node.body)
        yield from _templates(node.orelse)
    elif isinstance(node, ast.Tuple):
        for element in node.elts:
            yield from _templates(element)
    elif isinstance(node, ast.Constant) and isinstance(node.value, str):
        if " " in node.value:
            yield node.value
    elif isinstance(node, ast.JoinedStr):
        parts = [part.value if isinstance(part, ast.Constant) else "{}" for part in node.values]
        text = "".join(map(str, parts))
        if re.search("[A-Za-z]", text.replace("{}", "")) and " " in text:
            yield text


def _name(node: ast.expr) -> str:
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""
