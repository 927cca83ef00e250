"""The turns of a chat: their versions, taking them away and back, the model that is to reply."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from typing import Any

from driving import answer, chat_id, choose, reply, row_of, send, until, wait_for_end

Page = Any  # playwright's; it need not be installed to collect these tests


TURNS = """() => [...document.querySelectorAll('article.turn')].map(turn => {
    const text = turn.querySelector('.bubble, :scope > .blocks').innerText.trim();
    const versions = turn.querySelector('.versions:not([hidden]) span');
    return versions ? `${text} ${versions.textContent}` : text;
})"""


# The context meter counts what is there now.
METER_IS_RIGHT = """fetch('/api/ui/compose/measure', {
    method: 'POST',
    headers: { 'content-type': 'application/json' },
    body: JSON.stringify({ chat: new URLSearchParams(location.search).get('c'), text: '', files: [], settings: null }),
}).then((answer) => answer.json())
    .then(({ reading }) => document.querySelector('.context').title.includes(`used: ${reading.used} of`))"""


def reads(page: Page, expected: list[str]) -> None:
    until(page, f"JSON.stringify(({TURNS})()) === JSON.stringify({json.dumps(expected, ensure_ascii=False)})")


def ended(page: Page, expected: list[str]) -> None:
    reads(page, expected)
    wait_for_end(page)


def test_turns_have_versions_and_nothing_disappears(tab: Page) -> None:
    send(tab, "echo one")
    ended(tab, ["echo one", "one"])
    send(tab, "echo two")
    ended(tab, ["echo one", "one", "echo two", "two"])
    reply(tab).get_by_role("button", name="Retry").press("Enter")
    ended(tab, ["echo one", "one", "echo two", "two 2/2"])
    until(tab, "document.activeElement.closest('article')?.classList.contains('last')")  # keeps the keyboard
    first = tab.locator("article.user").first
    first.hover()
    first.get_by_role("button", name="Edit").click()
    tab.keyboard.insert_text(" more")
    tab.keyboard.press("Enter")
    ended(tab, ["echo one more 2/2", "one more"])
    tab.locator("article.user").first.get_by_role("button", name="Version before").press("Enter")
    ended(tab, ["echo one 1/2", "one", "echo two", "two 2/2"])
    until(tab, "document.activeElement.ariaLabel === 'Next version'")
    tab.reload()
    ended(tab, ["echo one 1/2", "one", "echo two", "two 2/2"])
    reply(tab).get_by_role("button", name="Edit").click()
    tab.get_by_role("textbox", name="Another version").fill("put **right**")
    tab.get_by_role("button", name="Save").click()
    ended(tab, ["echo one 1/2", "one", "echo two", "put right 3/3"])
    reply(tab).get_by_role("button", name="Continue").click()
    until(tab, "document.querySelector('article.reply.last .figures').textContent.includes('finished')")
    assert answer(tab).startswith("put right")
    assert len(answer(tab)) > len("put right")
    source = chat_id(tab)
    tab.locator("article.reply").first.hover()
    tab.locator("article.reply").first.get_by_role("button", name="Branch").click()
    until(tab, f"location.search.startsWith('?c=') && !location.search.includes('{source}')")
    ended(tab, ["echo one", "one"])
    row = row_of(tab, chat_id(tab)).filter(has_text="echo one")
    row.locator(".number", has_text="(2)").wait_for()


def test_a_message_or_a_version_is_deleted_and_comes_back_in_every_tab(page: Page, watched: Any) -> None:
    send(page, "echo one")
    ended(page, ["echo one", "one"])
    send(page, "echo two")
    ended(page, ["echo one", "one", "echo two", "two"])
    reply(page).get_by_role("button", name="Retry").click()
    ended(page, ["echo one", "one", "echo two", "two 2/2"])
    other = watched.context.new_page()
    other.goto(page.url)
    ended(other, ["echo one", "one", "echo two", "two 2/2"])
    until(page, METER_IS_RIGHT)

    def delete(turn: Any, name: str, left: list[str]) -> None:
        turn.get_by_role("button", name=name).press("Enter")
        for each in (page, other):
            reads(each, left)

    def undo(said: str, back: list[str]) -> None:
        note = page.locator(".toast", has_text=said)
        note.get_by_role("button", name="Undo").click()
        note.wait_for(state="detached")
        for each in (page, other):
            ended(each, back)

    delete(reply(page), "Delete this version", ["echo one", "one", "echo two", "two"])
    undo("This version was deleted.", ["echo one", "one", "echo two", "two 2/2"])
    delete(page.locator("article.user").first, "Delete with its replies", ["echo two", "two 2/2"])
    until(page, "document.activeElement.innerText.includes('echo two')")  # the keyboard stays at that place
    until(page, METER_IS_RIGHT)
    undo("The message and its reply were deleted.", ["echo one", "one", "echo two", "two 2/2"])
    delete(page.locator("article.reply").first, "Delete this reply", ["echo one", "echo two", "two 2/2"])
    delete(page.locator("article.user").last, "Delete with its replies", ["echo one"])
    until(page, "document.querySelectorAll('.toast').length === 1")  # only the last one can be undone
    page.locator("article.user").get_by_role("button", name="Get a reply").click()
    for each in (page, other):
        ended(each, ["echo one", "one"])


def test_a_chat_asks_which_model_is_to_reply(tab: Page, server: Any) -> None:
    send(tab, "echo before")
    wait_for_end(tab)
    chat = chat_id(tab)
    with closing(sqlite3.connect(server.folder / "chats.sqlite3", timeout=60)) as db, db:
        db.execute("UPDATE chats SET model = 'org/Another-7B' WHERE id = ?", (chat,))
    choose(tab, chat, "Rename")
    tab.keyboard.insert_text("Written elsewhere")
    tab.keyboard.press("Enter")
    question = tab.locator(".model-question")
    question.filter(has_text="This chat was written with Another-7B. SmolLM2-135M-Instruct is loaded now.").wait_for()
    send(tab, "echo after")
    tab.locator("#composer-hint.error", has_text="another model").wait_for()
    assert tab.locator("article.user").count() == 1
    assert tab.get_by_role("textbox", name="Message").input_value() == "echo after"
    question.get_by_role("button", name="Go on with SmolLM2-135M-Instruct").click()
    question.wait_for(state="hidden")
    tab.get_by_role("textbox", name="Message").press("Enter")
    ended(tab, ["echo before", "before", "echo after", "after"])


def test_a_model_is_called_the_same_whatever_its_id_looks_like(tab: Page) -> None:
    titles = tab.evaluate(
        """async () => {
            const { modelTitle } = await import('/ui/words.js');
            return [
                ['starter', 'Q4_1 as bfloat16'],
                ['org/Writer-7B-GGUF:Q4_K_M', 'Q4_K_M as int4'],
                ['org/Writer-7B-GGUF:Q4_K_M', undefined],
                ['/models/Writer-7B.Q8_0.gguf', 'Q8_0'],
                ['C:\\\\models\\\\Writer-7B', 'bfloat16'],
                ['shape:llama-8b', 'random weights'],
            ].map(([id, format]) => modelTitle(id, format));
        }"""
    )
    assert titles == [
        "SmolLM2-135M-Instruct",
        "Writer-7B-GGUF",
        "Writer-7B-GGUF:Q4_K_M",
        "Writer-7B",
        "Writer-7B",
        "shape:llama-8b",
    ]


def test_a_model_that_is_still_being_loaded_is_not_said_to_be_loaded(tab: Page) -> None:
    said = tab.evaluate(
        """async () => {
            const { ModelQuestion } = await import('/ui/model_question.js');
            const place = document.body.appendChild(document.createElement('div'));
            const question = new ModelQuestion(place, {});
            const words = (state) => {
                question.show({ model: 'org/Writer-7B' }, { id: 'org/Other-1B', state, info: null });
                return question.element.querySelector('p').textContent;
            };
            const both = [words('loading'), words('ready')];
            question.show({ model: 'us/Other-1B' }, { id: 'org/Other-1B', state: 'ready', info: null });
            return [...both, question.element.querySelector('p').textContent];
        }"""
    )
    assert said == [
        "This chat was written with Writer-7B. Other-1B is being loaded.",
        "This chat was written with Writer-7B. Other-1B is loaded now.",
        "This chat was written with us/Other-1B. org/Other-1B is loaded now.",
    ]
