"""Chats: the list of them, those that are not kept, the files they come from and go to."""

from __future__ import annotations

import json
import re
import zipfile
from pathlib import Path
from typing import Any

from driving import answer, chat_id, choose, reply, row_of, send, until, wait_for_end

from octavo.app import data_files
from octavo.app.chat.store import ChatStore

Page = Any  # playwright's; it need not be installed to collect these tests


# What changes anywhere but in the reply that is being written and in the composer.
WATCH_CHANGES = """() => {
    window.touched = [];
    const watcher = new MutationObserver(changes => {
        for (const { target } of changes) {
            const element = target.nodeType === 1 ? target : target.parentElement;
            if (!element?.closest('article.live')) window.touched.push(element?.className ?? target.nodeName);
        }
    });
    const all = { subtree: true, childList: true, characterData: true, attributes: true };
    for (const place of document.querySelectorAll('.turns, #octavo-chats')) watcher.observe(place, all);
}"""


def test_the_list_finds_pins_sorts_and_undoes(tab: Page) -> None:
    send(tab, "echo 我们去看海边的灯塔")
    wait_for_end(tab)
    tower = chat_id(tab)
    tab.keyboard.press("Control+k")
    tab.wait_for_selector(".welcome .example")
    send(tab, "echo needle in a haystack")
    until(tab, f"location.search.startsWith('?c=') && !location.search.includes('{tower}')")
    wait_for_end(tab)
    needle = chat_id(tab)

    tab.keyboard.press("Control+Shift+F")
    tab.keyboard.insert_text("灯塔")
    row_of(tab, needle).wait_for(state="detached")
    row_of(tab, tower).locator(".more mark", has_text="灯塔").wait_for()
    tab.keyboard.press("Enter")
    tab.wait_for_url(f"**/?c={tower}")
    until(tab, "document.activeElement.closest('article')?.innerText.includes('灯塔')")
    tab.get_by_role("searchbox").press("Escape")
    row_of(tab, needle).wait_for()

    choose(tab, tower, "Pin")
    tab.locator("h2.group", has_text="Pinned").wait_for()
    choose(tab, needle, "Folder and tags")
    tab.get_by_role("combobox", name="Folder").fill("Farm")
    tab.get_by_role("textbox", name="Tags").fill("hay, straw")
    tab.keyboard.press("Enter")
    tab.locator("h2.group", has_text="Farm").wait_for()
    row_of(tab, needle).filter(has_text="#hay #straw").wait_for()
    choose(tab, needle, "Pin")
    row_of(tab, needle).get_by_text("Farm · #hay #straw").wait_for()
    choose(tab, needle, "Unpin")
    tab.locator("h2.group", has_text="Farm").wait_for()
    tab.get_by_role("button", name="Farm").click()
    row_of(tab, needle).wait_for(state="detached")
    tab.get_by_role("button", name="Farm").click()

    row_of(tab, tower).locator("a").focus()
    tab.keyboard.press("Delete")  # asks nothing, since it can be undone
    row_of(tab, tower).wait_for(state="detached")
    until(tab, f"document.activeElement.closest('.row-chat')?.dataset.id === '{needle}'")  # it stays in the list
    tab.get_by_role("button", name="Undo").click()
    row_of(tab, tower).wait_for()
    tab.get_by_text("The chat is back in the list.").wait_for()
    assert "c=" not in tab.url  # the reader stays where he is
    tab.get_by_role("button", name="Open it").click()
    tab.wait_for_url(f"**/?c={tower}")
    wait_for_end(tab)
    assert answer(tab) == "我们去看海边的灯塔"

    tab.get_by_role("button", name="Temporary chat").click()
    tab.get_by_text("It is not saved").wait_for()
    send(tab, "echo quiet")
    until(tab, "location.search.startsWith('?c=tmp-')")
    wait_for_end(tab)
    tab.locator("h2.group", has_text="Temporary").wait_for()
    tab.locator(".temporary-note").get_by_role("button", name="Keep").click()
    until(tab, "location.search.startsWith('?c=') && !location.search.includes('tmp-')")
    wait_for_end(tab)
    assert answer(tab) == "quiet"
    tab.locator(".temporary-note").wait_for(state="hidden")


def said(role: str, text: str) -> dict[str, Any]:
    return {"author": {"role": role}, "content": {"content_type": "text", "parts": [text]}}


def test_the_keyboard_stays_with_a_chat_that_moves_in_the_list(tab: Page) -> None:
    send(tab, "echo pinned by keys")
    wait_for_end(tab)
    row = row_of(tab, chat_id(tab))
    row.get_by_role("button", name="More for this chat").focus()
    tab.keyboard.press("Enter")
    tab.keyboard.press("ArrowDown")
    tab.keyboard.press("Enter")
    tab.wait_for_selector(f".row-chat.pinned[data-id='{chat_id(tab)}']")
    until(tab, f"document.activeElement.closest('.row-chat')?.dataset.id === '{chat_id(tab)}'")


