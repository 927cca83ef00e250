"""Short words for what the tests do in a page."""

from __future__ import annotations

import time
from typing import Any

Page = Any  # playwright's; it need not be installed to collect these tests


def until(page: Page, expression: str, timeout_s: float = 30.0) -> Any:
    """Wait for a JavaScript expression. The page's policy refuses the `eval` that playwright's own waiting needs."""
    end = time.monotonic() + timeout_s
    while time.monotonic() < end:
        value = page.evaluate(expression)
        if value:
            return value
        page.wait_for_timeout(20)
    raise AssertionError(f"not within {timeout_s} s: {expression}")


def send(page: Page, text: str) -> None:
    page.get_by_role("textbox", name="Message").fill(text)
    page.keyboard.press("Enter")


def reply(page: Page) -> Any:
    """The last reply's element."""
    return page.locator("article.reply").last


def answer(page: Page) -> str:
    """The last reply's text as shown."""
    return reply(page).locator("> .blocks").inner_text()


def wait_for_end(page: Page) -> None:
    page.wait_for_selector("article.reply.last:not(.live)")


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
