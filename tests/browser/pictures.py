"""Takes the pictures of the README anew: python tests/browser/pictures.py [FOLDER]

Needs the starter model, a Chromium and playwright. Pictures go to docs/pictures unless a folder is named; the first
start, which shows a download, is taken with the scripted engine.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from conftest import FLAGS, NAMES, SERVE
from driving import until
from playwright.sync_api import sync_playwright

HERE = Path(__file__).parent
PICTURES = HERE.parent.parent / "docs" / "pictures"
QUESTIONS = (
    "Explain why the sky is blue, to a ten-year-old",
    "Give me ten ideas for a rainy Sunday",
    "Write an invoice reminder that stays friendly",
    "How do I make bread without yeast?",
    "Write a short story about a lighthouse keeper",
)
CONFIG = "model:\n  context_length: 1024\nengine:\n  max_running: 8\n  kv_memory: 60 MiB\n"  # a page a square
FIRST_WORDS = 40  # of the conversation in view, when the picture is taken
PATIENCE_S = 120.0

Page = Any


def main(folder: Path) -> None:
    with sync_playwright() as playwright, tempfile.TemporaryDirectory() as own:
        path = os.environ.get("OCTAVO_CHROMIUM") or _chromium()
        browser = playwright.chromium.launch(executable_path=path, args=FLAGS)
        with _octavo(Path(own) / "real") as address:
            for scheme, picture in (("light", _page), ("dark", _settings)):
                context = browser.new_context(
                    locale="en-US", viewport={"width": 1440, "height": 900}, color_scheme=scheme
                )
                picture(context.new_page(), address, folder)
                context.close()
        with _first_start(Path(own) / "scripted") as address:
            context = browser.new_context(locale="en-US", viewport={"width": 1280, "height": 880}, color_scheme="dark")
            page = context.new_page()
            page.goto(address)
            page.wait_for_selector(".machine li")
            until(page, "parseInt(document.querySelector('.load-line').innerText.match(/(\\d+) MiB \\//)?.[1]) > 20")
            page.screenshot(path=folder / "first-start.png")
        browser.close()


def _page(page: Page, address: str, folder: Path) -> None:
    """Chats writing, and the monitor with the page that they share."""
    _ask(page, address)
    page.goto(f"{page.url}#monitor")
    page.locator("canvas.map").wait_for()
    until(page, "document.querySelector('.tile .value')?.innerText.startsWith('0 ') === false")
    first = page.locator("canvas.map").bounding_box()
    _wait(lambda: _is_shared(page, first["x"] + 4, first["y"] + 4))
    until(page, f"document.querySelector('article.reply').innerText.split(/\\s+/).length > {2 * FIRST_WORDS}")
    page.screenshot(path=folder / "page.png")
    _stop(page)


def _is_shared(page: Page, x: float, y: float) -> bool:
    """Whether the map says of the page at this point that chats share it."""
    page.mouse.move(x + 1, y)
    page.mouse.move(x, y)
    return bool(page.evaluate("document.querySelector('.map-tip')?.innerText.includes('shared') ?? false"))


def _settings(page: Page, address: str, folder: Path) -> None:
    _ask(page, address)
    page.goto(f"{page.url}#settings/speed")
    cards = page.locator(".panel-settings .card-speed")
    cards.first.wait_for()
    for folded in cards.locator("summary").all():  # without a GPU
        folded.click()
    page.wait_for_timeout(500)
    page.screenshot(path=folder / "settings.png")
    _stop(page)


def _ask(page: Page, address: str) -> None:
    for question in QUESTIONS:
        page.goto(address)
        page.wait_for_selector("body.octavo-ready .example")
        page.get_by_role("textbox", name="Message").fill(question)
        page.keyboard.press("Enter")
        page.wait_for_url("**/?c=*")
    until(page, f"document.querySelector('article.reply')?.innerText.split(/\\s+/).length > {FIRST_WORDS}")


def _stop(page: Page) -> None:
    """Leave no chat behind that the next picture would show."""
    answer = page.request.get(f"{page.url.partition('?')[0]}api/ui/chats/export?format=json").json()
    for chat in answer["chats"]:
        row = page.locator(f".row-chat[data-id='{chat['id']}']")
        row.get_by_role("link").focus()
        page.keyboard.press("Delete")
        row.wait_for(state="detached")


@contextmanager
def _octavo(folder: Path) -> Iterator[str]:
    folder.mkdir()
    (folder / "config.yaml").write_text(CONFIG, encoding="utf-8")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    code = "from octavo.app.cli import main; main()"
    flags = ["--config", str(folder / "config.yaml"), "--no-browser", "--port", str(port)]
    own = {f"XDG_{name}_HOME": str(folder / name.lower()) for name in ("CONFIG", "DATA", "STATE")}
    command = [sys.executable, "-c", code, *flags]
    with _running(command, folder, {**own, "OCTAVO_DATA_DIR": str(folder / "data")}):
        address = f"http://127.0.0.1:{port}/"
        _wait(lambda: b'"state":"ready"' in _fetch(f"{address}api/status"))
        time.sleep(30)  # a new processor's kernels are being compiled
        yield address


@contextmanager
def _first_start(folder: Path) -> Iterator[str]:
    folder.mkdir()
    (folder / "slow").touch()
    with _running([sys.executable, str(SERVE), str(folder)], folder, {"OCTAVO_DATA_DIR": str(folder / "data")}):
        _wait(lambda: (folder / "port").exists())
        address = f"http://127.0.0.1:{(folder / 'port').read_text(encoding='utf-8')}/"
        _wait(lambda: bool(_fetch(f"{address}api/status")))
        yield address
        (folder / "slow").unlink()


@contextmanager
def _running(command: list[str], folder: Path, environment: dict[str, str]) -> Iterator[None]:
    kept = {
        name: value for name, value in os.environ.items() if not name.startswith("OCTAVO_") or name == "OCTAVO_STARTER"
    }
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, env={**kept, **environment}, stdout=log, stderr=log)
    try:
        yield
    finally:
        process.terminate()
        process.wait(20)


def _fetch(address: str) -> bytes:
    try:
        with urllib.request.urlopen(address, timeout=2) as answer:
            return bytes(answer.read())
    except OSError:
        return b""


def _wait(there: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE_S
    while not there():
        if time.monotonic() > end:
            raise TimeoutError("The server did not come up.")
        time.sleep(0.1)


def _chromium() -> str:
    found = next((path for name in NAMES if (path := shutil.which(name))), None)
    if found is None:
        raise SystemExit("No Chromium was found; name one in OCTAVO_CHROMIUM.")
    return found


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else PICTURES)
