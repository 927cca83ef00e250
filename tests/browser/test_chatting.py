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


def test_a_reply_streams_in_and_gets_its_line_of_figures(page: Page, server: Any) -> None:
    with server.held():
        send(page, "echo " + "one two three four five six seven eight nine ten " * 12)
        page.wait_for_selector("article.reply.live .block")
        partial = answer(page)
    wait_for_end(page)
    whole = answer(page)
    assert whole == " ".join(["one two three four five six seven eight nine ten"] * 12)
    assert len(partial) < len(whole)
    figures = reply(page).locator(".figures").inner_text()
    assert re.search(r"\d+ tok/s.*first \S+ m?s.*\d+ prompt \(\d+ cached\).*\d+ tokens.*finished", figures, re.DOTALL)
    page.locator(".context[aria-label^='Context used']").wait_for()
    assert page.locator(".chip .name").inner_text() == "SmolLM2-135M-Instruct"  # as the models panel calls it
    assert page.locator("#octavo-model dt", has_text="Name in the API").count() == 1
    assert page.locator("#octavo-model dd", has_text="Scripted-135M-Instruct").count() == 1
    memory = page.locator("#octavo-model dd", has_text="weights").text_content()
    assert memory.endswith("one chat of 8,192 tokens takes 180 MiB, all chats together grow up to 2 GiB")


def test_a_reply_without_a_model_offers_to_load_the_one_of_before(page: Page) -> None:
    """The last one in a new chat, the chat's own in an old one."""
    page.evaluate(UNLOAD)
    page.locator(".chip[data-state=empty]").wait_for()
    send(page, "echo at last")
    failure = reply(page).locator(".failure")
    failure.get_by_text("No model is loaded.").wait_for()
    failure.get_by_role("button", name=re.compile("^Load .+, then retry$")).click()
    until(page, "document.querySelector('article.reply.last > .blocks').innerText === 'at last'")
    page.locator(".chip[data-state=ready]").wait_for()
    page.evaluate(UNLOAD)
    page.locator(".chip[data-state=empty]").wait_for()
    send(page, "echo once more")
    failure.get_by_role("button", name=re.compile("^Load .+, then retry$")).press("Enter")
    until(page, "document.querySelector('article.reply.last > .blocks').innerText === 'once more'")


def test_the_line_of_figures_says_how_many_guesses_were_right(page: Page) -> None:
    send(page, "guess 40 30 so much was guessed")
    wait_for_end(page)
    assert "40 guessed, 75% right, about 2.0× as fast" in reply(page).locator(".figures").inner_text()
    send(page, "echo nothing guessed")
    wait_for_end(page, 2)
    assert "guessed" not in reply(page).locator(".figures").inner_text()


def test_markdown_is_drawn_with_code_tables_and_formulas(page: Page) -> None:
    send(page, "story")
    wait_for_end(page)
    shown = reply(page)
    assert shown.locator("ol > li").count() == 3
    assert shown.locator("table td").count() == 9
    assert shown.locator("math").count() == 2
    assert shown.locator("math").last.bounding_box()["height"] > 15
    assert shown.locator("pre .k").count() > 0
    assert "$40 a day" in shown.inner_text()


def test_stop_keeps_what_was_written(page: Page) -> None:
    send(page, "long")
    page.wait_for_selector("article.reply.live .block >> nth=2")
    page.get_by_role("button", name="Stop", exact=True).press("Enter")
    wait_for_end(page)
    until(page, "document.activeElement.tagName === 'TEXTAREA'")  # the keyboard is not lost with the button
    text = answer(page)
    assert text.startswith("The keeper had not slept")
    assert "stopped" in reply(page).locator(".figures").inner_text()
    page.reload()
    page.wait_for_selector("article.reply .figures")
    assert answer(page) == text
    send(page, "echo goes on")
    wait_for_end(page, 2)
    assert "goes on" in reply(page).inner_text()


def test_escape_stops_and_a_stopped_chat_says_so_in_the_list(page: Page) -> None:
    send(page, "long")
    page.wait_for_selector("article.reply.live .block")
    page.wait_for_selector(f".row-chat.writing[data-id='{chat_id(page)}']")
    page.keyboard.press("Escape")
    wait_for_end(page)
    page.wait_for_selector(f".row-chat[data-id='{chat_id(page)}']:not(.writing)")