def test_chats_are_saved_as_files_and_read_from_them(tab: Page, tmp_path: Path) -> None:
    send(tab, "echo to be saved")
    wait_for_end(tab)
    chat = chat_id(tab)
    with tab.expect_download() as saved:
        choose(tab, chat, "Save as Markdown")
    text = Path(saved.value.path()).read_text(encoding="utf-8")
    assert saved.value.suggested_filename == "echo to be saved.md"
    assert "to be saved" in text
    with tab.expect_download() as saved:
        tab.get_by_role("button", name="More for all chats").click()
        tab.get_by_role("menuitem", name="Save all as JSON").click()
    file = tmp_path / "octavo.json"
    saved.value.save_as(file)
    exported = json.loads(file.read_text(encoding="utf-8"))
    assert chat in {item["id"] for item in exported["chats"]}
    choose(tab, chat, "Delete")
    row_of(tab, chat).wait_for(state="detached")

    theirs = {
        "title": "From elsewhere",
        "conversation_id": "x1",
        "create_time": 1700000000,
        "current_node": "c",
        "mapping": {
            "a": {"parent": None, "message": {**said("user", "hi"), "create_time": 1700000000}},
            "b": {"parent": "a", "message": said("assistant", "**hello**")},
            "c": {"parent": "b", "message": said("user", "when was this?")},
        },
    }
    archive = tmp_path / "export.zip"
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as zipped:
        zipped.writestr("chat.html", "<html>")
        zipped.writestr("conversations.json", json.dumps([theirs]))
    bring(tab, file, archive)
    tab.locator(".toast", has_text="2 chats added").wait_for()
    row_of(tab, chat).wait_for()
    tab.locator(".row-chat", has_text="From elsewhere").locator("a").click()
    until(tab, "document.querySelector('article.reply strong')?.textContent === 'hello'")
    when = tab.locator(".turn.user .when")
    assert re.fullmatch(r"You · Nov 1[45], 2023, \d+:\d\d [AP]M", when.first.inner_text())  # another day's
    assert when.last.inner_text() == "You"  # nobody knows
    row_of(tab, chat).locator("a").click()
    when.filter(has_text=re.compile(r"^You · \d+:\d\d [AP]M$")).wait_for()  # today's


def test_a_branch_can_be_told_from_its_source_and_a_tag_be_searched(tab: Page) -> None:
    send(tab, "echo a title of many words that does not fit into the list")
    wait_for_end(tab)
    source = chat_id(tab)
    reply(tab).get_by_role("button", name="Branch").press("Enter")
    until(tab, f"!location.href.endsWith('{source}')")
    number = row_of(tab, chat_id(tab)).locator(".number")
    number.filter(has_text="(2)").wait_for()
    inside = "mark => mark.getBoundingClientRect().right < mark.closest('a').getBoundingClientRect().right + 0.5"
    assert number.evaluate(inside)
    assert row_of(tab, source).locator(".number").inner_text() == ""
    space = "row => row.getBoundingClientRect().right - row.querySelector('.title').getBoundingClientRect().right"
    assert row_of(tab, source).evaluate(space) < 8  # the menu, which is not shown, takes nothing from the title
    choose(tab, source, "Folder and tags")
    tab.get_by_role("textbox", name="Tags").fill("sea, ships")
    tab.get_by_role("button", name="Save", exact=True).click()
    tab.get_by_role("searchbox").fill("#sea")
    row_of(tab, source).locator("mark", has_text="#sea").wait_for()
    until(tab, "document.querySelectorAll('.row-chat').length === 1")


def test_a_copy_of_everything_is_taken_back(tab: Page, tmp_path: Path) -> None:
    """The zip that the settings write, as another Octavo wrote it."""
    store = ChatStore(tmp_path / "chats.sqlite3")
    for title in ("Lighthouse", "Harbour"):
        chat = store.create_chat().id
        store.add_message(chat, "user", f"about {title} " + "and the sea " * 1000)
        store.update_chat(chat, title=title, folder="Coast")
    store.close()
    config, log = tmp_path / "none.yaml", tmp_path / "none.log"
    data_files.export(tmp_path / "octavo.zip", tmp_path, config, log)
    bring(tab, tmp_path / "octavo.zip")
    tab.locator(".toast", has_text="2 chats added").wait_for()
    tab.locator(".row-chat", has_text="Lighthouse").wait_for()
    assert tab.get_by_text("Coast", exact=True).count() > 0
    bring(tab, tmp_path / "octavo.zip")
    tab.locator(".toast", has_text="2 were here already").wait_for()


def bring(page: Page, *files: Path) -> None:
    with page.expect_file_chooser() as chosen:
        page.get_by_role("button", name="More for all chats").click()
        page.get_by_role("menuitem", name="Import").click()
    chosen.value.set_files(files)


