"""Many tabs of one browser: all stream at once, none holds up another, none is sent what it has."""

from __future__ import annotations

import datetime
import json
import re
from typing import Any

from driving import answer, chat_id, choose, reply, send, wait_for_end, wait_until

Page = Any

TABS = 8
PIECES = 240  # at sixty a second: four seconds


def test_eight_tabs_of_one_browser_stream_at_the_same_time(server: Any, watched: Any) -> None:
    """How far they are behind is measured elsewhere, on a quiet machine."""
    pages = [watched.context.new_page() for _ in range(TABS)]
    for page in pages:
        page.goto(server.url, wait_until="commit")  # all of them load at the same time
    for page in pages:
        page.wait_for_selector("body.octavo-ready .example")
    watched.received.clear()
    for page in pages:
        page.get_by_role("textbox", name="Message").fill(f"clock {PIECES}")
    with server.held():
        for page in pages:
            page.keyboard.press("Enter")
        for page in pages:  # none waits for the end of another
            page.wait_for_selector("article.reply.live p")
    for page in pages:
        wait_for_end(page)
    assert [len(answer(page).split()) for page in pages] == [PIECES] * TABS
    text_bytes = sum(len(answer(page)) for page in pages)
    sent_bytes = sum(len(frame) for frame in watched.received)
    assert sent_bytes < 8 * text_bytes  # the whole reply with each update would be some thirty times its length


def test_an_update_does_not_grow_with_the_history(watched: Any, page: Page) -> None:
    question = "say " + "short words only " * 20  # in one piece: a busy machine sends it in no fewer updates

    def ask(count: int) -> int:
        watched.received.clear()
        send(page, question)
        wait_for_end(page, count)
        return sum(len(frame) for frame in watched.received)

    page.keyboard.press("Control+k")
    ask(1)
    at_first = ask(2)
    send(page, "book")
    wait_for_end(page, 3)
    assert len(answer(page)) > 5000
    later = ask(4)
    assert later < at_first + 2000


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
    wait_for_end(other, 2)
    wait_for_end(page, 2)
    assert answer(page) == answer(other)
    reply(other).get_by_role("button", name="Retry").click()
    page.wait_for_selector("article.reply.live .block")
    page.keyboard.press("Escape")
    for each in (page, other):
        each.locator("article.reply.last .versions", has_text="2/2").wait_for()
        wait_for_end(each, 2)
    assert page.locator("article").count() == other.locator("article").count() == 4
    choose(page, chat_id(page), "Delete")
    other.wait_for_selector(".welcome .example")
    assert "deleted" in other.locator("#composer-hint").inner_text()


def test_a_closed_tab_does_not_stop_its_reply(server: Any, watched: Any, page: Page) -> None:
    with server.held():
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
    with server.held():
        send(page, "echo " + "unseen " * 120)
        page.wait_for_selector("article.reply.live .block")
        set_hidden(page, True)
        page.get_by_role("searchbox").fill("unseen")
        page.get_by_text(re.compile("chats? found")).wait_for(state="attached")  # the server has heard of both
        watched.received.clear()
    page.wait_for_timeout(700)
    assert [m for frame in watched.received for m in json.loads(frame) if m["k"] == "p"] == []
    set_hidden(page, False)
    wait_for_end(page)
    assert answer(page).split() == ["unseen"] * 120


def test_a_tab_that_draws_slowly_gets_larger_pieces_and_not_more_of_them(watched: Any, page: Page) -> None:
    send(page, "long")
    page.wait_for_selector("article.reply.live .block")
    page.clock.install()
    page.clock.pause_at(datetime.datetime.now() + datetime.timedelta(hours=1))  # nothing is drawn, nor said to be

    def pieces() -> int:
        return sum(message["k"] == "p" for frame in watched.received for message in json.loads(frame))

    before = pieces()
    for _ in range(4):
        last = pieces()
        page.clock.run_for(1000)  # so long a tab waits for a drawing before it asks for more
        wait_until(page, lambda: pieces() > last)  # noqa: B023
        page.wait_for_timeout(500)  # in which there would be some seven
    assert pieces() - before in (4, 5)  # one a second, and one that was under way when the clock stopped
    page.clock.resume()
    page.keyboard.press("Escape")
    wait_for_end(page)
    shown = answer(page)
    page.reload()
    wait_for_end(page)
    assert answer(page) == shown


def set_hidden(page: Page, hidden: bool) -> None:
    """What the browser does to a tab in the background; headless ones are always in front."""
    page.evaluate(
        """hidden => {
            Object.defineProperty(document, 'hidden', {value: hidden, configurable: true});
            document.dispatchEvent(new Event('visibilitychange'));
        }""",
        hidden,
    )
