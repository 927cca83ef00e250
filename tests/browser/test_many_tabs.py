"""Many tabs of one browser: all stream at once, none holds up another, none is sent what it has."""

from __future__ import annotations

import json
import statistics
from typing import Any

from driving import answer, chat_id, choose, reply, send, until, wait_for_end

Page = Any

TABS = 8
PIECES = 360  # at sixty a second: six seconds

# The scripted model says the time in milliseconds, so the newest number on the screen tells how old the screen is.
WATCH_LAG = """() => {
    window.seen = [];
    new MutationObserver(() => requestAnimationFrame(() => {
        const text = document.querySelector('article.reply.live > .blocks')?.textContent ?? '';
        const newest = text.trimEnd().split(/\\s+/).at(-1);
        if (newest && newest !== window.newest) window.seen.push([Date.now(), Number(newest)]);
        window.newest = newest;
    })).observe(document.body, {childList: true, subtree: true, characterData: true});
}"""


def test_eight_tabs_of_one_browser_stream_at_the_same_time(server: Any, watched: Any) -> None:
    pages = [watched.context.new_page() for _ in range(TABS)]
    for page in pages:
        page.goto(server.url, wait_until="commit")  # all of them load at the same time
    for page in pages:
        page.wait_for_selector("body.octavo-ready .example")
        page.evaluate(WATCH_LAG)
    watched.received.clear()
    for page in pages:
        page.get_by_role("textbox", name="Message").fill(f"clock {PIECES}")
    for page in pages:
        page.keyboard.press("Enter")
    for page in pages:
        wait_for_end(page)
    spoken = [[int(number) for number in answer(page).split()] for page in pages]
    assert all(len(numbers) == PIECES for numbers in spoken)
    seen = [page.evaluate("window.seen") for page in pages]  # [when it was on the screen, when it was said]
    first, last = max(times[0][0] for times in seen), min(times[-1][0] for times in seen)
    assert last - first > 1000  # all were seen to grow at the same time, for at least a second

    lags = sorted(shown - said for times in seen for shown, said in times)
    updates = len(lags) / TABS / (PIECES / 60)
    text_bytes = sum(len(answer(page)) for page in pages)
    sent_bytes = sum(len(frame) for frame in watched.received)
    print(
        f"\n{TABS} tabs, 60 pieces/s each: screen behind engine {statistics.median(lags):.0f} ms median,"
        f" {lags[int(len(lags) * 0.95)]} ms at 95 %, {updates:.0f} updates/s a tab;"
        f" {sent_bytes / text_bytes:.1f} bytes sent per byte of text"
    )
    assert statistics.median(lags) < 600  # far above what is measured on a quiet machine: the machine may be busy
    assert sent_bytes < 8 * text_bytes  # the whole reply with each update would be some forty times its length


def test_an_update_does_not_grow_with_the_history(watched: Any, page: Page) -> None:
    question = "echo " + "short words only " * 20

    def ask(count: int) -> int:
        watched.received.clear()
        send(page, question)
        until(page, f"document.querySelectorAll('article.reply').length === {count}")
        wait_for_end(page)
        return sum(len(frame) for frame in watched.received)

    page.keyboard.press("Control+k")
    ask(1)
    at_first = ask(2)
    send(page, "book")
    until(page, "document.querySelectorAll('article.reply').length === 3")
    wait_for_end(page)
    assert len(answer(page)) > 5000
    later = ask(4)
    assert later < 1.5 * at_first + 500


def test_two_tabs_on_one_chat_agree(server: Any, watched: Any, page: Page) -> None:
    send(page, "echo " + "together " * 90)
    address = f"{server.url}/?c={chat_id(page)}"
    other = watched.context.new_page()
    other.goto(address)
    other.wait_for_selector("article.reply .block")
    wait_for_end(page)
    wait_for_end(other)
    assert answer(page) == answer(other) == " ".join(["together"] * 90)
    send(other, "long")
    page.wait_for_selector("article.reply.live .block")
    assert page.locator("article.user").last.locator(".bubble").inner_text() == "long"
    page.bring_to_front()  # the browser draws a tab in the background about once a second
    page.get_by_role("button", name="Stop", exact=True).click()
    wait_for_end(other)
    wait_for_end(page)
    assert answer(page) == answer(other)
    reply(other).get_by_role("button", name="Retry").click()
    page.wait_for_selector("article.reply.live .block")
    page.keyboard.press("Escape")
    wait_for_end(page)
    wait_for_end(other)
    assert page.locator("article").count() == other.locator("article").count() == 4
    choose(page, chat_id(page), "Delete")
    page.get_by_role("dialog").get_by_role("button", name="Delete").click()
    other.wait_for_selector(".welcome .example")
    assert "deleted" in other.locator("#composer-hint").inner_text()


def test_a_closed_tab_does_not_stop_its_reply(server: Any, watched: Any, page: Page) -> None:
    send(page, "echo " + "alone " * 100)
    address = f"{server.url}/?c={chat_id(page)}"
    page.wait_for_selector("article.reply.live .block")
    page.close()
    other = watched.context.new_page()
    other.goto(address)
    other.wait_for_selector("article.reply")
    wait_for_end(other)
    assert answer(other).split() == ["alone"] * 100


def test_a_hidden_tab_is_sent_nothing_and_catches_up(server: Any, watched: Any, page: Page) -> None:
    send(page, "echo " + "unseen " * 120)
    page.wait_for_selector("article.reply.live .block")
    set_hidden(page, True)
    page.wait_for_timeout(300)
    watched.received.clear()
    page.wait_for_timeout(700)
    assert [m for frame in watched.received for m in json.loads(frame) if m["k"] == "p"] == []
    set_hidden(page, False)
    wait_for_end(page)
    assert answer(page).split() == ["unseen"] * 120


def test_a_tab_that_draws_slowly_gets_larger_pieces_and_not_more_of_them(watched: Any, page: Page) -> None:
    send(page, "echo " + "slowly " * 180)  # at sixty a second: three seconds
    page.wait_for_selector("article.reply.live .block")
    page.evaluate("window.requestAnimationFrame = () => 0")  # a window that draws nothing, and is not told so
    page.wait_for_timeout(200)
    watched.received.clear()
    page.wait_for_timeout(1500)
    pieces = [m for frame in watched.received for m in json.loads(frame) if m["k"] == "p"]
    assert 1 <= len(pieces) <= 3  # one a second, where there were some fifteen
    wait_for_end(page)
    assert answer(page).split() == ["slowly"] * 180


def set_hidden(page: Page, hidden: bool) -> None:
    """What the browser does to a tab in the background; headless ones are always in front."""
    page.evaluate(
        """hidden => {
            Object.defineProperty(document, 'hidden', {value: hidden, configurable: true});
            document.dispatchEvent(new Event('visibilitychange'));
        }""",
        hidden,
    )