def test_notes_name_each_fault_on_its_line_and_stay_while_the_keyboard_is_in_them(page: Page, tmp_path: Path) -> None:
    broken, other = tmp_path / "broken.json", tmp_path / "other.json"
    broken.write_text('{"chats": [', encoding="utf-8")
    other.write_text("[]", encoding="utf-8")
    hello = tmp_path / "hello.json"
    hello.write_text('{"hello": 1}', encoding="utf-8")
    bring(page, broken, hello)
    note = page.locator(".toast.error p")
    note.wait_for()
    lines = note.inner_text().splitlines()
    assert lines[:2] == ["2 could not be read", "broken.json: This is not a JSON file."]
    assert lines[2] == "hello.json: Not a chat of Octavo or ChatGPT."
    assert lines[3].startswith("What can be imported: Octavo's own .json")
    assert len(lines) == 4  # once for both

    page.clock.install()
    bring(page, broken)
    page.clock.fast_forward(1000)
    note.filter(has_text="1 could not be read").wait_for()
    until(page, "document.querySelectorAll('.toast.error p').length === 1")  # the last one's note is gone
    page.clock.fast_forward(20_000)
    note.wait_for(state="detached")
    bring(page, other)
    plain = page.locator(".toast.plain", has_text="no chats in it")  # not the one that says that it is being read
    plain.get_by_role("button", name="Dismiss").focus()
    page.clock.fast_forward(20_000)
    assert plain.is_visible()
    page.get_by_role("textbox", name="Message").focus()
    page.clock.fast_forward(20_000)
    plain.wait_for(state="detached")


def test_a_search_opens_a_long_chat_at_the_words_and_marks_them(spare_server: Any, open_context: Any) -> None:
    store = ChatStore(spare_server.folder / "chats.sqlite3")
    chat = store.create_chat()
    store.update_chat(chat.id, title="Harbours")
    with store.together():
        for number in range(60):
            store.add_message(chat.id, "user", f"What of quay {number}?")
            lines = "A line about ships and their harbours.\n\n" * 30
            text = lines + "In the unreasonably long sentence before it stands the lighthouse-keeperess.\n\n" + lines
            store.add_message(chat.id, "assistant", text if number == 3 else "A reply about the sea.")
    store.close()
    page = open_context(spare_server, viewport={"width": 1280, "height": 800}).context.new_page()
    page.goto(spare_server.url)
    page.wait_for_selector("body.octavo-ready")
    for wanted, words in [("quay 7", "7"), ("lighthouse-keeperess", "lighthouse-keeperess")]:
        page.get_by_role("searchbox").fill(wanted)
        mark = row_of(page, chat.id).locator(".more mark").last
        mark.wait_for()
        inside = "mark => mark.getBoundingClientRect().right < mark.parentElement.getBoundingClientRect().right + 0.5"
        assert mark.evaluate(inside), "the list cuts the word that was looked for"
        row_of(page, chat.id).locator("a").click()
        until(page, "CSS.highlights.has('octavo-found')")
        found = "[...CSS.highlights.get('octavo-found')].at(-1)"
        assert page.evaluate(f"{found}.toString()") == words
        until(
            page,
            f"""((seen, box) => box.top >= seen.top && box.bottom <= seen.bottom)(
                document.querySelector('.scroller').getBoundingClientRect(), {found}.getBoundingClientRect())""",
        )
        until(page, "document.activeElement.closest('article') !== null")
        page.evaluate("CSS.highlights.clear()")
        page.get_by_role("searchbox").fill("")
        page.locator(".create").click()


def test_a_long_list_and_a_long_chat_cost_no_more_than_what_is_seen(spare_server: Any, open_context: Any) -> None:
    """How long it takes is measured elsewhere, on a quiet machine; here it counts what is drawn."""
    store = ChatStore(spare_server.folder / "chats.sqlite3")
    with store.together():
        for number in range(1000):
            chat = store.create_chat()
            store.add_message(chat.id, "user", f"Fog over harbour {number}. 海边的灯塔")
            store.update_chat(chat.id, title=f"Chat {number}")
        long = store.create_chat()
        for _ in range(100):
            store.add_message(long.id, "user", "word " * 30)
            store.add_message(long.id, "assistant", "A paragraph with **bold** text and `code`.\n\n" * 3)
    store.close()
    page = open_context(spare_server, viewport={"width": 1280, "height": 800}).context.new_page()
    page.goto(f"{spare_server.url}/?c={long.id}")
    page.wait_for_selector(".row-chat >> nth=100")
    assert page.locator(".row-chat").count() <= 150
    page.wait_for_selector("article.reply")
    while page.locator(".earlier:visible").count():
        turns = page.locator("article").count()
        page.locator(".earlier").click()
        until(page, f"document.querySelectorAll('article').length > {turns}")
    assert page.locator("article").count() == 200
    page.get_by_role("searchbox").fill("灯塔")
    page.get_by_text("200 chats found").wait_for(state="attached")
    assert page.locator(".row-chat").count() <= 150
    page.get_by_role("searchbox").fill("")
    send(page, "long")
    page.wait_for_selector("article.reply.live .block")
    page.wait_for_selector(".row-chat.writing [aria-current]")  # the list has heard of it
    page.evaluate(WATCH_CHANGES)
    page.keyboard.type("typed while a reply streams in", delay=20)
    assert page.locator("article.reply.live").count() == 1
    assert page.evaluate("window.touched") == []
    page.keyboard.press("Escape")
    wait_for_end(page)