def test_a_reload_in_the_middle_goes_on_and_loses_nothing(page: Page, server: Any) -> None:
    numbers = " ".join(str(n) for n in range(360))
    with server.held():
        send(page, f"echo {numbers}")
        page.wait_for_selector("article.reply.live .block")
        address = page.url
        page.reload()
        page.wait_for_selector("article.reply.live .block")
        assert page.url == address
    wait_for_end(page)
    assert answer(page).split() == numbers.split()
    assert page.locator("article.user").count() == 1


def test_switching_chats_interrupts_nothing_and_delete_asks_first(page: Page, server: Any) -> None:
    with server.held():
        send(page, "echo " + "first " * 360)
        first = chat_id(page)
        page.wait_for_selector("article.reply.live .block")
        page.keyboard.press("Control+k")
        page.wait_for_selector(".welcome .example")
        send(page, "echo second")
        until(page, f"!location.search.includes('{first}') && location.search.startsWith('?c=')")
        second = chat_id(page)
        wait_for_end(page)
        page.locator(f".row-chat[data-id='{first}'] a").click()
        page.wait_for_selector("article.reply.live .block")
    wait_for_end(page)
    assert answer(page).split() == ["first"] * 360
    page.wait_for_selector(f".row-chat[data-id='{first}'] + .row-chat[data-id='{second}']")
    page.keyboard.press("Alt+ArrowDown")  # the chat that ended last is on top
    page.wait_for_url(f"**/?c={second}")
    page.locator("article.reply.last", has_text="second").wait_for()
    page.go_back()
    page.wait_for_url(f"**/?c={first}")

    row = row_of(page, first)
    choose(page, first, "Rename")
    page.keyboard.insert_text("Renamed <b>it</b>")
    page.keyboard.press("Enter")
    until(page, "document.title === 'Renamed <b>it</b> · Octavo'")
    choose(page, first, "Delete")
    row.wait_for(state="detached")
    page.wait_for_selector(".welcome .example")
    page.wait_for_url("**/")


def test_a_message_is_sent_once_however_it_is_sent(page: Page) -> None:
    box = page.get_by_role("textbox", name="Message")
    box.fill("echo once")
    page.evaluate(
        """() => {
            const form = document.querySelector('#octavo-composer form');
            form.requestSubmit(); form.requestSubmit();
            form.querySelector('textarea').dispatchEvent(new KeyboardEvent('keydown', {key: 'Enter', bubbles: true}));
        }"""
    )
    wait_for_end(page)
    assert page.locator("article.user").count() == 1
    assert page.locator("article.reply").count() == 1
    assert box.input_value() == ""


def test_enter_of_an_input_method_and_shift_enter_do_not_send(page: Page) -> None:
    box = page.get_by_role("textbox", name="Message")
    box.fill("ni")
    box.evaluate(
        "box => box.dispatchEvent(new KeyboardEvent('keydown', {key: 'Enter', isComposing: true, bubbles: true}))"
    )
    box.press("Shift+Enter")
    page.keyboard.type("hao")
    assert box.input_value() == "ni\nhao"
    assert page.locator("article").count() == 0


def test_enter_while_a_reply_is_written_keeps_the_text(page: Page) -> None:
    send(page, "long")
    page.wait_for_selector("article.reply.live .block")
    send(page, "echo later")
    assert page.get_by_role("textbox", name="Message").input_value() == "echo later"
    page.locator("#composer-hint", has_text="Stop it or wait").wait_for()
    page.keyboard.press("Escape")
    wait_for_end(page)
    assert page.locator("article.user").count() == 1


