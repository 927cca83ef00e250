"""Writing a message: files, presets, a full window, the keyboard."""

from __future__ import annotations

import re
from typing import Any

from driving import at_rest, clipboard_is, flashing, reply, send, until, wait_for_end, wait_until

Page = Any  # playwright's; it need not be installed to collect these tests

EVIL = "<img src=x onerror='window.hit=1'>.md"  # as a name of a file
NOTES = {"name": EVIL, "mimeType": "text/markdown", "buffer": b"# Notes\n<b>not markup</b>\n" + b"word " * 300}
PICTURE = {"name": "photo.png", "mimeType": "image/png", "buffer": b"\x89PNG\r\n\x1a\n\x00\x00"}
DROP = """() => {
    const data = new DataTransfer();
    data.items.add(new File(['def f():\\n\\treturn 1\\n'], 'code.py', {type: 'text/x-python'}));
    for (const kind of ['dragenter', 'dragover', 'drop'])
        document.querySelector('.scroller').dispatchEvent(
            new DragEvent(kind, {dataTransfer: data, bubbles: true, cancelable: true}));
}"""


def used(page: Page) -> int:
    """Tokens the meter shows."""
    label = page.locator("#octavo-header .context").get_attribute("aria-label") or ""
    return int("".join(c for c in label.partition(" of ")[0] if c.isdecimal()) or -1)


def test_files_are_attached_counted_kept_over_a_reload_and_sent(tab: Page) -> None:
    tab.wait_for_selector("#octavo-header .context:not([hidden])")
    before = used(tab)
    tab.set_input_files("#octavo-composer input[type=file]", [NOTES, PICTURE])
    tab.get_by_role("status").filter(has_text="photo.png is a picture").wait_for()
    chip = tab.locator("#octavo-composer .file").filter(has_text=EVIL)
    chip.filter(has_text="tokens").wait_for()
    until(
        tab,
        f"Number(document.querySelector('.context').ariaLabel.match(/[\\d,]+/)[0].replace(',', '')) > {before} + 1500",
    )
    tab.evaluate(DROP)
    tab.locator("#octavo-composer .file").filter(has_text="code.py").filter(has_text="tokens").wait_for()
    tab.get_by_role("textbox", name="Message").fill("echo read")
    tab.reload()
    tab.wait_for_selector("#octavo-composer .file >> nth=1")
    tab.get_by_role("button", name="Remove code.py").click()
    tab.locator("#octavo-composer .file").filter(has_text="code.py").wait_for(state="detached")
    until(tab, "document.querySelector('.context').textContent.endsWith('/ 8.2k')")  # 8,192, in thousands
    assert tab.locator("#octavo-composer .file").count() == 1
    tab.get_by_role("textbox", name="Message").press("Enter")
    wait_for_end(tab)
    assert tab.locator("#octavo-composer .file").count() == 0
    sent = tab.locator("article.user .file button")
    assert sent.count() == 1
    sent.click()
    dialog = tab.get_by_role("dialog", name=EVIL)
    dialog.get_by_text("<b>not markup</b>").wait_for()
    tab.keyboard.press("Escape")
    dialog.wait_for(state="detached")
    tab.reload()
    tab.wait_for_selector("article.user .file")
    figures = reply(tab).locator(".figures").inner_text()
    assert int(re.search(r"([\d,]+) prompt", figures)[1].replace(",", "")) > 1500  # the model read it
    assert tab.evaluate("window.hit") is None


def test_of_bad_files_that_come_together_each_is_named(tab: Page) -> None:
    names = ["pic.png", "song.mp3", "film.mp4", "pack.zip", "empty.txt"]
    heads = [b"\x89PNG\r\n\x1a\n\0\0", b"ID3\x03\0\0\0\0", b"\0\0\0\x18ftypisom", b"PK\x03\x04\0\0", b""]
    files = [{"name": name, "mimeType": "", "buffer": head} for name, head in zip(names, heads)]
    tab.set_input_files("#octavo-composer input[type=file]", files)
    note = tab.locator(".toast.error")
    for name in names:
        note.filter(has_text=name).wait_for()
    assert note.count() == 1
    assert len(note.locator("p").inner_text().splitlines()) == len(names)


def test_escape_closes_a_panel_wherever_the_keyboard_is_and_stops_a_reply_from_its_box(tab: Page) -> None:
    for name in ("Settings", "Models", "Monitor"):
        tab.get_by_role("button", name=name, exact=True).click()
        tab.locator(f"#octavo-panel .panel-{name.lower()}").wait_for()
        tab.get_by_role("textbox", name="Message").focus()
        tab.keyboard.press("Escape")
        tab.wait_for_selector("#octavo-panel", state="hidden")
    send(tab, "clock 4000")
    tab.wait_for_selector("article.reply.live p")
    tab.get_by_role("button", name="Settings", exact=True).click()
    tab.locator("#octavo-panel .panel-settings .setting").first.wait_for()
    tab.get_by_role("textbox", name="Message").focus()
    tab.keyboard.press("Escape")
    wait_for_end(tab)
    assert tab.locator("#octavo-panel").is_visible()
    tab.evaluate("document.activeElement.blur()")
    tab.keyboard.press("Escape")
    tab.wait_for_selector("#octavo-panel", state="hidden")


