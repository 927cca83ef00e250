"""One tab: sending, reading, stopping, the list of chats."""

from __future__ import annotations

import re
from typing import Any

import pytest
from driving import (
    answer,
    at_rest,
    chat_id,
    choose,
    clipboard_is,
    flashing,
    reply,
    row_of,
    send,
    until,
    wait_for_end,
)

Page = Any  # playwright's; it need not be installed to collect these tests

UNLOAD = """() => fetch('/api/ui/models/unload', {
    method: 'POST', body: '{"force": true}', headers: { 'content-type': 'application/json' }
})"""


def test_a_reply_streams_in_and_gets_its_line_of_figures(tab: Page, server: Any) -> None:
    with server.held():
        send(tab, "echo " + "one two three four five six seven eight nine ten " * 12)
        tab.wait_for_selector("article.reply.live .block")
        partial = answer(tab)
    wait_for_end(tab)
    whole = answer(tab)
    assert whole == " ".join(["one two three four five six seven eight nine ten"] * 12)
    assert len(partial) < len(whole)
    figures = reply(tab).locator(".figures").inner_text()
    assert re.search(r"\d+ tok/s.*first \S+ m?s.*\d+ prompt \(\d+ cached\).*\d+ tokens.*finished", figures, re.DOTALL)
    tab.locator(".context[aria-label^='Context used']").wait_for()
    assert tab.locator(".chip .name").inner_text() == "SmolLM2-135M-Instruct"  # as the models panel calls it
    assert tab.locator("#octavo-model dt", has_text="Name in the API").count() == 1
    assert tab.locator("#octavo-model dd", has_text="Scripted-135M-Instruct").count() == 1
    memory = tab.locator("#octavo-model dd", has_text="weights").text_content()
    assert memory.endswith("one chat of 8,192 tokens takes 180 MiB, all chats together grow up to 2 GiB")


def test_a_reply_without_a_model_offers_to_load_the_one_of_before(tab: Page) -> None:
    """The last one in a new chat, the chat's own in an old one."""
    tab.evaluate(UNLOAD)
    tab.locator(".chip[data-state=empty]").wait_for()
    send(tab, "echo at last")
    failure = reply(tab).locator(".failure")
    failure.get_by_text("No model is loaded.").wait_for()
    failure.get_by_role("button", name=re.compile("^Load .+, then retry$")).click()
    until(tab, "document.querySelector('article.reply.last > .blocks').innerText === 'at last'")
    tab.locator(".chip[data-state=ready]").wait_for()
    tab.evaluate(UNLOAD)
    tab.locator(".chip[data-state=empty]").wait_for()
    send(tab, "echo once more")
    failure.get_by_role("button", name=re.compile("^Load .+, then retry$")).press("Enter")
    until(tab, "document.querySelector('article.reply.last > .blocks').innerText === 'once more'")


def test_the_line_of_figures_says_how_many_guesses_were_right(tab: Page) -> None:
    send(tab, "guess 40 30 so much was guessed")
    wait_for_end(tab)
    assert "40 guessed, 75% right, about 2.0× as fast" in reply(tab).locator(".figures").inner_text()
    send(tab, "echo nothing guessed")
    wait_for_end(tab, 2)
    assert "guessed" not in reply(tab).locator(".figures").inner_text()


def test_markdown_is_drawn_with_code_tables_and_formulas(tab: Page) -> None:
    send(tab, "story")
    wait_for_end(tab)
    shown = reply(tab)
    assert shown.locator("ol > li").count() == 3
    assert shown.locator("table td").count() == 9
    assert shown.locator("math").count() == 2
    assert shown.locator("math").last.bounding_box()["height"] > 15
    assert shown.locator("pre .k").count() > 0
    assert "$40 a day" in shown.inner_text()


def test_stop_keeps_what_was_written(tab: Page) -> None:
    send(tab, "long")
    tab.wait_for_selector("article.reply.live .block >> nth=2")
    tab.get_by_role("button", name="Stop", exact=True).press("Enter")
    wait_for_end(tab)
    until(tab, "document.activeElement.tagName === 'TEXTAREA'")  # the keyboard is not lost with the button
    text = answer(tab)
    assert text.startswith("The keeper had not slept")
    assert "stopped" in reply(tab).locator(".figures").inner_text()
    tab.reload()
    tab.wait_for_selector("article.reply .figures")
    assert answer(tab) == text
    send(tab, "echo goes on")
    wait_for_end(tab, 2)
    assert "goes on" in reply(tab).inner_text()


def test_escape_stops_and_a_stopped_chat_says_so_in_the_list(tab: Page) -> None:
    send(tab, "long")
    tab.wait_for_selector("article.reply.live .block")
    tab.wait_for_selector(f".row-chat.writing[data-id='{chat_id(tab)}']")
    tab.keyboard.press("Escape")
    wait_for_end(tab)
    tab.wait_for_selector(f".row-chat[data-id='{chat_id(tab)}']:not(.writing)")


