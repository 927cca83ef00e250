"""An entry in the start menu (Windows) or among the applications (Linux)."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path

from octavo.app.config.files import write_atomically
from octavo.engine.errors import OctavoError

NAME = "Octavo"
COMMENT = "Chat with a language model on this machine"
COMMENT_ZH = "在这台电脑上与语言模型对话"
# What is set comes in by variables: nothing has to be quoted for two shells.
_POWERSHELL = (
    "$s = (New-Object -ComObject WScript.Shell).CreateShortcut($env:OCTAVO_LINK);"
    " $s.TargetPath = $env:OCTAVO_TARGET; $s.Arguments = $env:OCTAVO_ARGUMENTS;"
    " $s.WorkingDirectory = $env:USERPROFILE; $s.Description = $env:OCTAVO_ABOUT; $s.Save()"
)


class ShortcutError(OctavoError):
    """The entry could not be made or removed."""


def install(platform: str = sys.platform) -> Path:
    """Makes the entry and returns its file. Raises ShortcutError."""
    command = app_command()
    if find_spec("webview") is not None:
        command = [*command, "app", "--window"]
    try:
        if platform == "win32":
            return _install_windows(command)
        if platform.startswith("linux"):
            return _install_linux(command)
    except OSError as error:
        raise ShortcutError(
            f"The entry could not be written ({error.strerror or error}).",
            remedy="Check that you may write there, or start Octavo with `octavo app`.",
        ) from error
    raise ShortcutError(
        "There is no way to make an entry on this system.", remedy="Start Octavo with `octavo app` instead."
    )


def remove(platform: str = sys.platform) -> list[Path]:
    """Removes what `install` made; returns what was there."""
    if platform == "win32":
        known = [_start_menu() / f"{NAME}.lnk", _start_menu() / f"{NAME}.url"]
    else:
        known = [_applications() / "octavo.desktop", _icon()]
    found = [path for path in known if path.exists()]
    for path in found:
        try:
            path.unlink()
        except OSError as error:
            raise ShortcutError(
                f"{path} could not be removed ({error.strerror or error}).", remedy="Delete it yourself."
            ) from error
    return found


def app_command() -> list[str]:
    """How Octavo is started: its own program where there is one, else this Python."""
    beside = Path(sys.executable).with_name("octavo.exe" if sys.platform == "win32" else "octavo")
    program = str(beside) if beside.exists() else shutil.which("octavo")
    return [program] if program else [sys.executable, "-m", "octavo.app.cli"]


def desktop_entry(command: list[str]) -> str:
    """The text of a .desktop file (Desktop Entry Specification 1.5)."""
    return "\n".join(
        [
            "[Desktop Entry]",
            "Type=Application",
            "Version=1.5",
            f"Name={NAME}",
            f"Comment={COMMENT}",
            f"Comment[zh_CN]={COMMENT_ZH}",
            f"Exec={' '.join(_quoted(part) for part in command)}",
            "Icon=octavo",
            "Terminal=false",
            "Categories=Utility;Office;",
            "Keywords=chat;ai;llm;",
            "",
        ]
    )


def _quoted(part: str) -> str:
    """One argument of an Exec line: in double quotes, with the characters that mean something there escaped."""
    inner = "".join(f"\\{character}" if character in '"`$\\' else character for character in part)
    return (
        f'"{inner}"'.replace("\\", "\\\\").replace("%", "%%") if set(part) & set(" \t\n\"'\\><~|&;$*?#()`%") else part
    )


def _install_linux(command: list[str]) -> Path:
    icon, entry = _icon(), _applications() / "octavo.desktop"
    icon.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(icon, files("octavo.assets").joinpath("icon.svg").read_bytes())
    entry.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(entry, desktop_entry(command).encode())
    entry.chmod(0o755)
    return entry


def _install_windows(command: list[str]) -> Path:
    link = _start_menu() / f"{NAME}.lnk"
    link.parent.mkdir(parents=True, exist_ok=True)
    variables = {
        "OCTAVO_LINK": str(link),
        "OCTAVO_TARGET": command[0],
        "OCTAVO_ARGUMENTS": subprocess.list2cmdline(command[1:]),
        "OCTAVO_ABOUT": COMMENT,
    }
    shell = ["powershell", "-NoProfile", "-NonInteractive", "-Command", _POWERSHELL]
    try:
        done = subprocess.run(shell, env={**os.environ, **variables}, capture_output=True, timeout=60, check=False)
        if done.returncode == 0 and link.exists():
            return link
    except (OSError, subprocess.TimeoutExpired):
        pass  # PowerShell is switched off in some houses
    link = link.with_suffix(".url")
    link.write_text(f"[InternetShortcut]\nURL={Path(command[0]).as_uri()}\n", encoding="utf-8")
    return link


def _start_menu() -> Path:
    roaming = os.environ.get("APPDATA") or str(Path.home() / "AppData" / "Roaming")
    return Path(roaming) / "Microsoft" / "Windows" / "Start Menu" / "Programs"


def _data_home() -> Path:
    return Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share")


def _applications() -> Path:
    return _data_home() / "applications"


def _icon() -> Path:
    return _data_home() / "icons" / "hicolor" / "scalable" / "apps" / "octavo.svg"
