"""A real server process, a real Chromium: one of each for all tests, and for every test a fresh browser context, unless
it shares a tab with others."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

SUPPORT = Path(__file__).parent / "support"
SERVE = SUPPORT / "serve.py"
NAMES = ("chromium", "chromium-browser", "google-chrome-stable", "google-chrome", "chrome", "msedge")
REFUSALS = (400, 409, 422)
GONE = (*REFUSALS, 404)  # a chat may be deleted between a question about it and the answer
FAILED: pytest.StashKey[bool] = pytest.StashKey()
FIGURES: pytest.StashKey[list[tuple[str, float, float, str]]] = pytest.StashKey()
OPEN = ExitStack()  # Playwright and its browser
FLAGS = ["--no-sandbox", "--disable-dev-shm-usage", "--disable-component-update", "--disable-background-networking"]


sys.path[:0] = [str(SUPPORT), str(SUPPORT.parent.parent / "app" / "support")]

from ports import free_port  # noqa: E402


def _missing(reason: str) -> None:
    if os.environ.get("CI", "").lower() == "true":
        pytest.fail(f"on CI this must be at hand: {reason}")
    pytest.skip(reason)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker("browser")


@dataclass
class Server:
    """A running server process; `folder` holds its chats, `script` is what it runs."""

    folder: Path
    environment: dict[str, str] = field(default_factory=dict)
    script: Path = SERVE
    process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{(self.folder / 'port').read_text(encoding='utf-8')}"

    def start(self) -> None:
        environment = {**os.environ, "GRADIO_ANALYTICS_ENABLED": "False", "HF_HUB_OFFLINE": "1"}
        environment |= {"OCTAVO_DATA_DIR": str(self.folder / "data"), **self.environment}
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, str(self.script), str(self.folder)], stdout=log, stderr=log, env=environment
            )
        end = time.monotonic() + 240
        while time.monotonic() < end and self.process.poll() is None:
            try:
                with urllib.request.urlopen(f"{self.url}/api/status", timeout=10):
                    return
            except OSError:
                time.sleep(0.1)
        pytest.fail(f"the server did not start: {self.log()}")

    def stop(self) -> None:
        if self.process is not None:
            self.process.terminate()
            self.process.wait(240)
            self.process = None

    @contextmanager
    def held(self) -> Iterator[None]:
        """Replies wait in their middle, so that what is seen there does not depend on how fast anything is."""
        mark = self.folder / "held"
        mark.touch()
        try:
            yield
        finally:
            mark.unlink()

    def log(self) -> str:
        return (self.folder / "log").read_text(encoding="utf-8", errors="replace")


@pytest.fixture(scope="session")
def make_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Server]]:
    """Starts servers, with the named marks in their folders, that live until the end of the session. `config` is the
    text of their config.yaml, `environment` what they find beside the test's own."""
    servers: list[Server] = []

    def make(*marks: str, config: str | None = None, script: Path = SERVE, **environment: str) -> Server:
        server = Server(tmp_path_factory.mktemp("server"), environment, script)
        if script != SERVE:  # the real command is told its port
            (server.folder / "port").write_text(str(free_port()), encoding="utf-8")
        for mark in marks:
            (server.folder / mark).touch()
        if config is not None:
            (server.folder / "config.yaml").write_text(config, encoding="utf-8")
        servers.append(server)
        server.start()
        return server

    yield make
    for server in servers:
        server.stop()


@pytest.fixture(scope="session")
def server(browser: object, make_server: Callable[..., Server]) -> Server:
    """The server that most tests share."""
    return make_server()


@pytest.fixture(scope="session")
def spare_server(browser: object, make_server: Callable[..., Server]) -> Server:
    """A server without a shared tab. A test may leave it with very many chats, or dead, or write to its file: while no
    tab is open, nobody has its list."""
    return make_server()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    report = yield
    if report.failed:
        item.stash[FAILED] = True
    return report


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(nextitem: pytest.Item | None) -> Iterator[None]:
    """Playwright's event loop stays with the thread, and asyncio.run refuses a second one there: the browser ends with
    its last test, not with the session."""
    result = yield
    if nextitem is None or Path(__file__).parent not in nextitem.path.parents:
        OPEN.close()
    return result


@pytest.fixture(scope="session")
def browser() -> object:
    """The system's Chromium (or OCTAVO_CHROMIUM); nothing is downloaded."""
    path = os.environ.get("OCTAVO_CHROMIUM") or next((found for name in NAMES if (found := shutil.which(name))), None)
    if path is None:
        _missing("no Chromium is installed")
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        _missing("playwright is not installed")
    playwright = OPEN.enter_context(sync_playwright())
    return OPEN.enter_context(playwright.chromium.launch(executable_path=path, args=FLAGS))