def test_a_reload_in_the_middle_goes_on_and_loses_nothing(tab: Page, server: Any) -> None:
    numbers = " ".join(str(n) for n in range(120))
    with server.held():
        send(tab, f"echo {numbers}")
        tab.wait_for_selector("article.reply.live .block")
        address = tab.url
        tab.reload()
        tab.wait_for_selector("article.reply.live .block")
        assert tab.url == address
    wait_for_end(tab)
    assert answer(tab).split() == numbers.split()
    assert tab.locator("article.user").count() == 1


def test_switching_chats_interrupts_nothing_and_delete_asks_first(tab: Page, server: Any) -> None:
    with server.held():
        send(tab, "echo " + "first " * 120)
        first = chat_id(tab)
        tab.wait_for_selector("article.reply.live .block")
        tab.keyboard.press("Control+k")
        tab.wait_for_selector(".welcome .example")
        send(tab, "echo second")
        until(tab, f"!location.search.includes('{first}') && location.search.startsWith('?c=')")
        second = chat_id(tab)
        wait_for_end(tab)
        tab.locator(f".row-chat[data-id='{first}'] a").click()
        tab.wait_for_selector("article.reply.live .block")
    wait_for_end(tab)
    assert answer(tab).split() == ["first"] * 120
    tab.wait_for_selector(f".row-chat[data-id='{first}'] + .row-chat[data-id='{second}']")
    tab.keyboard.press("Alt+ArrowDown")  # the chat that ended last is on top
    tab.wait_for_url(f"**/?c={second}")
    tab.locator("article.reply.last", has_text="second").wait_for()
    tab.go_back()
    tab.wait_for_url(f"**/?c={first}")

    row = row_of(tab, first)
    choose(tab, first, "Rename")
    tab.keyboard.insert_text("Renamed <b>it</b>")
    tab.keyboard.press("Enter")
    until(tab, "document.title === 'Renamed <b>it</b> · Octavo'")
    choose(tab, first, "Delete")
    row.wait_for(state="detached")
    tab.wait_for_selector(".welcome .example")
    tab.wait_for_url("**/")


def test_a_message_is_sent_once_however_it_is_sent(tab: Page) -> None:
    box = tab.get_by_role("textbox", name="Message")
    box.fill("echo once")
    tab.evaluate(
        """() => {
            const form = document.querySelector('#octavo-composer form');
            form.requestSubmit(); form.requestSubmit();
            form.querySelector('textarea').dispatchEvent(new KeyboardEvent('keydown', {key: 'Enter', bubbles: true}));
        }"""
    )
    wait_for_end(tab)
    assert tab.locator("article.user").count() == 1
    assert tab.locator("article.reply").count() == 1
    assert box.input_value() == ""


def test_enter_of_an_input_method_and_shift_enter_do_not_send(tab: Page) -> None:
    box = tab.get_by_role("textbox", name="Message")
    box.fill("ni")
    box.evaluate(
        "box => box.dispatchEvent(new KeyboardEvent('keydown', {key: 'Enter', isComposing: true, bubbles: true}))"
    )
    box.press("Shift+Enter")
    tab.keyboard.type("hao")
    assert box.input_value() == "ni\nhao"
    assert tab.locator("article").count() == 0


def test_enter_while_a_reply_is_written_keeps_the_text(tab: Page) -> None:
    send(tab, "long")
    tab.wait_for_selector("article.reply.live .block")
    send(tab, "echo later")
    assert tab.get_by_role("textbox", name="Message").input_value() == "echo later"
    tab.locator("#composer-hint", has_text="Stop it or wait").wait_for()
    tab.keyboard.press("Escape")
    wait_for_end(tab)
    assert tab.locator("article.user").count() == 1


def test_the_reader_stays_where_he_is_until_he_goes_to_the_end(tab: Page) -> None:
    send(tab, "book")
    wait_for_end(tab)
    send(tab, "long")
    tab.wait_for_selector("article.reply.live .block")
    tab.mouse.move(700, 400)
    tab.mouse.wheel(0, -500)
    tab.wait_for_selector(".to-end:not([hidden])")
    top = at_rest(tab, "document.querySelector('.scroller').scrollTop")
    height = tab.evaluate("document.querySelector('.scroller').scrollHeight")
    until(tab, f"document.querySelector('.scroller').scrollHeight > {height} + 100")
    assert tab.evaluate("document.querySelector('.scroller').scrollTop") == pytest.approx(top, abs=1)
    tab.get_by_role("button", name="To the end").click()
    tab.locator(".to-end").wait_for(state="hidden")
    until(tab, "(s => s.scrollHeight - s.scrollTop - s.clientHeight < 40)(document.querySelector('.scroller'))")
    tab.keyboard.press("Escape")
    wait_for_end(tab, 2)


