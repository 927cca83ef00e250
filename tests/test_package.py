"""The package as a whole: what is shipped, what may import what, and habits that every file must keep."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from fnmatch import fnmatch
from functools import cache
from pathlib import Path

REPOSITORY = Path(__file__).parents[1]
PROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))
SETUPTOOLS = PROJECT["tool"]["setuptools"]
ROOTS = ("app", "engine", "kernels", "assets")
NOT_FOR_THE_ENGINE = ("gradio", "bitsandbytes", "gguf", "platformdirs", "ruamel", "fastapi", "uvicorn", "pydantic")


def sources() -> Iterator[Path]:
    for root in ROOTS:
        yield from sorted(path for path in (REPOSITORY / root).rglob("*.py"))


def modules_of(root: str) -> list[str]:
    """Their full names."""
    paths = (path.relative_to(REPOSITORY).with_suffix("") for path in sorted((REPOSITORY / root).rglob("*.py")))
    return [f"octavo.{path.as_posix().replace('/', '.')}".removesuffix(".__init__") for path in paths]


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


@cache
def imported(path: Path) -> frozenset[str]:
    """Top-level names of everything a file imports, wherever in the file."""
    return frozenset(_imported(path))


def _imported(path: Path) -> Iterator[str]:
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module.split(".")[0]


def test_every_folder_with_code_is_a_declared_package() -> None:
    on_disk = {
        f"octavo.{path.parent.relative_to(REPOSITORY).as_posix().replace('/', '.')}"
        for root in ROOTS
        for path in (REPOSITORY / root).rglob("__init__.py")
    }
    assert set(SETUPTOOLS["packages"]) == on_disk
    assert SETUPTOOLS["package-dir"] == {f"octavo.{root}": root for root in ROOTS}
    without_init = {path.parent for path in sources()} - {
        p.parent for r in ROOTS for p in (REPOSITORY / r).rglob("__init__.py")
    }
    assert not without_init


def test_every_file_beside_the_code_is_shipped() -> None:
    for root in ROOTS:
        for path in (REPOSITORY / root).rglob("*"):
            if path.is_dir() or path.suffix in {".py", ".pyc"} or "__pycache__" in path.parts:
                continue
            owner = next(folder for folder in path.parents if (folder / "__init__.py").exists())
            package = f"octavo.{owner.relative_to(REPOSITORY).as_posix().replace('/', '.')}"
            patterns = SETUPTOOLS["package-data"].get(package, [])
            name = path.relative_to(owner).as_posix()
            assert any(fnmatch(name, pattern) for pattern in patterns), f"{path} is in no package-data of {package}"


def test_the_packages_are_typed() -> None:
    assert all((REPOSITORY / root / "py.typed").is_file() for root in ROOTS)


def test_every_third_party_import_is_a_declared_dependency() -> None:
    names = {"PIL": "pillow", "ruamel": "ruamel.yaml", "pynvml": "nvidia-ml-py", "markdown_it": "markdown-it-py"}
    names |= {"mdit_py_plugins": "mdit-py-plugins", "pygments": "pygments", "huggingface_hub": "huggingface-hub"}
    names |= {"prometheus_client": "prometheus-client", "webview": "pywebview"}
    brought_along = {
        "numpy": "transformers",
        "llvmlite": "numba",
        "starlette": "fastapi",
        "tqdm": "huggingface-hub",
        "pydantic_core": "pydantic",
    }
    lines = PROJECT["project"]["dependencies"]
    declared = {re.split(r"[<>=;\[ ]", line)[0].lower() for line in lines}
    extra = {re.split(r"[<>=;]", line)[0] for line in PROJECT["project"]["optional-dependencies"]["window"]}
    for path in sources():
        allowed = declared | extra if path.name == "window.py" else declared
        for name in imported(path) - set(sys.stdlib_module_names) - {"octavo"}:
            project = names.get(name, brought_along.get(name, name)).lower()
            assert project in allowed, f"{path.relative_to(REPOSITORY)} imports {name}"


def test_engine_and_kernels_import_without_the_apps_libraries() -> None:
    code = f"""
import importlib, sys

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {NOT_FOR_THE_ENGINE!r}:
            raise ModuleNotFoundError(f"{{name}} is not there", name=name)

sys.meta_path.insert(0, Blocker())
for name in {modules_of("kernels")!r}:
    importlib.import_module(name)
assert not [name for name in sys.modules if name.startswith(("octavo.engine", "octavo.app"))]
for name in {modules_of("engine")!r}:
    importlib.import_module(name)
assert not [name for name in sys.modules if name.startswith("octavo.app")]
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr


def test_the_engine_runs_on_the_cpu_without_numba() -> None:
    code = """
import sys

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("numba", "llvmlite"):
            raise ModuleNotFoundError(f"{name} is not there", name=name)

sys.meta_path.insert(0, Blocker())
import torch
from octavo.engine import Engine
from octavo.engine.model.build import build_random

sizes = {"hidden_size": 64, "intermediate_size": 64, "num_attention_heads": 2, "num_hidden_layers": 1}
config = {"model_type": "llama", "vocab_size": 32, "max_position_embeddings": 32, **sizes}
model = build_random(config, device="cpu", dtype=torch.float32, context_length=32, fusion=True)
assert model.ops.compiled is not None and not model.ops.compiled.wait()
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr


def test_no_file_uses_what_windows_lacks() -> None:
    for path in sources():
        lacking = {"fcntl", "uvloop", "resource", "termios", "pwd"} & imported(path)
        # the one place that bounds a process's memory where that is possible says so beside the import
        assert not lacking or "# not on Windows" in path.read_text(encoding="utf-8"), path
        assert "os.fork" not in path.read_text(encoding="utf-8"), path


def test_text_files_are_opened_as_utf8() -> None:
    for path in sources():
        for node in ast.walk(parsed(path)):
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
                continue
            keywords = {keyword.arg for keyword in node.keywords}
            if node.func.attr in {"read_text", "write_text"}:
                assert "encoding" in keywords or len(node.args) > 1, f"{path}:{node.lineno}"


def test_every_module_says_what_it_is_for() -> None:
    for path in sources():
        assert ast.get_docstring(parsed(path)), path


def test_the_user_can_read_the_licence_and_the_changes() -> None:
    assert "Apache License" in (REPOSITORY / "LICENSE").read_text(encoding="utf-8")
    changes = (REPOSITORY / "CHANGELOG.md").read_text(encoding="utf-8")
    assert f"## {PROJECT['project']['version']}" in changes
