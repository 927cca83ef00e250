"""Short words for what the tests do in a page."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

Page = Any  # playwright's; it need not be installed to collect these tests


def until(page: Page, expression: str, timeout_s: float = 60.0) -> Any:
    """Wait for a JavaScript expression, which may speak of what is not there yet. The page's policy refuses the `eval`
    that playwright's own waiting needs."""
    end = time.monotonic() + timeout_s
    asked = f"(async () => {{ try {{ return [await ({expression})]; }} catch (e) {{ return [null, String(e)]; }} }})()"
    while True:
        value, *failure = page.evaluate(asked)
        if value:
            return value
        if time.monotonic() > end:
            raise AssertionError(f"not within {timeout_s} s: {expression} is {value!r} {failure}")
        page.wait_for_timeout(20)


def wait_until(page: Page, condition: Callable[[], object], timeout_s: float = 60.0) -> None:
    """Wait for something outside the page, or for what playwright was told by it."""
    end = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < end, f"not within {timeout_s} s"
        page.wait_for_timeout(20)


def at_rest(page: Page, expression: str, frames: int = 20) -> Any:
    """The value of an expression once it is the same over so many frames: nothing moves any more."""
    script = f"""async (frames) => {{
        const value = () => {expression};
        let last = value();
        for (let same = 0; same < frames; ) {{
            await new Promise((done) => requestAnimationFrame(done));
            const now = value();
            same = now === last ? same + 1 : 0;
            last = now;
        }}
        return last;
    }}"""
    return page.evaluate(script, frames)


@contextmanager
def flashing(page: Page, selector: str) -> Iterator[None]:
    """Wait for what stays only a moment after what is done here; asked later, a slow machine may have it behind it."""
    page.evaluate(
        """selector => {
            window.flashed = false;
            new MutationObserver((_, watcher) => {
                if (!document.querySelector(selector)) return;
                window.flashed = true;
                watcher.disconnect();
            }).observe(document.body, { childList: true, subtree: true, attributes: true });
        }""",
        selector,
    )
    yield
    until(page, "window.flashed")


def send(page: Page, text: str) -> None:
    page.get_by_role("textbox", name="Message").fill(text)
    page.keyboard.press("Enter")


def reply(page: Page) -> Any:
    """The last reply's element."""
    return page.locator("article.reply").last


def answer(page: Page) -> str:
    """The last reply's text as shown."""
    return reply(page).locator("> .blocks").inner_text()


def wait_for_end(page: Page, replies: int | None = None) -> None:
    """Wait until the last reply has ended. Where there were some before, `replies` says how many there will be, or the
    one before may be taken for it."""
    expression = "document.querySelector('article.reply.last:not(.live)') !== null"
    if replies is not None:
        expression += f" && document.querySelectorAll('article.reply').length === {replies}"
    until(page, expression)


def clipboard_is(page: Page, text: str) -> None:
    until(page, f"navigator.clipboard.readText().then((text) => text === {json.dumps(text)})")


def row_of(page: Page, chat: str) -> Any:
    """The chat's line in the list."""
    return page.locator(f".row-chat[data-id='{chat}']")


def choose(page: Page, chat: str, item: str) -> None:
    """Choose from the menu of a chat's line in the list."""
    row = row_of(page, chat)
    row.hover()
    row.get_by_role("button", name="More for this chat").click()
    page.get_by_role("menuitem", name=item).click()


def chat_id(page: Page) -> str:
    page.wait_for_url("**/?c=*")
    return page.url.rpartition("=")[2]
