"""Chats leave as JSON and Markdown and come back whole, once; ChatGPT's export comes in as it was seen there."""

from __future__ import annotations

import hashlib
import json
import random
import time
from collections.abc import Callable
from dataclasses import replace
from math import inf
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.app.chat.exporting import chat_to_json, file_name, json_pieces, markdown
from octavo.app.chat.importing import NotAChatError, read_chat
from octavo.app.chat.store import ChatStore
from octavo.app.chat.types import Attachment, ChatSettings, Message, ReplyStats

STATS = ReplyStats(10.0, 0.5, 100, 64, 7, "stop", "<|im_end|>", 2)


@pytest.fixture
def store() -> ChatStore:
    return ChatStore(None)


def a_chat(store: ChatStore) -> str:
    chat = store.create_chat("Be brief.")
    file = Attachment("notes.md", "text/markdown", 3, "one\ntwo")
    first = store.add_message(chat.id, "user", "héllo 山 🎉", attachments=[file])
    reply = store.add_message(chat.id, "assistant", "", status="streaming", model="m")
    store.finish_reply(reply.id, "complete", "Hi", "thoughts", token_ids=(1, 2), stats=STATS)
    store.add_message(chat.id, "user", "edited", beside_id=first.id)
    store.add_message(chat.id, "assistant", "to edited", status="failed")
    store.show(chat.id, first.id)
    store.set_chat_settings(chat.id, ChatSettings("Be brief.", None, {"temperature": 0.3}, {"overflow": "stop"}))
    store.update_chat(chat.id, title="A title", pinned=True, folder="Work", tags=["a", "b"], model="m")
    return chat.id


def exported(store: ChatStore, *ids: str) -> list[Any]:
    records = [record for chat_id in ids if (record := store.record(chat_id)) is not None]
    assert len(records) == len(ids)
    value = json.loads("".join(json_pieces(records, store.presets.list())))
    assert (value["format"], value["version"]) == ("octavo-chats", 1)
    return list(value["chats"])


def test_an_exported_chat_comes_back_whole(store: ChatStore) -> None:
    chat_id = a_chat(store)
    other = ChatStore(None)
    put = other.put(read_chat(exported(store, chat_id)[0]))
    assert (put.created, put.turns) == (True, 4)
    before, after = store.record(chat_id), other.record(chat_id)
    assert before is not None
    assert after is not None
    assert chat_to_json(before) == chat_to_json(after)
    assert store.get_chat_settings(chat_id) == other.get_chat_settings(chat_id)
    assert [m.content for m in other.get_chat(chat_id).messages] == ["héllo 山 🎉", "Hi"]  # type: ignore[union-attr]
    assert [hit.chat_id for hit in other.search("edited")] == [chat_id]


def test_the_same_file_brings_nothing_twice_and_a_newer_one_what_is_new(store: ChatStore) -> None:
    chat_id = a_chat(store)
    other = ChatStore(None)
    old = exported(store, chat_id)[0]
    other.put(read_chat(old))
    assert other.put(read_chat(old)).turns == 0
    assert len(other.list_chats()) == 1
    mine = other.add_message(chat_id, "user", "written here")
    store.add_message(chat_id, "user", "written there")
    put = other.put(read_chat(exported(store, chat_id)[0]))
    assert (put.created, put.turns) == (False, 1)
    shown = other.get_chat(chat_id).messages[-1]  # type: ignore[union-attr]
    assert (shown.id, shown.versions) == (mine.id, 2)  # what is shown stays, the other is a version beside it


def test_an_import_brings_a_deleted_chat_back(store: ChatStore) -> None:
    chat_id = a_chat(store)
    file = exported(store, chat_id)[0]
    store.delete_chat(chat_id)
    assert store.put(read_chat(file)).created
    assert len(store.get_chat(chat_id).messages) == 2  # type: ignore[union-attr]


def test_ids_that_are_taken_elsewhere_are_replaced(store: ChatStore) -> None:
    chat_id = a_chat(store)
    file = exported(store, chat_id)[0]
    put = store.put(read_chat({**file, "id": "another"}))
    assert (put.created, put.turns) == (True, 4)
    assert len(store.get_chat("another").messages) == 2  # type: ignore[union-attr]
    assert len(store.get_chat(chat_id).messages) == 2  # type: ignore[union-attr]


def test_markdown_is_what_is_shown(store: ChatStore) -> None:
    text = markdown(store.get_chat(a_chat(store)))  # type: ignore[arg-type]
    assert text.startswith("# A title\n")
    assert "héllo 山 🎉" in text
    assert "attached: notes.md" in text
    assert "## m · " in text
    assert "thoughts" not in text
    assert "edited" not in text


