"""Turns are only ever added: a tree of them, of which one branch is shown."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
from chatting import with_reply

from octavo.app.chat.store import ChatStore, StoreError
from octavo.app.chat.types import Attachment, ChatSettings, ReplyStats

STATS = ReplyStats(10.0, 0.5, 100, 64, 7, "stop", "<|im_end|>", 2)


def test_turns_come_back_in_order_after_reopening(store: ChatStore, file: Path) -> None:
    chat = store.create_chat("Be brief.")
    turn = store.add_message(chat.id, "user", "héllo 山 🎉\n\ttabs")
    reply = store.add_message(chat.id, "assistant", "", parent_id=turn.id, status="streaming", model="m")
    store.finish_reply(reply.id, "complete", "Hi", "thoughts", token_ids=(1, 2, 70000), stats=STATS)
    store.close()
    again = ChatStore(file).get_chat(chat.id)
    assert again is not None
    assert [m.role for m in again.messages] == ["user", "assistant"]
    assert again.system == "Be brief."
    assert again.messages[0].content == "héllo 山 🎉\n\ttabs"
    last = again.messages[1]
    assert (last.content, last.reasoning, last.status, last.model) == ("Hi", "thoughts", "complete", "m")
    assert last.token_ids == (1, 2, 70000)
    assert last.stats == STATS


def test_a_finished_reply_cannot_be_changed(store: ChatStore) -> None:
    _, reply = with_reply(store)
    store.finish_reply(reply, "complete", "all of it")
    assert not store.save_partial(reply, "all of it and more", "")
    assert not store.save_partial(reply, "", "")
    stored = store.finish_reply(reply, "stopped", "")
    assert stored is not None
    assert (stored.content, stored.status) == ("all of it", "complete")


def test_a_partial_save_never_shortens_the_text(store: ChatStore) -> None:
    _, reply = with_reply(store)
    assert store.save_partial(reply, "one two", "")
    assert not store.save_partial(reply, "one", "")
    assert not store.save_partial(reply, "", "")
    stored = store.get_message(reply)
    assert stored is not None
    assert stored.content == "one two"


def test_replies_left_open_are_closed_as_stopped(store: ChatStore, file: Path) -> None:
    _, reply = with_reply(store)
    store.save_partial(reply, "half a sen", "")
    store.close()
    again = ChatStore(file)
    assert again.close_open_replies() == 1
    stored = again.get_message(reply)
    assert stored is not None
    assert (stored.status, stored.content) == ("stopped", "half a sen")


def test_regenerating_keeps_the_earlier_reply_beside_the_new_one(store: ChatStore) -> None:
    chat_id, first = with_reply(store)
    store.finish_reply(first, "complete", "first")
    turn = store.branch(first)[0]
    second = store.add_message(chat_id, "assistant", "", parent_id=turn.id, status="streaming")
    store.finish_reply(second.id, "complete", "second")
    chat = store.get_chat(chat_id)
    assert chat is not None
    assert [m.content for m in chat.messages] == ["hello", "second"]
    assert [m.content for m in store.replies_to(turn.id)] == ["first", "second"]


def test_ids_of_a_prompt_come_back_though_shared_ones_are_stored_once(store: ChatStore) -> None:
    chat_id, first = with_reply(store)
    store.set_prompt(first, range(100))
    store.finish_reply(first, "complete", "x", token_ids=range(100, 110))
    turn = store.add_message(chat_id, "user", "more")
    second = store.add_message(chat_id, "assistant", "", parent_id=turn.id, status="streaming")
    prompt = [*range(105), 500, 501]  # the reply's last ids were not kept
    store.set_prompt(second.id, prompt, base_id=first)
    store.finish_reply(second.id, "complete", "y", token_ids=(7, 8))
    assert store.sequence(first) == tuple(range(110))
    assert store.sequence(second.id) == (*prompt, 7, 8)
    assert store.sequence("unknown") == ()
    rows = store._file._db.execute("SELECT length(prompt_ids) FROM messages WHERE id = ?", (second.id,)).fetchone()
    assert rows[0] == 2 * 4


def test_chats_are_listed_by_last_use(store: ChatStore) -> None:
    first, second = store.create_chat(), store.create_chat()
    assert [c.id for c in store.list_chats()] == [second.id, first.id]
    store.add_message(first.id, "user", "x")
    assert [c.id for c in store.list_chats()] == [first.id, second.id]
    assert store.update_chat(first.id, title="New name")
    assert [c.title for c in store.list_chats()] == ["New name", ""]
    assert store.delete_chat(first.id)
    assert store.get_chat(first.id) is None
    assert not store.delete_chat(first.id)
    assert not store.update_chat("unknown", title="x")


def test_a_deleted_chat_takes_no_more_turns_and_leaves_no_rows_once_erased(store: ChatStore) -> None:
    chat_id, reply = with_reply(store)
    store.delete_chat(chat_id)
    with pytest.raises(StoreError, match="deleted"):
        store.add_message(chat_id, "user", "x")
    assert store.purge_deleted() == 1
    assert store.finish_reply(reply, "complete", "late") is None
    for table in ("messages", "turn_words"):
        assert store._file._db.execute(f"SELECT count(*) FROM {table}").fetchone()[0] == 0


def test_a_turn_cannot_follow_a_message_of_another_chat(store: ChatStore) -> None:
    _, reply = with_reply(store)
    other = store.create_chat()
    with pytest.raises(StoreError):
        store.add_message(other.id, "user", "x", parent_id=reply)
    assert store.get_chat(other.id).messages == ()  # type: ignore[union-attr]


def test_many_threads_write_without_losing_a_turn(store: ChatStore) -> None:
    chats = [store.create_chat().id for _ in range(4)]

    def write(chat_id: str) -> None:
        for number in range(25):
            store.add_message(chat_id, "user", str(number))

    threads = [threading.Thread(target=write, args=(chat_id,)) for chat_id in chats]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for chat_id in chats:
        chat = store.get_chat(chat_id)
        assert chat is not None
        assert [m.content for m in chat.messages] == [str(number) for number in range(25)]


def test_unknown_fields_of_a_newer_version_are_tolerated(store: ChatStore) -> None:
    _, reply = with_reply(store)
    store.finish_reply(reply, "complete", "x", stats=STATS)
    store._file._db.execute("UPDATE messages SET stats = json_set(stats, '$.energy_j', 3) WHERE id = ?", (reply,))
    stored = store.get_message(reply)
    assert stored is not None
    assert stored.stats == STATS


def test_a_deleted_chat_comes_back_whole(store: ChatStore) -> None:
    chat_id, reply = with_reply(store)
    store.finish_reply(reply, "complete", "an answer")
    assert store.delete_chat(chat_id)
    assert store.list_chats() == []
    assert store.search("answer") == []
    assert store.purge_deleted(older_than_s=60) == 0
    assert store.restore_chat(chat_id)
    assert not store.restore_chat(chat_id)
    chat = store.get_chat(chat_id)
    assert chat is not None
    assert [m.content for m in chat.messages] == ["hello", "an answer"]
    assert [hit.chat_id for hit in store.search("answer")] == [chat_id]


def shown(store: ChatStore, chat_id: str) -> list[str]:
    chat = store.get_chat(chat_id)
    assert chat is not None
    return [f"{m.content} {m.version}/{m.versions}" for m in chat.messages]


def test_turning_to_another_version_and_back_shows_what_followed_it(store: ChatStore) -> None:
    chat = store.create_chat()
    first = store.add_message(chat.id, "user", "first")
    store.add_message(chat.id, "assistant", "to first")
    follow = store.add_message(chat.id, "user", "more")
    store.add_message(chat.id, "assistant", "to more")
    store.add_message(chat.id, "assistant", "to more, again", parent_id=follow.id)
    edited = store.add_message(chat.id, "user", "first, edited", beside_id=first.id)
    store.add_message(chat.id, "assistant", "to edited")
    assert shown(store, chat.id) == ["first, edited 2/2", "to edited 1/1"]
    store.show(chat.id, first.id)
    assert shown(store, chat.id) == ["first 1/2", "to first 1/1", "more 1/1", "to more, again 2/2"]
    store.show(chat.id, edited.id)
    assert shown(store, chat.id) == ["first, edited 2/2", "to edited 1/1"]
    assert store.versions(first.id) == [first.id, edited.id]


def test_any_walk_through_the_versions_loses_no_turn(store: ChatStore) -> None:
    chat = store.create_chat()
    random = Random(7)
    known: dict[str, str] = {}
    for number in range(200):
        parent = random.choice([None, *known])
        if random.random() < 0.5 or parent is None:
            message = store.add_message(chat.id, "user", str(number))
        elif random.random() < 0.5:
            message = store.add_message(chat.id, "user", str(number), beside_id=parent)
        else:
            message = store.add_message(chat.id, "user", str(number), parent_id=parent)
        known[message.id] = message.content
        target = random.choice(list(known))
        store.show(chat.id, target)
        branch = store.get_chat(chat.id)
        assert branch is not None
        ids = [m.id for m in branch.messages]
        assert target in ids
        above = store.branch(target)
        assert tuple(ids[: len(above)]) == tuple(m.id for m in above)
    for message_id, content in known.items():
        stored = store.get_message(message_id)
        assert stored is not None
        assert stored.content == content


def test_a_continued_reply_only_grows(store: ChatStore) -> None:
    _, reply = with_reply(store)
    store.finish_reply(reply, "stopped", "one two")
    opened = store.reopen_reply(reply)
    assert (opened.status, opened.content) == ("streaming", "one two")
    with pytest.raises(StoreError):
        store.reopen_reply(reply)
    assert not store.save_partial(reply, "one", "")
    assert store.save_partial(reply, "one two three", "")
    store.finish_reply(reply, "complete", "one two three four")
    stored = store.get_message(reply)
    assert stored is not None
    assert stored.content == "one two three four"
    with pytest.raises(StoreError):
        store.reopen_reply(opened.parent_id or "")


def test_a_chat_keeps_what_was_said_about_it(store: ChatStore) -> None:
    chat = store.create_chat("Be brief.")
    settings = ChatSettings("Be kind.", "p1", {"temperature": 0.2}, {"overflow": "stop"})
    assert store.set_chat_settings(chat.id, settings)
    assert store.get_chat_settings(chat.id) == settings
    assert store.update_chat(chat.id, pinned=True, folder="Work", tags=["b", "a", "b"], model="m")
    summary = store.summary(chat.id)
    assert summary is not None
    assert (summary.pinned, summary.folder, summary.tags, summary.model) == (True, "Work", ("b", "a"), "m")
    assert store.get_chat_settings("unknown") is None
    assert not store.set_chat_settings("unknown", settings)
    assert not store.update_chat("unknown", pinned=True)


def test_attachments_come_back_with_their_turn(store: ChatStore) -> None:
    chat = store.create_chat()
    file = Attachment("notes.txt", "text/plain", 3, "first line\nsecond")
    store.add_message(chat.id, "user", "read this", attachments=[file])
    read = store.get_chat(chat.id)
    assert read is not None
    assert read.messages[0].attachments == (file,)


def test_presets_have_names_of_their_own(store: ChatStore) -> None:
    first = store.presets.create("Poet", "You rhyme.", {"temperature": 1.1})
    second = store.presets.create("critic")
    assert [preset.name for preset in store.presets.list()] == ["critic", "Poet"]
    assert store.presets.get(first.id) == first
    with pytest.raises(StoreError, match="already"):
        store.presets.create("Poet")
    with pytest.raises(StoreError, match="already"):
        store.presets.update(replace(second, name="Poet"))
    assert store.presets.update(replace(second, name="Critic", sampling={"top_k": 5}))
    assert store.presets.get(second.id) == replace(second, name="Critic", sampling={"top_k": 5})
    assert store.presets.delete(first.id)
    assert not store.presets.delete(first.id)
    assert not store.presets.update(first)
    with pytest.raises(StoreError, match="needs a name"):
        store.presets.create("  ")
