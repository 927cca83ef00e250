"""The main job as a user meets it: the command, the page, the starter model."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from driving import answer, reply, send, wait_for_end
from ports import free_port

Page = Any


@pytest.fixture(scope="module")
def address(browser: object, starter_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """`octavo`, started as by its command, on a free port and with folders of its own."""
    folder = tmp_path_factory.mktemp("octavo")
    port = free_port()
    own = {f"XDG_{name}_HOME": str(folder / name.lower()) for name in ("CONFIG", "DATA", "STATE")}
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("OCTAVO_")},
        "OCTAVO_KERNEL_FOLDER": os.environ["OCTAVO_KERNEL_FOLDER"],  # compiling them takes a minute of a core
        **own,
        "LOCALAPPDATA": str(folder),
        "OCTAVO_DATA_DIR": str(folder / "data"),
        "OCTAVO_STARTER": str(starter_path),
        "OCTAVO_SAMPLING__MAX_TOKENS": "24",
        "OCTAVO_ENGINE__KV_MEMORY": "256 MiB",
        "OCTAVO_MODEL__DEVICE": "cpu",
    }
    command = [sys.executable, "-c", "from octavo.app.cli import main; main()", "--no-browser", "--port", str(port)]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
    address = f"http://127.0.0.1:{port}"
    end = time.monotonic() + 240
    while time.monotonic() < end and process.poll() is None:
        try:
            with urllib.request.urlopen(f"{address}/api/status", timeout=2):
                break
        except OSError:
            time.sleep(0.1)
    else:
        pytest.fail((folder / "log").read_text(encoding="utf-8", errors="replace"))
    yield address
    process.terminate()
    process.wait(240)


def test_the_starter_answers_in_two_chats_at_once_and_computes_only_what_is_new(address: str, browser: Any) -> None:
    context = browser.new_context(locale="en-US")
    outside: list[str] = []
    context.on("request", lambda request: None if request.url.startswith(address) else outside.append(request.url))
    pages = [context.new_page(), context.new_page()]
    for page in pages:
        page.set_default_timeout(60_000)
        page.goto(address)
        page.wait_for_selector(".welcome .example, .welcome [role=progressbar]")
    for page in pages:
        send(page, "Write a long story about a lighthouse keeper who finds an old map of the coast.")
    for page in pages:
        page.wait_for_selector("article.reply.last:not(.live) .figures", timeout=120_000)
        assert len(answer(page)) > 20
        assert "reached the length limit" in reply(page).locator(".figures").inner_text()
    page = pages[0]
    send(page, "Go on.")
    wait_for_end(page, 2)
    figures = reply(page).locator(".figures").inner_text()
    prompt, cached = (int(n) for n in re.search(r"(\d+) prompt \((\d+) cached\)", figures).groups())
    first = reply(pages[1]).locator(".figures").inner_text()
    before = int(re.search(r"(\d+) prompt", first).group(1)) + 24
    assert before - 16 - 1 <= cached < prompt  # all of the first turn but its last page, and at most a token
    page.locator(".chip", has_text="SmolLM2").wait_for()
    context.close()
    assert outside == []