def test_markdown_gives_no_time_to_a_message_whose_file_had_none() -> None:
    record = read_chat({"messages": [{"role": "user", "text": "hi"}, {"role": "assistant", "text": "ho"}]})
    lines = markdown(replace(record.chat, messages=record.messages)).splitlines()
    assert [line for line in lines if line.startswith("## ")] == ["## You", "## Reply"]


def test_names_of_files_suit_every_system() -> None:
    taken: set[str] = set()
    assert file_name('a/b\\c: "d"?', ".md", taken) == "a b c d.md"
    assert file_name("A B C D", ".md", taken) == "A B C D (2).md"
    assert file_name("con", ".md") == "_con.md"
    assert file_name("..", ".json") == "chat.json"
    assert file_name("灯塔", ".md") == "灯塔.md"
    assert len(file_name("x" * 500, ".md")) < 70


def node(key: str, parent: str | None, role: str = "", text: object = "", **more: Any) -> dict[str, Any]:
    content = text if isinstance(text, dict) else {"content_type": "text", "parts": [text]}
    about = more.pop("metadata", {})
    message = {"author": {"role": role}, "content": content, "metadata": about, "create_time": 1.5, **more}
    return {"id": key, "parent": parent, "children": [], "message": message if role else None}


def conversation(*nodes: dict[str, Any], **more: Any) -> dict[str, Any]:
    mapping = {item["id"]: item for item in nodes}
    for item in nodes:
        if item["parent"] in mapping:
            mapping[item["parent"]]["children"].append(item["id"])
    return {"title": "Lighthouse", "create_time": 1, "update_time": 2, "mapping": mapping, "id": "c1", **more}


def test_chatgpts_export_is_read_as_it_was_seen(store: ChatStore) -> None:
    thoughts = {"content_type": "thoughts", "thoughts": [{"summary": "s", "content": "let me think"}]}
    picture = {"content_type": "multimodal_text", "parts": [{"content_type": "image_asset_pointer"}, "what is this?"]}
    value = conversation(
        node("root", None),
        node("hidden", "root", "system", ""),
        node("context", "hidden", "user", "about me", metadata={"is_visually_hidden_from_conversation": True}),
        node("q", "context", "user", "a story"),
        node("t", "q", "assistant", thoughts),
        node("a1", "t", "assistant", "I will look.\ue200cite\ue202turn0\ue201", metadata={"model_slug": "gpt-4o"}),
        node("call", "a1", "assistant", {"content_type": "code", "text": "search()"}, recipient="browser"),
        node("tool", "call", "tool", "result"),
        node("a2", "tool", "assistant", "The keeper slept.", metadata={"model_slug": "gpt-4o"}),
        node("b1", "q", "assistant", "Another story."),
        node("q2", "a2", "user", picture),
        node("q2b", "a2", "user", "go on"),
        node("a3", "q2b", "assistant", {"content_type": "code", "language": "python", "text": "print(1)"}),
        current_node="q2",
    )
    record = read_chat(value)
    put = store.put(record)
    chat = store.get_chat(put.chat_id)
    assert chat is not None
    assert (chat.title, chat.created_s, chat.updated_s) == ("Lighthouse", 1.0, 2.0)
    assert [(m.role, m.content, m.version, m.versions) for m in chat.messages] == [
        ("user", "a story", 1, 1),
        ("assistant", "I will look.\n\nThe keeper slept.", 1, 2),
        ("user", "[picture]\n\nwhat is this?", 1, 2),
    ]
    assert chat.messages[1].reasoning == "let me think"
    assert chat.messages[1].model == "gpt-4o"
    assert {m.content for m in record.messages} >= {"Another story.", "go on", "```python\nprint(1)\n```"}
    assert store.put(read_chat(value)).turns == 0


def test_a_conversation_of_thousands_of_turns_is_read(store: ChatStore) -> None:
    nodes = [node("n0", None)]
    for number in range(1, 4000):
        nodes.append(node(f"n{number}", f"n{number - 1}", ("user", "assistant")[number % 2], str(number)))
    record = read_chat(conversation(*nodes, current_node="n3999"))
    assert len(record.messages) == 3999
    assert len(record.active) == 3999


def test_a_conversation_that_leads_in_a_circle_is_cut_open_and_loses_nothing(store: ChatStore) -> None:
    value = conversation(
        node("q", "a2", "user", "first"),  # its parent is its own last reply
        node("a", "q", "assistant", "one"),
        node("q2", "a", "user", "second"),
        node("a2", "q2", "assistant", "two"),
        node("b", "q", "assistant", "another"),  # beside the circle
        node("self", "self", "user", "alone"),
        current_node="a2",
    )
    record = read_chat(value)
    assert sorted(m.content for m in record.messages) == ["alone", "another", "first", "one", "second", "two"]
    shown = store.get_chat(store.put(record).chat_id)
    assert shown is not None
    assert [m.content for m in shown.messages] == ["first", "one", "second", "two"]