@pytest.fixture
def measured(pytestconfig: pytest.Config) -> Iterator[Callable[[str, float, float, str], None]]:
    """Notes a figure for the table at the end: measured(what, value, limit, unit). In the end none may be above its
    limit."""
    table = pytestconfig.stash.setdefault(FIGURES, [])
    own: list[tuple[str, float, float, str]] = []
    yield lambda *figure: own.append(figure)
    table.extend(own)
    assert [figure for figure in own if figure[1] > figure[2]] == []


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    table = config.stash.get(FIGURES, [])
    if not table:
        return
    terminalreporter.section("figures")
    width = max(len(what) for what, *_ in table)
    for what, value, limit, unit in table:
        shown = f"{value:8.2f}" if limit < 10 else f"{value:8.0f}"
        verdict = "" if value <= limit else "  too much"
        terminalreporter.line(f"{what:<{width}} {shown} {unit:<4} at most {limit:>6g}{verdict}")


@dataclass
class Watched:
    """A browser context whose pages are watched: what they asked for, what went wrong, what the socket carried."""

    context: object
    own: str
    outside: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    received: list[str] = field(default_factory=list)

    def watch(self, page: object) -> None:
        page.set_default_timeout(60_000)
        page.on("request", lambda request: self._request(request.url))
        page.on("pageerror", lambda error: self.errors.append(f"page error: {error}"))
        page.on("console", lambda message: self._console(message))
        page.on("websocket", self._socket)

    def _request(self, url: str) -> None:
        if not url.startswith((self.own, "data:", "blob:")):
            self.outside.append(url)

    def _console(self, message: object) -> None:
        refusals = GONE if "/api/ui/" in message.location["url"] else REFUSALS
        is_refusal = any(f"status of {code}" in message.text for code in refusals)  # the page says them in words
        if message.type == "error" and "ERR_CONNECTION_REFUSED" not in message.text and not is_refusal:
            self.errors.append(f"console: {message.text}")

    def _socket(self, socket: object) -> None:
        if not socket.url.startswith(self.own.replace("http", "ws", 1)):
            self.outside.append(socket.url)
        socket.on("framereceived", lambda frame: self.received.append(frame))

    def check(self) -> None:
        """None of the pages may have failed or asked for anything outside."""
        assert self.outside == []
        assert self.errors == []

    def close(self) -> None:
        """A page asks until it is gone, and a test's handler may be in the middle of its answer: what becomes of that
        is not the next test's concern."""
        for page in self.context.pages:
            page.unroute_all(behavior="ignoreErrors")
        self.context.close()


def _new_context(browser: object, server: Server, **options: object) -> Watched:
    context = browser.new_context(locale="en-US", **options)
    watched = Watched(context, server.url)
    context.on("page", watched.watch)
    return watched


@pytest.fixture
def open_context(browser: object) -> Iterator[Callable[..., Watched]]:
    """Makes fresh contexts; in the end none of their pages may have failed or asked for anything outside."""
    made: list[Watched] = []

    def make(server: Server, **options: object) -> Watched:
        made.append(_new_context(browser, server, **options))
        return made[-1]

    yield make
    for watched in made:
        watched.close()
    for watched in made:
        watched.check()


@pytest.fixture
def watched(server: Server, open_context: Callable[..., Watched]) -> Watched:
    return open_context(server, viewport={"width": 1280, "height": 800})


@pytest.fixture
def page(watched: Watched, server: Server) -> object:
    """An open page with an empty chat."""
    return _opened(watched, server)


def _opened(watched: Watched, server: Server) -> object:
    page = watched.context.new_page()
    page.goto(server.url)
    page.wait_for_selector("body.octavo-ready .example")
    return page


@pytest.fixture(scope="session")
def open_tabs() -> list[tuple[Watched, object]]:
    """The tab that tests share, if it is open."""
    return []


@pytest.fixture
def tab(
    request: pytest.FixtureRequest, browser: object, server: Server, open_tabs: list[tuple[Watched, object]]
) -> Iterator[object]:
    """An open page with an empty chat, for tests that leave nothing behind in it but chats: opening one takes longer
    than they do. After one that fails the next opens its own."""
    if not open_tabs:
        watched = _new_context(browser, server, viewport={"width": 1280, "height": 800})
        open_tabs.append((watched, _opened(watched, server)))
    watched, page = open_tabs[0]
    page.evaluate("document.querySelectorAll('.toast').forEach((note) => note.remove())")
    page.get_by_role("searchbox").fill("")
    page.locator(".create").click()
    page.wait_for_selector(".welcome .example")
    yield page
    if request.node.stash.get(FAILED, False):
        open_tabs.clear()
        watched.close()
    watched.check()
