"""What the page promises in numbers, to be measured on a quiet machine, by itself: pytest tests/browser -m figures

Two cores, Chromium, server and scripted model on the same machine. A table of what was measured is printed at the end.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import psutil
import pytest
from driving import answer, until, wait_for_end

from octavo.app.chat.store import ChatStore

pytestmark = [pytest.mark.figures, pytest.mark.timeout(900)]

Page = Any  # playwright's; it need not be installed to collect these tests
Measured = Callable[[str, float, float, str], None]

PIECES = 600  # at sixty a second: ten seconds
QUERIES = ("灯塔", "fog harbour 4321", "chat 49", "harbour", "nothing of the kind")
REPLIES, PER_CHAT = 1000, 5

# The scripted model says the time in milliseconds; a number counts as seen once the frame that has it is on its way.
WATCH_LAG = """() => {
    window.seen = [];
    new MutationObserver(() => requestAnimationFrame(() => {
        const drawn = new MessageChannel();
        const text = document.querySelector('article.reply.live > .blocks')?.textContent ?? '';
        const numbers = text.split(/\\s+/).filter(Boolean).map(Number);
        drawn.port1.onmessage = () => {
            for (const number of numbers.slice(window.count ?? 0)) window.seen.push([Date.now(), number]);
            window.count = numbers.length;
        };
        drawn.port2.postMessage(0);
    })).observe(document.body, {childList: true, subtree: true, characterData: true});
}"""

# From the opening of the tab's socket to the frame with the list's first rows.
WATCH_LIST = """
    const Plain = window.WebSocket;
    window.WebSocket = class extends Plain {
        constructor(...values) {
            super(...values);
            super.addEventListener('open', () => (window.openedAt ??= performance.now()));
        }
    };
    new MutationObserver(() => {
        if (window.rowsAt || document.querySelectorAll('.row-chat').length < 100) return;
        window.rowsAt = -1;
        requestAnimationFrame(() => {
            const drawn = new MessageChannel();
            drawn.port1.onmessage = () => (window.rowsAt = performance.now());
            drawn.port2.postMessage(0);
        });
    }).observe(document, {subtree: true, childList: true});