def test_ids_come_from_the_conversation_and_the_node() -> None:
    """They are part of the format: a file that was imported before brings nothing new."""
    record = read_chat(conversation(node("q", None, "user", "hi")))
    assert [m.id for m in record.messages] == [hashlib.sha256(b"c1/q").hexdigest()[:16]]


def loops(count: int) -> dict[str, Any]:
    pairs = [(node(f"a{n}", f"b{n}", "user", "u"), node(f"b{n}", f"a{n}", "assistant", "v")) for n in range(count)]
    return conversation(*(item for pair in pairs for item in pair), id=None)


def fan(count: int) -> dict[str, Any]:
    return conversation(
        node("r", None, "user", "root"), *(node(f"c{n}", "r", "assistant", "v") for n in range(count)), id=None
    )


def marks(count: int) -> dict[str, Any]:
    return conversation(node("r", None, "user", "\ue200" * 20 * count))


@pytest.mark.parametrize("shape", [loops, fan, marks])
def test_reading_takes_time_in_proportion_to_the_file(shape: Callable[[int], dict[str, Any]]) -> None:
    def took_s(count: int) -> float:
        value, best_s = shape(count), inf
        for _ in range(3):
            begun_s = time.process_time()
            read_chat(value)
            best_s = min(best_s, time.process_time() - begun_s)
        return best_s

    assert took_s(4000) < 8 * took_s(1000)  # 4 times as much; what is quadratic takes 16 times as long


def test_siblings_stand_as_their_parent_lists_them() -> None:
    value = fan(4)
    value["mapping"]["r"]["children"] = ["c2", ["junk"], "c0", "c2", "gone", "c3"]
    keys = [hashlib.sha256(f"{sorted(value['mapping'])!r}/c{n}".encode()).hexdigest()[:16] for n in (2, 0, 3, 1)]
    assert [m.id for m in read_chat(value).messages[1:]] == keys


@pytest.mark.parametrize("role", ["user", "assistant"])
def test_a_reply_that_branches_at_every_message_does_not_grow_without_bound(store: ChatStore, role: str) -> None:
    nodes = [node("q", None, "user", "go")]
    for number in range(300):
        nodes.append(node(f"n{number}", f"n{number - 1}" if number else "q", "assistant", f"<{number}>" + "x" * 1000))
        nodes.append(node(f"l{number}", f"n{number}", role, f"leaf {number}"))
    record = read_chat(conversation(*nodes, current_node="n299"))
    assert sum(len(m.content) for m in record.messages) < 3 * 300 * 1000
    shown = store.get_chat(store.put(record).chat_id)
    assert shown is not None
    said = "".join(m.content for m in shown.messages[1:])
    places = [said.index(f"<{number}>") for number in range(300)]  # the branch that was open is whole
    assert places == sorted(places)
    assert said.count("x") == 300 * 1000


@pytest.mark.parametrize(
    "value",
    [None, 3, "x", [], {}, {"messages": None}, {"messages": []}, {"mapping": {}}, {"mapping": {"a": 1}, "title": 3}],
)
def test_what_is_no_chat_is_refused_with_a_reason(value: object) -> None:
    with pytest.raises(NotAChatError, match="no chat that can be read"):
        read_chat(value)


def test_a_plain_list_of_turns_is_a_chat(store: ChatStore) -> None:
    put = store.put(read_chat({"messages": [{"role": "user", "text": "hi"}, {"role": "assistant", "text": "hello"}]}))
    assert [m.content for m in store.get_chat(put.chat_id).messages] == ["hi", "hello"]  # type: ignore[union-attr]


JUNK = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-5, 5)
    | st.floats()
    | st.text(max_size=3)
    | st.sampled_from(["m0", "m1", "user"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10**6), JUNK)
def test_damage_anywhere_in_a_file_breaks_nothing(seed: int, junk: Any) -> None:
    store = ChatStore(None)
    ours = exported(store, a_chat(store))[0]
    theirs = conversation(node("m0", None, "user", "q"), node("m1", "m0", "assistant", "a"), current_node="m1")
    for value in (ours, theirs):
        random.seed(seed)
        target: Any = value
        while True:  # walk to some place and put the junk there
            key = random.choice(list(target) if isinstance(target, dict) else range(len(target)))
            if not isinstance(target[key], (dict, list)) or not target[key] or random.random() < 0.3:
                target[key] = junk
                break
            target = target[key]
        try:
            record = read_chat(value)
        except NotAChatError:
            continue
        fresh = ChatStore(None)
        chat = fresh.get_chat(fresh.put(record).chat_id)
        assert chat is not None
        assert all(isinstance(message, Message) for message in chat.messages)
        fresh.close()
    store.close()
