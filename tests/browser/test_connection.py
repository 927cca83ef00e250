"""Without a connection the page says so, pretends nothing, and goes on by itself when Octavo is back."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from typing import Any

import pytest
from driving import answer, chat_id, row_of, send, until, wait_for_end, wait_until

from octavo.app.chat.store import ChatStore

Page = Any  # playwright's; it need not be installed to collect these tests

ANNOUNCED = """
    window.announced = [];
    const isTold = (node) => node.nodeType === 1 && node.matches("body > .offscreen[role=status]");
    new MutationObserver((changes) => {
        for (const { target } of changes) if (isTold(target)) window.announced.push(target.textContent);
    }).observe(document, { subtree: true, childList: true });
"""


DOWN = """
    const Own = window.WebSocket;
    window.WebSocket = class {
        static OPEN = Own.OPEN;
        constructor(address) {
            if (!window.down) return (window.socket = new Own(address));
            this.readyState = Own.CONNECTING;
            setTimeout(() => {
                this.readyState = Own.CLOSED;
                this.onclose?.();
            }, 10);
        }
    };
"""


@pytest.fixture
def home(server: Any, open_context: Callable[..., Any]) -> Page:
    return opened(server, open_context(server, viewport={"width": 1280, "height": 800}))


def opened(server: Any, watched: Any) -> Page:
    """A page of whose announcements a list is kept, and which `cut_off` can cut off."""
    context = watched.context
    context.add_init_script(ANNOUNCED)
    context.add_init_script(DOWN)
    page = context.new_page()
    page.goto(server.url)
    page.wait_for_selector("body.octavo-ready .example")
    return page


def cut_off(page: Page) -> None:
    page.evaluate("window.down = true; window.socket.close()")
    page.locator(".offline").wait_for()


def come_back(page: Page) -> None:
    """At once, as when the browser notices a network."""
    page.evaluate("window.down = false; window.dispatchEvent(new Event('online'))")


def hint(page: Page) -> str:
    return page.locator("#composer-hint").inner_text()


def test_what_is_sent_while_octavo_comes_back_goes_out_by_itself(home: Page) -> None:
    cut_off(home)
    send(home, "echo patience")
    assert "sent as soon as it answers" in hint(home)
    home.locator(".chip[data-state=lost]").wait_for()
    assert "sent as soon as it answers" in hint(home)
    come_back(home)
    wait_for_end(home)
    assert answer(home) == "patience"
    assert home.locator("article.user").count() == 1
    assert hint(home).startswith("Enter sends")
    assert home.get_by_role("textbox", name="Message").input_value() == ""
    assert home.locator(".chip[data-state=ready]").count() == 1


def test_what_was_sent_goes_out_however_late_octavo_comes_back_and_wherever_the_reader_is(home: Page) -> None:
    send(home, "echo first")
    wait_for_end(home)
    chat = chat_id(home)
    home.clock.install()
    cut_off(home)
    send(home, "echo at last")
    home.clock.run_for(60_000)
    assert "sent as soon as it answers" in hint(home)
    home.locator(".create").click()
    assert "Your text stays here" in hint(home)  # what is written here has not been sent
    row_of(home, chat).locator("a").click()
    assert "sent as soon as it answers" in hint(home)
    home.locator(".create").click()
    come_back(home)
    until(home, "document.querySelector('#composer-hint').innerText.startsWith('Enter sends')")
    row_of(home, chat).locator("a").click()
    wait_for_end(home, 2)
    assert answer(home) == "at last"
    assert home.get_by_role("textbox", name="Message").input_value() == ""


def test_what_was_changed_meanwhile_is_not_sent(home: Page) -> None:
    cut_off(home)
    send(home, "echo first thought")
    home.get_by_role("textbox", name="Message").fill("echo second thought")
    come_back(home)
    home.wait_for_selector(".offline", state="hidden")
    home.wait_for_timeout(300)
    assert home.get_by_role("textbox", name="Message").input_value() == "echo second thought"
    assert home.locator("article.user").count() == 0


def test_what_was_looked_for_before_there_was_a_connection_is_found_with_it(
    spare_server: Any, open_context: Any
) -> None:
    store = ChatStore(spare_server.folder / "chats.sqlite3")
    chat = store.create_chat()
    store.add_message(chat.id, "user", "Where is the ferrywoman?")
    store.close()
    context = open_context(spare_server).context
    context.add_init_script(DOWN)
    context.add_init_script("window.down = true")
    page = context.new_page()
    page.goto(spare_server.url)
    page.wait_for_selector("body.octavo-ready")
    page.get_by_role("searchbox").fill("ferrywoman")
    page.wait_for_timeout(300)  # it is asked for a moment after the last key
    assert page.locator(".toast").count() == 0
    come_back(page)
    row_of(page, chat.id).locator(".more mark", has_text="ferrywoman").wait_for()


def test_what_was_under_way_when_the_connection_broke_is_sent_again_and_taken_once(home: Page) -> None:
    send(home, "echo first")
    wait_for_end(home)
    for arrived in (True, False):
        home.evaluate(
            """(arrived) => {
                const { socket } = window;
                socket.onmessage = null; // no answer is heard
                const say = socket.send.bind(socket);
                socket.send = (text) => arrived && say(text);
            }""",
            arrived,
        )
        send(home, f"echo second {arrived}")
        home.wait_for_timeout(300)
        cut_off(home)
        assert "sent as soon as it answers" in hint(home)
        come_back(home)
        home.locator("article.user", has_text=f"second {arrived}").wait_for()
        wait_for_end(home, 2 if arrived else 3)
        until(home, "document.querySelector('#octavo-composer textarea').value === ''")
    assert home.locator("article.user").count() == 3


def test_enter_before_a_new_tab_is_connected_sends_with_the_connection(server: Any, open_context: Any) -> None:
    context = open_context(server).context
    context.add_init_script(DOWN)
    context.add_init_script("window.down = true")
    page = context.new_page()
    page.goto(server.url)
    page.wait_for_selector("body.octavo-ready")
    send(page, "echo at once")
    assert "sent as soon as it answers" in hint(page)
    come_back(page)
    wait_for_end(page)
    assert answer(page) == "at once"


def test_a_reply_goes_on_where_a_lost_connection_comes_back(home: Page, server: Any) -> None:
    with server.held():
        send(home, "clock 120")
        home.wait_for_selector("article.reply.live p")
        cut_off(home)
        home.wait_for_selector("article.reply.last:not(.live) >> text=The connection to Octavo broke")
        home.evaluate("window.down = false")
        home.wait_for_selector("article.reply.live")
        assert home.locator("article.reply .notice").count() == 0
    wait_for_end(home)
    assert len(answer(home).split()) == 120
    until(home, "window.announced.at(-1) === 'The reply is complete.'")


def test_how_a_reply_ended_is_announced_as_it_was(home: Page) -> None:
    send(home, "echo whole")
    wait_for_end(home)
    until(home, "window.announced.at(-1) === 'The reply is complete.'")
    send(home, "clock 4000")
    home.wait_for_selector("article.reply.live p")
    home.keyboard.press("Escape")
    wait_for_end(home, 2)
    until(home, "window.announced.at(-1) === 'The reply was stopped.'")
    send(home, "fail")
    home.wait_for_selector("article.reply [role=alert]")
    until(home, "window.announced.at(-1) === 'The reply failed.'")


def on_disk(server: Any) -> str:
    """What the file holds of the last turn."""
    with closing(sqlite3.connect(server.folder / "chats.sqlite3", timeout=60)) as db:
        return db.execute("SELECT content FROM messages ORDER BY seq DESC LIMIT 1").fetchone()[0]


def test_a_server_that_dies_is_missed_and_one_that_is_closed_says_so_once(spare_server: Any, open_context: Any) -> None:
    server = spare_server
    watched = open_context(server)
    page = opened(server, watched)
    send(page, "clock 4000")
    page.wait_for_selector("article.reply.live p")
    wait_until(page, lambda: on_disk(server))
    server.process.kill()
    server.process.wait()
    page.wait_for_selector("article.reply.last:not(.live) >> text=The connection to Octavo broke")
    until(page, "!document.querySelector('.row-chat.writing, .chip[data-state=ready], .send.stops')")
    assert "not reachable right now" in hint(page)
    assert "Reconnecting" in page.locator(".offline").inner_text()
    notice = page.locator("article.reply .notice").inner_text()
    wait_until(page, lambda: page.evaluate("window.announced").count(notice) == 1)
    server.start()
    page.wait_for_selector("article.reply.last >> text=Octavo ended unexpectedly while this was being written.")
    assert page.locator("article.reply .notice").count() == 1
    assert page.locator("article.reply .figures").inner_text() == "interrupted"
    until(page, "document.querySelector('#composer-hint').innerText.startsWith('Enter sends')")
    page.wait_for_selector(".chip[data-state=ready]")
    send(page, "clock 4000")
    page.wait_for_selector("article.reply.last.live p")
    server.process.terminate()
    page.wait_for_selector(".offline:not([hidden]) >> text=Closed")
    page.wait_for_selector("article.reply.last:not(.live) >> text=Octavo was closed while this was being written.")
    server.process.wait(240)
    page.wait_for_timeout(1500)  # several tries to connect
    assert page.locator("article.reply.last .notice").count() == 1
    assert "interrupted" in page.locator("article.reply.last .figures").inner_text()
    announced = page.evaluate("window.announced")
    assert "The reply is complete." not in announced
    assert sum("Octavo was closed" in text for text in announced) == 1
    # What was being asked when the server died ends in an error of the network, which the browser notes by itself.
    watched.errors[:] = [error for error in watched.errors if "net::ERR_" not in error and "WebSocket" not in error]
