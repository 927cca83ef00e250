"""Chats are found by what is written in them, in any script."""

from __future__ import annotations

import time
from collections.abc import Callable, Sized

import pytest

from octavo.app.chat.store import ChatStore


@pytest.fixture
def store() -> ChatStore:
    return ChatStore(None)


def chat_with(store: ChatStore, *texts: str, title: str = "") -> str:
    chat = store.create_chat()
    for text in texts:
        store.add_message(chat.id, "user", text)
    if title:
        store.update_chat(chat.id, title=title)
    return chat.id


def found(store: ChatStore, wanted: str) -> list[str]:
    return [hit.chat_id for hit in store.search(wanted)]


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("The lighthouse keeper slept.", "LIGHTH"),
        ("The lighthouse keeper slept.", "slept lighthouse"),
        ("灯塔看守人还没睡。", "看守"),
        ("灯塔看守人还没睡。", "灯塔看守人"),
        ("灯塔看守人还没睡。", "睡"),
        ("東京タワーへ行きたい", "タワー"),
        ("東京タワーへ行きたい", "東京"),
        ("対話の続き", "続き"),
        ("한국어를 배우고 싶다", "국어"),
        ("ภาษาไทยง่ายมาก", "ไทย"),
        ("用GPT模型写作", "GPT模型"),
        ("Über die Straße", "uber strasse"),
        ("crème brûlée", "creme"),
        ("def quicksort(items):", "quicksort(items)"),
        ("हिन्दी में लिखो", "हिन्दी"),
        ("full ＷＩＤＴＨ", "width"),
    ],
)
def test_a_turn_is_found_by_words_of_its_script(store: ChatStore, text: str, wanted: str) -> None:
    chat = chat_with(store, text)
    other = chat_with(store, "something else, 别的东西")
    assert found(store, wanted) == [chat]
    assert other not in found(store, wanted)


@pytest.mark.parametrize("wanted", ["", "  ", "AND", '"', "NEAR(a b)", "a*", "-", "的东", "塔灯", "🎉", "' OR 1=1"])
def test_nothing_typed_is_an_error_or_finds_what_is_not_there(store: ChatStore, wanted: str) -> None:
    chat_with(store, "灯塔看守人")
    assert found(store, wanted) == []


def test_titles_folders_and_tags_are_found_by_any_part(store: ChatStore) -> None:
    chat = chat_with(store, "text", title="My Lighthouse")
    store.update_chat(chat, folder="Travel", tags=["north sea"])
    for wanted in ("house", "trav", "sea light"):
        assert found(store, wanted) == [chat]


def test_a_hash_and_a_word_keep_to_the_chats_with_such_a_tag(store: ChatStore) -> None:
    chat, other = chat_with(store, "waves", title="Calm"), chat_with(store, "waves of the sea")
    store.update_chat(chat, tags=["Sea", "north"])
    assert found(store, "#sea") == [chat]
    assert found(store, "#se") == [chat]
    assert found(store, "#ea") == []
    assert found(store, "#sea #north wav") == [chat]
    assert found(store, "#sea calm") == [chat]
    assert found(store, "#sea storm") == []
    assert set(found(store, "waves")) == set(found(store, "# waves")) == {chat, other}  # a hash alone is no tag


def test_a_hidden_version_is_found_and_named(store: ChatStore) -> None:
    chat = chat_with(store, "first wording")
    head = store.get_chat(chat)
    assert head is not None
    store.add_message(chat, "user", "second one", beside_id=head.messages[0].id)
    hit = store.search("wording")[0]
    assert hit.message_id == head.messages[0].id
    assert hit.snippet == "first wording"


def test_a_snippet_shows_the_place(store: ChatStore) -> None:
    chat_with(store, "word " * 200 + "the needle here " + "word " * 200)
    text = store.search("needle")[0].snippet
    assert "needle" in text
    assert text.startswith("…")
    assert text.endswith("…")
    assert len(text) < 140


def test_a_running_reply_is_found_once_it_has_ended(store: ChatStore) -> None:
    chat = chat_with(store, "hello")
    reply = store.add_message(chat, "assistant", "", status="streaming")
    store.save_partial(reply.id, "the needle", "")
    assert found(store, "needle") == []
    store.close_open_replies()
    assert found(store, "needle") == [chat]


def test_five_thousand_chats_are_listed_and_searched_quickly(store: ChatStore) -> None:
    common = "The quick brown fox jumps over the lazy dog. 我们今天去看海边的灯塔。 " * 3
    with store.together():
        for number in range(5000):
            chat_with(store, f"{common} number{number}", f"{common} answer", title=f"Chat {number}")
    actions: list[tuple[Callable[[], Sized], int]] = [
        (store.list_chats, 5000),
        (lambda: store.search("灯塔"), 200),
        (lambda: store.search("number4321"), 1),
    ]
    for action, expected in actions:
        began = time.thread_time()
        assert len(action()) == expected
        assert time.thread_time() - began < 0.3