def test_a_preset_is_made_chosen_and_kept_by_the_chat(page: Page) -> None:
    page.get_by_role("button", name="Preset", exact=True).click()
    panel = page.get_by_role("complementary", name="Presets")
    panel.get_by_text("0.7 by default").wait_for()
    panel.get_by_role("textbox", name="System text").fill("Answer like a sailor.")
    temperature = panel.get_by_role("textbox", name="Temperature")
    temperature.fill("hot")
    assert temperature.get_attribute("aria-invalid") == "true"
    temperature.fill("1.3")
    assert panel.get_by_role("slider", name="Temperature").input_value() == "1.3"
    panel.get_by_role("button", name="Save as a preset…").click()
    panel.get_by_role("textbox", name="Name of the preset").fill("Sailor")
    page.keyboard.press("Enter")
    page.locator(".tune").filter(has_text="Sailor").wait_for()
    panel.get_by_text("The chat is as the preset says.").wait_for()
    temperature.fill("1.1")
    page.locator(".tune").filter(has_text="Sailor, changed").wait_for()
    temperature.fill("1.3")
    until(page, "document.querySelector('.tune').innerText === 'Sailor'")

    send(page, "echo ahoy")
    wait_for_end(page)
    page.keyboard.press("Control+k")
    page.locator(".tune").filter(has_not_text="Sailor").wait_for()  # a new chat begins without
    until(page, "document.getElementById('system').value === ''")
    page.go_back()
    page.locator(".tune").filter(has_text="Sailor").wait_for()
    until(page, "document.getElementById('system').value === 'Answer like a sailor.'")
    panel.get_by_role("checkbox", name="Begin new chats with it").check()
    page.keyboard.press("Control+k")
    until(page, "!location.search && document.querySelector('.tune').innerText === 'Sailor'")  # unless it is wanted
    page.go_back()
    page.wait_for_url("**/?c=*")
    page.reload()
    panel = page.get_by_role("complementary", name="Presets")
    until(page, "document.getElementById('system')?.value === 'Answer like a sailor.'")
    assert panel.get_by_role("textbox", name="Temperature").input_value() == "1.3"
    panel.get_by_role("button", name="Back to 0.7").click()
    panel.get_by_text("The chat differs from the preset.").wait_for()
    panel.get_by_role("button", name="Delete", exact=True).click()
    page.get_by_role("dialog").get_by_role("button", name="Delete").click()
    page.locator(".tune").filter(has_text="Own settings").wait_for()
    assert page.evaluate("localStorage.getItem('octavo-first-preset')") is None
    assert panel.get_by_role("textbox", name="System text").input_value() == "Answer like a sailor."


def test_a_full_window_is_said_before_anything_is_sent(page: Page, server: Any) -> None:
    box, hint = page.get_by_role("textbox", name="Message"), page.locator("#composer-hint")
    box.fill("long words " * 900)
    hint.filter(has_text="Too long: 9,").wait_for()
    sending = page.get_by_role("button", name="Send", exact=True)
    assert sending.is_disabled()
    assert "Too long" in (sending.get_attribute("title") or "")
    box.press("Enter")
    hint.filter(has_text="context holds 8,192").wait_for()
    assert page.locator("article").count() == 0
    hint.get_by_role("button", name="Larger context…").click()
    page.wait_for_url("**#settings/model.context_length")
    until(page, "document.activeElement.id === 'set-model-context_length'")
    below = "document.querySelector(\"[data-key='model.context_length']\").getBoundingClientRect().top"
    until(page, f"{below} >= document.querySelector('.panel-settings .settings-top').getBoundingClientRect().bottom")
    page.keyboard.press("Escape")

    box.fill("story " + "one " * 1000)
    with server.held():
        box.press("Enter")
        page.wait_for_selector("article.reply.live .block")
        page.keyboard.press("Escape")
        wait_for_end(page)
    box.fill("story " + "two " * 900)
    hint.filter(has_text="Sending this leaves out the oldest turn").wait_for()
    page.locator(".tune").click()
    page.get_by_role("combobox", name="When the context is full").select_option("stop")
    hint.filter(has_text="this chat is set to stop there").wait_for()
    until(page, "document.querySelector('.context').classList.contains('nearly')")  # none will go
    box.press("Enter")
    assert page.locator("article.user").count() == 1
    hint.get_by_role("button", name="Leave out the oldest turns").click()
    hint.filter(has_text="Sending this leaves out the oldest turn").wait_for()
    with server.held():
        box.press("Enter")
        until(page, "document.querySelectorAll('article.reply').length === 2")
        page.wait_for_selector("article.reply.last.live .block")
        page.keyboard.press("Escape")
        wait_for_end(page, 2)
    assert "left out" in reply(page).inner_text()