def test_the_reader_stays_where_he_is_until_he_goes_to_the_end(page: Page) -> None:
    send(page, "book")
    wait_for_end(page)
    send(page, "long")
    page.wait_for_selector("article.reply.live .block")
    page.mouse.move(700, 400)
    page.mouse.wheel(0, -500)
    page.wait_for_selector(".to-end:not([hidden])")
    top = at_rest(page, "document.querySelector('.scroller').scrollTop")
    height = page.evaluate("document.querySelector('.scroller').scrollHeight")
    until(page, f"document.querySelector('.scroller').scrollHeight > {height} + 100")
    assert page.evaluate("document.querySelector('.scroller').scrollTop") == pytest.approx(top, abs=1)
    page.get_by_role("button", name="To the end").click()
    page.locator(".to-end").wait_for(state="hidden")
    until(page, "(s => s.scrollHeight - s.scrollTop - s.clientHeight < 40)(document.querySelector('.scroller'))")
    page.keyboard.press("Escape")
    wait_for_end(page, 2)


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


def test_reading_a_long_prompt_shows_how_far_it_is(page: Page, server: Any) -> None:
    with server.held():
        send(page, "read 120 then it answers")
        waiting = "document.querySelector('article.reply .waiting:has(.meter)')?.innerText"
        said = until(page, f"{waiting}?.includes('12,000 tokens') && {waiting}")
    assert re.search(r"Reading · [\d,]+ of 12,000 tokens", said)
    assert "4,000 were known already" in said
    wait_for_end(page)
    assert page.locator("article.reply .waiting").is_hidden()


def test_a_failed_reply_says_why_and_can_be_retried(page: Page) -> None:
    send(page, "fail")
    page.wait_for_selector("article.reply .failure")
    assert "The scores were not numbers." in page.locator(".failure").inner_text()
    page.locator(".failure").get_by_role("button", name="Retry").click()
    page.wait_for_selector("article.reply .versions:not([hidden]) >> text=2/2")
    page.wait_for_selector("article.reply .failure")
    assert page.locator("article.user").count() == 1
    assert page.locator("article.reply").count() == 1


HOSTILE = (
    '<img src=x onerror="window.hit=1"> <script>window.hit=2</script> <svg onload=window.hit=3></svg> '
    "<style>body{display:none}</style> [click](javascript:window.hit=4) ![p](https://evil.example/p.png) "
    '<svg><a href="javascript:window.hit=5"><text>click</text></a></svg> <div style="position:fixed;inset:0">x</div> '
    "<form action=https://evil.example><button>go</button></form> \\(\\text{<img src=x onerror=window.hit=6>}\\)"
)


def test_what_the_model_and_the_user_write_can_do_nothing(page: Page, server: Any) -> None:
    send(page, f"echo {HOSTILE}")
    wait_for_end(page)
    shown = reply(page).locator("> .blocks")
    assert "<script>window.hit=2</script>" in shown.inner_text()
    assert shown.locator("img, script, svg, style, form, iframe, [style]").count() == 0
    for link in shown.locator("a").all():
        assert link.get_attribute("href").startswith("https://")
        assert link.get_attribute("rel") == "noopener noreferrer"
    page.reload()
    page.wait_for_selector("article.reply .figures")
    page.wait_for_timeout(200)
    assert page.evaluate("window.hit") is None
    assert page.evaluate("getComputedStyle(document.body).display") != "none"
    assert page.locator(".row-chat [aria-current] .title").inner_text().startswith("echo <img src=x")


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


def test_everything_can_be_reached_by_keyboard_and_has_a_name(page: Page) -> None:
    send(page, "echo hello")
    wait_for_end(page)
    nameless = page.evaluate(
        """() => [...document.querySelectorAll('#octavo :is(button, input, textarea, a)')]
            .filter(e => !(e.getAttribute('aria-label') || e.textContent.trim())).map(e => e.outerHTML)"""
    )
    assert nameless == []
    seen = set()
    page.locator(".create").focus()
    for _ in range(6):
        page.keyboard.press("Tab")
        seen.add(page.evaluate("document.activeElement.ariaLabel"))
    page.locator(".row-chat a").last.focus()
    for _ in range(16):
        page.keyboard.press("Tab")
        seen.add(page.evaluate("document.activeElement.ariaLabel"))
    assert {"Search chats", "Temporary chat", "More for this chat", "Edit", "Copy", "Retry", "Message"} <= seen
    assert {"Delete with its replies", "Delete this reply"} <= seen
    assert "Model: SmolLM2-135M-Instruct, Q4_1 as bfloat16 · CPU" in seen
    assert page.locator("[role=log]").count() == 1
