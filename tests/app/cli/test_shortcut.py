"""The entry among the applications, and the page in a window of its own."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from octavo.app import shortcut, start
from octavo.app.shortcut import desktop_entry
from octavo.app.window import Window

if TYPE_CHECKING:
    from tests.app.cli.conftest import FakeServer, Result

Octavo = Callable[..., "Result"]
WEBVIEW = """
settings = {}
calls = []

def create_window(title, url, **options):
    calls.append((title, url))

def start(**options):
    import pathlib, time
    folder = pathlib.Path(options["storage_path"])
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "opened").write_text(repr((calls, options["private_mode"], settings)))
    while not (folder / "close").exists():
        time.sleep(0.02)
"""


@pytest.fixture
def webview(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A pywebview that draws nothing and closes when the file "close" is in its folder, which is returned."""
    library = tmp_path / "library"
    library.mkdir()
    (library / "webview.py").write_text(WEBVIEW, encoding="utf-8")
    monkeypatch.syspath_prepend(str(library))
    monkeypatch.setenv("PYTHONPATH", str(library))
    return tmp_path / "window"


def unquoted(value: str) -> list[str]:
    """An Exec line as a desktop reads it: the string's escapes first, then the quotes, then the percent signs."""
    value = value.replace("\\\\", "\\")
    parts, quoted, escaped = [""], False, False
    for character in value:
        if escaped or not (character in '\\"' or (character == " " and not quoted)):
            parts[-1] += character
            escaped = False
        elif character == "\\":
            escaped = True
        elif character == '"':
            quoted = not quoted
        else:
            parts.append("")
    return [part.replace("%%", "%") for part in parts]


@pytest.mark.parametrize(
    "command",
    [
        ["/usr/bin/octavo"],
        ["/home/a b/octavo", "app", "--window"],
        ['/home/a"b$c`d/octavo'],
        ["/home/50%/octavo"],
        ["/home/山/octavo"],
    ],
)
def test_the_entry_starts_exactly_this_command(command: list[str]) -> None:
    [line] = [line for line in desktop_entry(command).splitlines() if line.startswith("Exec=")]
    assert unquoted(line.removeprefix("Exec=")) == command


@pytest.mark.skipif(sys.platform != "linux", reason="a desktop of Linux")
def test_the_entry_is_made_and_removed_again(octavo: Octavo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    entry = tmp_path / "applications" / "octavo.desktop"
    assert octavo("install-shortcut").out == f"{entry}\n"
    assert (tmp_path / "icons/hicolor/scalable/apps/octavo.svg").exists()
    text = entry.read_text(encoding="utf-8")
    assert text.startswith("[Desktop Entry]\n")
    assert "Name=Octavo\n" in text
    assert octavo("install-shortcut", "--remove").out.count("Removed") == 2
    assert not entry.exists()
    assert octavo("install-shortcut", "--remove").out == ""


def test_a_start_menu_link_is_made_by_powershell_with_nothing_quoted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("APPDATA", str(tmp_path))
    monkeypatch.setattr(shortcut, "app_command", lambda: [r"C:\Program Files\it's\octavo.exe"])
    seen: dict[str, Any] = {}

    def run(command: list[str], *, env: dict[str, str], **options: Any) -> Any:
        seen.update(command=command, env=env)
        Path(env["OCTAVO_LINK"]).write_bytes(b"lnk")
        return subprocess.CompletedProcess(command, 0)

    monkeypatch.setattr(shortcut.subprocess, "run", run)
    link = shortcut.install("win32")
    assert link.name == "Octavo.lnk"
    assert seen["env"]["OCTAVO_TARGET"] == r"C:\Program Files\it's\octavo.exe"
    assert "it's" not in " ".join(seen["command"])
    assert shortcut.remove("win32") == [link]


def test_where_powershell_is_switched_off_a_plain_link_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("APPDATA", str(tmp_path))
    monkeypatch.setattr(shortcut, "app_command", lambda: ["/opt/octavo"])

    def refuse(*_: Any, **__: Any) -> Any:
        raise FileNotFoundError

    monkeypatch.setattr(shortcut.subprocess, "run", refuse)
    link = shortcut.install("win32")
    assert link.read_text(encoding="utf-8") == "[InternetShortcut]\nURL=file:///opt/octavo\n"


def test_a_window_without_pywebview_is_refused_before_anything_starts(
    octavo: Octavo, fake_server: FakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("octavo.app.window.find_spec", lambda name: None)
    result = octavo("app", "--window", "--port", "0")
    assert result.code == 1
    assert "pywebview" in result.err
    assert fake_server.runs == []


def test_a_window_replaces_the_browser(octavo: Octavo, fake_server: FakeServer, webview: Path) -> None:
    octavo("app", "--window", "--port", "0")
    [run] = fake_server.runs
    assert run["open_browser"] is False
    assert run["window"].name == "window"


def test_closing_the_window_tells_the_app(webview: Path) -> None:
    closed: list[bool] = []
    window = Window("http://127.0.0.1:1", webview, on_close=lambda: closed.append(True))
    opened = webview / "opened"
    _until(opened.exists)
    assert "('Octavo', 'http://127.0.0.1:1')" in opened.read_text(encoding="utf-8")
    (webview / "close").touch()
    assert window.wait() == 0
    _until(lambda: closed == [True])


def test_a_window_that_the_app_closes_itself_tells_nobody(webview: Path) -> None:
    closed: list[bool] = []
    window = Window("http://127.0.0.1:1", webview, on_close=lambda: closed.append(True))
    _until((webview / "opened").exists)
    window.close()
    assert closed == []


def test_a_second_start_with_a_window_opens_one_on_the_first(
    octavo: Octavo, fake_server: FakeServer, webview: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[str] = []

    class Quick:
        def __init__(self, url: str, storage: Path) -> None:
            opened.append(url)

        def wait(self) -> int:
            return 0

    monkeypatch.setattr(start, "Window", Quick)
    fake_server.during = lambda: opened.append(str(octavo("app", "--window").code))
    octavo("app", "--port", "0", "--no-browser")
    assert opened == [f"http://127.0.0.1:{fake_server.runs[0]['port']}", "0"]


def _until(condition: Callable[[], bool]) -> None:
    import time

    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)