"""

# From the last key of a search to the frame with what the server found.
SEARCH = """words => new Promise(resolve => {
    const box = document.querySelector('#octavo-chats input.filter');
    const count = document.querySelector('#octavo-chats [role=status]');
    count.textContent = '';
    const begun = performance.now();
    const observer = new MutationObserver(() => {
        if (!count.textContent) return;
        observer.disconnect();
        requestAnimationFrame(() => {
            const drawn = new MessageChannel();
            drawn.port1.onmessage = () => resolve(performance.now() - begun);
            drawn.port2.postMessage(0);
        });
    });
    observer.observe(count, {childList: true, characterData: true, subtree: true});
    box.value = words;
    box.dispatchEvent(new InputEvent('input', {bubbles: true}));
})"""

MEASURE_KEYS = """() => {
    window.lags = [];
    document.querySelector('#octavo-composer textarea').addEventListener('keydown', () => {
        const begun = performance.now();
        requestAnimationFrame(() => {
            const drawn = new MessageChannel();
            drawn.port1.onmessage = () => window.lags.push(performance.now() - begun);
            drawn.port2.postMessage(0);
        });
    }, true);
}"""

# As many messages as asked for, each sent when the reply before it has ended; a new chat after every few.
WRITE = """async ([count, perChat]) => {
    const box = document.querySelector('#octavo-composer textarea');
    const text = ' **Bold**, `code`, and what a keeper writes into the log at night.'.repeat(6);
    const pause = () => new Promise(resolve => setTimeout(resolve, 10));
    for (let number = 0; number < count; number++) {
        if (number % perChat === 0) {
            document.querySelector('#octavo-chats .create').click();
            while (document.querySelector('article.turn')) await pause();
        }
        box.value = `say ${number}${text}`;
        box.dispatchEvent(new InputEvent('input', {bubbles: true}));
        box.form.requestSubmit();
        const turns = 2 * (number % perChat + 1);
        const done = () => document.querySelectorAll('article.turn').length === turns
            && document.querySelector('article.reply.last:not(.live)');
        while (!done()) await pause();
    }
}"""


@pytest.fixture
def quiet_server(browser: object, make_server: Callable[..., Any]) -> Iterator[Any]:
    """A server of its own, that has done nothing yet."""
    server = make_server()
    yield server
    server.stop()


def share(values: list[float], part: float) -> float:
    return sorted(values)[min(len(values) - 1, int(len(values) * part))]


def stream_in_tabs(server: Any, open_context: Any, tabs: int) -> list[list[tuple[int, int]]]:
    """All write at once; for each [when a piece was on the screen, when it was said], in ms.

    Each is in a window of its own: of the tabs of one window the browser shows the front one, and at times it draws the
    others only once a second.
    """
    pages = [open_context(server, viewport={"width": 1280, "height": 800}).context.new_page() for _ in range(tabs)]
    for page in pages:
        page.goto(server.url)
        page.wait_for_selector("body.octavo-ready .example")
        page.evaluate(WATCH_LAG)
        page.get_by_role("textbox", name="Message").fill(f"clock {PIECES}")
    for page in pages:
        page.keyboard.press("Enter")
    for page in pages:
        wait_for_end(page)
    assert all(len(answer(page).split()) == PIECES for page in pages)
    return [page.evaluate("window.seen") for page in pages]


@pytest.mark.parametrize(("tabs", "median_ms", "most_ms"), [(8, 120, 300), (16, 400, 1200)])
def test_replies_are_on_the_screen_soon_after_they_are_written(
    tabs: int, median_ms: float, most_ms: float, quiet_server: Any, open_context: Any, measured: Measured
) -> None:
    seen = stream_in_tabs(quiet_server, open_context, tabs)
    together = min(times[-1][0] for times in seen) - max(times[0][0] for times in seen)
    assert together > 1000 * PIECES / 60 / 2  # for at least half of the time all of them grow
    lags = [float(shown - said) for times in seen for shown, said in times]
    measured(f"{tabs} tabs, engine to screen, median", statistics.median(lags), median_ms, "ms")
    measured(f"{tabs} tabs, engine to screen, 95 %", share(lags, 0.95), most_ms, "ms")


def test_the_page_is_ready_soon_after_the_server(
    make_server: Callable[..., Any], open_context: Any, measured: Measured
) -> None:
    server = make_server()
    begun = time.perf_counter()
    page = open_context(server).context.new_page()
    page.goto(server.url)
    page.wait_for_selector("body.octavo-ready .example")
    measured("page ready after the server answers", time.perf_counter() - begun, 2.0, "s")
    server.stop()


@pytest.fixture(scope="module")
def full_house(browser: object, make_server: Callable[..., Any]) -> tuple[Any, str]:
    """A server with 5,000 chats and 100,000 messages, and the id of a chat of 200 turns."""
    server = make_server()
    store = ChatStore(server.folder / "chats.sqlite3")
    paragraph = "A paragraph with **bold** text and `code`. " * 6 + "\n\n"
    with store.together():
        for number in range(5000):
            chat = store.create_chat()
            for turn in range(10):
                store.add_message(chat.id, "user", f"Fog over harbour {number}, question {turn}. 海边的灯塔")
                store.add_message(chat.id, "assistant", f"The keeper of number {number} had not slept. 他没有睡。")
            store.update_chat(chat.id, title=f"Chat {number}")
        long = store.create_chat()
        for _ in range(100):
            store.add_message(long.id, "user", "word " * 30)
            store.add_message(long.id, "assistant", paragraph * 3)
    store.close()
    return server, long.id


def test_a_list_of_five_thousand_chats_opens_and_searches_at_once(
    full_house: tuple[Any, str], open_context: Any, measured: Measured
) -> None:
    server, _ = full_house
    context = open_context(server, viewport={"width": 1280, "height": 800}).context
    context.add_init_script(WATCH_LIST)
    times = []
    for _ in range(5):
        page = context.new_page()
        page.goto(server.url)
        until(page, "window.rowsAt > 0")
        times.append(page.evaluate("window.rowsAt - window.openedAt"))
    measured("5,000 chats, socket open to the list on the screen, worst of 5", max(times), 300, "ms")
    page.wait_for_selector("body.octavo-ready .example")
    found = {words: page.evaluate(SEARCH, words) for words in QUERIES}
    for words, took_ms in found.items():
        measured(f"5,000 chats, last key to what was found: {words}", took_ms, 300, "ms")


def test_typing_stays_quick_beside_a_reply_of_thirty_thousand_characters(
    full_house: tuple[Any, str], open_context: Any, measured: Measured
) -> None:
    server, long = full_house
    page = open_context(server, viewport={"width": 1280, "height": 800}).context.new_page()
    page.goto(f"{server.url}/?c={long}")
    page.wait_for_selector("article.reply")
    while page.locator(".earlier:visible").count():
        turns = page.locator("article").count()
        page.locator(".earlier").click()
        until(page, f"document.querySelectorAll('article').length > {turns}")
    assert page.locator("article").count() == 200
    box = page.get_by_role("textbox", name="Message")
    box.fill("novel 30000 2400")
    page.keyboard.press("Enter")
    until(page, "document.querySelector('article.reply.live > .blocks')?.textContent.length > 30000")
    page.evaluate(MEASURE_KEYS)
    box.focus()
    page.keyboard.type("typed while a very long reply is still being written, word by word, " * 3, delay=40)
    assert page.locator("article.reply.live").count() == 1
    lags = page.evaluate("window.lags")
    assert len(lags) > 150
    measured("typing beside a reply of 30,000 characters, key to screen, median", statistics.median(lags), 50, "ms")
    measured("typing beside a reply of 30,000 characters, key to screen, 95 %", share(lags, 0.95), 50, "ms")


def test_a_thousand_replies_leave_no_memory_behind(quiet_server: Any, open_context: Any, measured: Measured) -> None:
    """Server and page, between the two hundredth reply and the thousandth: by then everything has been used once, and
    as many chats are kept drawn as ever will be."""
    watched = open_context(quiet_server, viewport={"width": 1280, "height": 800})
    page = watched.context.new_page()
    page.goto(quiet_server.url)
    page.wait_for_selector("body.octavo-ready .example")
    inspector = watched.context.new_cdp_session(page)
    process = psutil.Process(quiet_server.process.pid)

    def write(count: int) -> tuple[float, float]:
        """Has so many replies written; server's and page's memory then, in MiB."""
        for _ in range(0, count, 100):
            page.evaluate(WRITE, [100, PER_CHAT])
            watched.received.clear()
        inspector.send("HeapProfiler.collectGarbage")
        heap = inspector.send("Runtime.getHeapUsage")["usedSize"]
        return process.memory_info().rss / 2**20, heap / 2**20

    before = write(200)
    after = write(REPLIES - 200)
    measured("server's memory, growth from 200 to 1,000 replies", after[0] - before[0], 16, "MiB")
    measured("page's memory, growth from 200 to 1,000 replies", after[1] - before[1], 8, "MiB")
