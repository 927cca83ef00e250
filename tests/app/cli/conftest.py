"""The command line, in this process and with a server that only says what it was asked to run."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from octavo.app.cli import main
from octavo.app.config import Settings


@dataclass(frozen=True)
class Result:
    """What a command printed and how it ended."""

    code: int
    out: str
    err: str


@pytest.fixture
def octavo(
    own_folders: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Result]:
    """Runs `octavo` with these arguments, in folders of this test's own and with the starter nowhere."""
    monkeypatch.setenv("GRADIO_TEMP_DIR", str(own_folders / "page"))  # else a start would set it for later tests
    for name in ("OCTAVO_STARTER", "DISPLAY", "WAYLAND_DISPLAY", "SSH_CONNECTION", "SSH_TTY", "SSH_CLIENT"):
        monkeypatch.delenv(name, raising=False)

    def run(*arguments: str) -> Result:
        code = main(arguments)
        captured = capsys.readouterr()
        return Result(code, captured.out, captured.err)

    return run


@dataclass
class FakeServer:
    """Remembers what it was asked to serve; `during` runs while it "serves"."""

    runs: list[dict[str, Any]] = field(default_factory=list)
    during: Callable[[], None] = lambda: None

    def run_server(self, settings: Settings, **options: Any) -> int:
        self.runs.append({"settings": settings, **options})
        options["on_started"]()
        self.during()
        options["sock"].close()
        return 0


@pytest.fixture
def fake_server(monkeypatch: pytest.MonkeyPatch) -> FakeServer:
    """Stands in for octavo.app.server, so that neither torch nor gradio is imported."""
    server = FakeServer()
    module = types.ModuleType("octavo.app.server")
    module.run_server = server.run_server  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "octavo.app.server", module)
    return server


@pytest.fixture(autouse=True)
def own_logging(restored_logging: None) -> None:
    """Every start sets up the process's logging."""