def test_copy_takes_the_markdown_of_the_answer_only(page: Page, server: Any) -> None:
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    text = "A **list**:\n\n- one\n\t- tab\n\n```python\nif x:\n\treturn 1\n```"
    with server.held():
        send(page, f"think {text}")
        page.wait_for_selector("article.reply.live .thought.now", state="attached")
        assert page.locator("article.reply .thought .label").inner_text().startswith("Thinking")
    wait_for_end(page)
    assert page.locator("article.reply .thought .label").inner_text().startswith("Thought for")
    with flashing(page, "article.reply footer .icon-check"):
        reply(page).get_by_role("button", name="Copy", exact=True).click()
    clipboard_is(page, text)
    with flashing(page, "article.reply .code-head .icon-check"):
        reply(page).get_by_role("button", name="Copy code").click()
    clipboard_is(page, "if x:\n\treturn 1")
    page.evaluate("Object.defineProperty(window, 'isSecureContext', {value: false})")  # as over plain http
    page.evaluate("navigator.clipboard.writeText('')")
    page.wait_for_selector("article.reply footer .icon-copy")
    with flashing(page, "article.reply footer .icon-check"):
        reply(page).get_by_role("button", name="Copy", exact=True).click()
    clipboard_is(page, text)


def test_reading_a_long_prompt_shows_how_far_it_is(tab: Page, server: Any) -> None:
    with server.held():
        send(tab, "read 120 then it answers")
        waiting = "document.querySelector('article.reply .waiting:has(.meter)')?.innerText"
        said = until(tab, f"{waiting}?.includes('12,000 tokens') && {waiting}")
    assert re.search(r"Reading · [\d,]+ of 12,000 tokens", said)
    assert "4,000 were known already" in said
    wait_for_end(tab)
    assert tab.locator("article.reply .waiting").is_hidden()


def test_a_failed_reply_says_why_and_can_be_retried(tab: Page) -> None:
    send(tab, "fail")
    tab.wait_for_selector("article.reply .failure")
    assert "The scores were not numbers." in tab.locator(".failure").inner_text()
    tab.locator(".failure").get_by_role("button", name="Retry").click()
    tab.wait_for_selector("article.reply .versions:not([hidden]) >> text=2/2")
    tab.wait_for_selector("article.reply .failure")
    assert tab.locator("article.user").count() == 1
    assert tab.locator("article.reply").count() == 1


HOSTILE = (
    '<img src=x onerror="window.hit=1"> <script>window.hit=2</script> <svg onload=window.hit=3></svg> '
    "<style>body{display:none}</style> [click](javascript:window.hit=4) ![p](https://evil.example/p.png) "
    '<svg><a href="javascript:window.hit=5"><text>click</text></a></svg> <div style="position:fixed;inset:0">x</div> '
    "<form action=https://evil.example><button>go</button></form> \\(\\text{<img src=x onerror=window.hit=6>}\\)"
)


def test_what_the_model_and_the_user_write_can_do_nothing(tab: Page, server: Any) -> None:
    send(tab, f"echo {HOSTILE}")
    wait_for_end(tab)
    shown = reply(tab).locator("> .blocks")
    assert "<script>window.hit=2</script>" in shown.inner_text()
    assert shown.locator("img, script, svg, style, form, iframe, [style]").count() == 0
    for link in shown.locator("a").all():
        assert link.get_attribute("href").startswith("https://")
        assert link.get_attribute("rel") == "noopener noreferrer"
    tab.reload()
    tab.wait_for_selector("article.reply .figures")
    tab.wait_for_timeout(200)
    assert tab.evaluate("window.hit") is None
    assert tab.evaluate("getComputedStyle(document.body).display") != "none"
    assert tab.locator(".row-chat [aria-current] .title").inner_text().startswith("echo <img src=x")


def test_the_page_runs_under_a_strict_policy(page: Page, server: Any, watched: Any) -> None:
    response = page.request.get(server.url, headers={"accept": "text/html"})
    policy = response.headers["content-security-policy"]
    assert "unsafe-eval" not in policy
    assert "'unsafe-inline'" not in policy.partition("script-src")[2].partition(";")[0]
    page.evaluate(
        """() => {
            const script = document.createElement('script');
            script.textContent = 'window.hit = 1';
            document.addEventListener('securitypolicyviolation', event => { window.refused = true });
            document.body.append(script);
        }"""
    )
    until(page, "window.refused")
    assert page.evaluate("window.hit") is None
    watched.errors.clear()  # the refusal just provoked


def test_everything_can_be_reached_by_keyboard_and_has_a_name(tab: Page) -> None:
    send(tab, "echo hello")
    wait_for_end(tab)
    nameless = tab.evaluate(
        """() => [...document.querySelectorAll('#octavo :is(button, input, textarea, a)')]
            .filter(e => !(e.getAttribute('aria-label') || e.textContent.trim())).map(e => e.outerHTML)"""
    )
    assert nameless == []
    seen = set()
    tab.locator(".create").focus()
    for _ in range(6):
        tab.keyboard.press("Tab")
        seen.add(tab.evaluate("document.activeElement.ariaLabel"))
    tab.locator(".row-chat a").last.focus()
    for _ in range(16):
        tab.keyboard.press("Tab")
        seen.add(tab.evaluate("document.activeElement.ariaLabel"))
    assert {"Search chats", "Temporary chat", "More for this chat", "Edit", "Copy", "Retry", "Message"} <= seen
    assert {"Delete with its replies", "Delete this reply"} <= seen
    assert "Model: SmolLM2-135M-Instruct, Q4_1 as bfloat16 · CPU" in seen
    assert tab.locator("[role=log]").count() == 1