def test_where_the_context_is_all_the_model_has_no_larger_one_is_offered(server: Any, open_context: Any) -> None:
    page = open_context(server).context.new_page()

    def passed_on(route: Any) -> None:
        behind = route.connect_to_server()
        behind.on_message(lambda message: route.send(re.sub(r'"longest": ?0', '"longest": 8192', message)))

    page.route_web_socket("**/*", passed_on)
    page.goto(server.url)
    page.wait_for_selector("body.octavo-ready .example")
    hint = page.locator("#composer-hint")
    page.get_by_role("textbox", name="Message").fill("long words " * 900)
    hint.filter(has_text="Shorten it or send it in parts. This model can hold no more;").wait_for()
    assert hint.get_by_role("button").count() == 0


def test_the_meter_follows_the_version_that_is_shown(tab: Page) -> None:
    box = tab.get_by_role("textbox", name="Message")
    send(tab, "say short")
    wait_for_end(tab)
    shown = "Number(document.querySelector('.context').ariaLabel.match(/[\\d,]+/)[0].replace(',', ''))"
    until(tab, f"{shown} > 0 && {shown} < 100")
    box.press("ArrowUp")
    tab.locator("article.user.editing textarea").fill("say long " + "words " * 400)
    tab.keyboard.press("Enter")
    tab.locator("article.user .versions:not([hidden])", has_text="2/2").wait_for(state="attached")
    wait_for_end(tab)
    until(tab, f"{shown} > 300")
    tab.locator("article.user").get_by_role("button", name="Version before").press("Enter")
    until(tab, f"{shown} < 100")
    tab.locator("article.user").get_by_role("button", name="Next version").press("Enter")
    until(tab, f"{shown} > 300")


def test_the_meter_comes_back_after_a_failure(page: Page, watched: Any) -> None:
    page.wait_for_selector("#octavo-header .context:not([hidden])")
    failed = []

    def fail(route: Any) -> None:
        failed.append(route.request.url)
        route.fulfill(status=503, json={"error": {"message": "Not now."}})

    page.route("**/api/ui/compose/measure", fail)
    before = page.locator("#octavo-header .context").inner_text()
    page.get_by_role("textbox", name="Message").fill("five more words of text " * 40)
    wait_until(page, lambda: failed)
    page.unroute("**/api/ui/compose/measure")
    until(page, f"document.querySelector('#octavo-header .context').innerText !== {before!r}")
    watched.errors[:] = [error for error in watched.errors if "status of 503" not in error]


def test_the_conversation_stays_at_its_end_while_the_text_grows(tab: Page) -> None:
    send(tab, "book")
    wait_for_end(tab)
    box = tab.get_by_role("textbox", name="Message")
    for line in range(6):
        box.press_sequentially(f"line {line}")
        box.press("Shift+Enter")
    assert box.bounding_box()["height"] > 130
    beyond = "(s => s.scrollHeight - s.scrollTop - s.clientHeight)(document.querySelector('.scroller'))"
    assert at_rest(tab, beyond) < 2
    tab.keyboard.press("Control+Shift+L")
    tab.get_by_role("complementary", name="Presets").get_by_text("0.7 by default").wait_for()
    assert at_rest(tab, beyond) < 2
    tab.keyboard.press("Control+Shift+L")


def test_the_keyboard_does_everything_and_lists_it(tab: Page) -> None:
    tab.context.grant_permissions(["clipboard-read", "clipboard-write"])
    send(tab, "echo some\n\n```\ncode\n```")
    wait_for_end(tab)
    with flashing(tab, "article.reply footer .icon-check"):
        tab.keyboard.press("Control+Shift+C")
    clipboard_is(tab, "some\n\n```\ncode\n```")
    with flashing(tab, "article.reply .code-head .icon-check"):
        tab.keyboard.press("Control+Shift+;")
    clipboard_is(tab, "code")
    tab.locator(".scroller").focus()
    tab.keyboard.press("?")
    listed = tab.get_by_role("dialog", name="Keyboard shortcuts")
    assert listed.locator("dt").count() >= 12
    tab.keyboard.press("Escape")
    listed.wait_for(state="detached")
    tab.keyboard.press("/")
    assert tab.evaluate("document.activeElement.tagName") == "TEXTAREA"
    tab.keyboard.press("ArrowUp")
    tab.locator("article.user.editing textarea").wait_for()
    tab.keyboard.press("Escape")
    tab.keyboard.type("a/b?")
    assert tab.get_by_role("textbox", name="Message").input_value() == "a/b?"
    tab.keyboard.press("Control+Shift+L")
    tab.get_by_role("complementary", name="Presets").wait_for()
    tab.keyboard.press("Control+Shift+L")
    tab.get_by_role("complementary", name="Presets").wait_for(state="hidden")
    tab.keyboard.press("Control+Shift+O")
    tab.wait_for_selector(".welcome .example")
