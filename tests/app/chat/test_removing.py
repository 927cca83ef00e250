"""One turn is taken out of a chat, what follows it stays, and it can be put back."""

from __future__ import annotations

import asyncio
from pathlib import Path
from random import Random

import pytest
from chatting import ended, run, serving, some_text
from fake_engine import FakeEngine

from octavo.app.chat.errors import ChatBusyError, ChatError
from octavo.app.chat.service import ChatService
from octavo.app.chat.store import ChatStore, StoreError
from octavo.app.chat.types import Shown


def said(store: ChatStore, chat: str) -> list[str]:
    """The turns that are shown; of several versions, also which."""
    found = store.get_chat(chat)
    assert found is not None
    return [m.content + (f" {m.version}/{m.versions}" if m.versions > 1 else "") for m in found.messages]


def a_chat(store: ChatStore, exchanges: int = 3) -> tuple[str, dict[str, str]]:
    """A chat of questions q1, q2... with replies r1, r2..., and the ids of these."""
    chat, ids = store.create_chat().id, {}
    for number in range(1, exchanges + 1):
        ids[f"q{number}"] = store.add_message(chat, "user", f"q{number}").id
        ids[f"r{number}"] = store.add_message(chat, "assistant", f"r{number}").id
    return chat, ids


@pytest.mark.parametrize(
    ("turn", "kind", "left"),
    [
        ("q1", "exchange", ["q2", "r2", "q3", "r3"]),
        ("q2", "exchange", ["q1", "r1", "q3", "r3"]),
        ("q3", "exchange", ["q1", "r1", "q2", "r2"]),
        ("r1", "reply", ["q1", "q2", "r2", "q3", "r3"]),
        ("r3", "reply", ["q1", "r1", "q2", "r2", "q3"]),
    ],
)
def test_a_turn_goes_what_follows_it_stays_and_it_comes_back(
    store: ChatStore, turn: str, kind: str, left: list[str]
) -> None:
    chat, ids = a_chat(store)
    removed = store.remove_turn(chat, ids[turn])
    assert removed.kind == kind
    assert said(store, chat) == left
    store.add_message(chat, "user", "q4")
    assert said(store, chat) == [*left, "q4"]
    assert store.put_back(removed)
    shown = said(store, chat)
    assert shown[:6] == [
        "q1",
        "r1",
        "q2",
        "r2",
        *(["q3 1/2", "r3"] if turn == "q3" else ["q3", "r3 1/2" if turn == "r3" else "r3"]),
    ]


def test_of_several_versions_one_goes_and_the_one_beside_it_is_shown_with_what_followed(store: ChatStore) -> None:
    chat, ids = a_chat(store, 1)
    second = store.add_message(chat, "assistant", "r1 again", beside_id=ids["r1"]).id
    question = store.add_message(chat, "user", "q2").id
    store.add_message(chat, "assistant", "r2")
    removed = store.remove_turn(chat, second)
    assert removed.kind == "version"
    assert said(store, chat) == ["q1", "r1", "q2", "r2"]
    store.put_back(removed)
    assert said(store, chat) == ["q1", "r1 again 2/2", "q2", "r2"]
    store.show(chat, ids["r1"])
    assert said(store, chat) == ["q1", "r1 1/2"]  # nothing had followed this one
    store.show(chat, second)
    edited = store.add_message(chat, "user", "q2, edited", beside_id=question).id
    removed = store.remove_turn(chat, edited)
    assert removed.kind == "message"
    assert said(store, chat) == ["q1", "r1 again 2/2", "q2", "r2"]
    store.put_back(removed)
    assert said(store, chat) == ["q1", "r1 again 2/2", "q2, edited 2/2"]


def test_nothing_is_lost_and_nothing_hangs_loose_whatever_goes_and_comes_back(store: ChatStore) -> None:
    """A tree that grows and shrinks at random: what is put back at once makes it what it was."""
    random = Random(7)
    chat, _ = a_chat(store, 2)

    def tree() -> object:
        record = store.record(chat)
        assert record is not None
        return [(m.id, m.parent_id, m.content) for m in record.messages], sorted(record.active), said(store, chat)

    for step in range(120):
        record = store.record(chat)
        assert record is not None
        turns = record.messages
        action = random.random()
        if action < 0.45 or not turns:
            store.add_message(chat, "user", f"question {step}")
            store.add_message(chat, "assistant", f"reply {step}")
        elif action < 0.7:
            turn = random.choice(turns)
            store.add_message(chat, turn.role, f"version {step}", beside_id=turn.id)
        else:
            before = tree()
            removed = store.remove_turn(chat, random.choice(turns).id)
            rest = store.record(chat)
            assert rest is not None
            left = {m.id for m in rest.messages}
            assert len(left) == len(turns) - len(removed.rows)
            assert all(m.parent_id is None or m.parent_id in left for m in rest.messages)
            assert set(rest.active) <= left
            assert bool(said(store, chat)) == bool(left)
            if random.random() < 0.7:
                assert store.put_back(removed)
                assert tree() == before


def test_what_was_removed_is_neither_found_nor_in_the_file(store: ChatStore, file: Path) -> None:
    chat, ids = a_chat(store, 1)
    secret = store.add_message(chat, "user", "the windmill password is swordfish").id
    store.set_prompt(store.add_message(chat, "assistant", "", status="streaming").id, [1, 2, 3])
    removed = store.remove_turn(chat, secret)
    assert store.search("swordfish") == []
    store.put_back(removed)
    assert [hit.message_id for hit in store.search("swordfish")] == [secret]
    store.remove_turn(chat, secret)
    store.purge_deleted()
    store.close()
    assert b"swordfish" not in b"".join(path.read_bytes() for path in file.parent.glob("chats.sqlite3*"))
    with pytest.raises(StoreError, match="not in this chat"):
        ChatStore(file).remove_turn(chat, secret)
    assert ids["q1"]


def texts(service: ChatService, chat: str) -> list[str]:
    return said(service.store_of(chat), chat)


def test_the_model_reads_the_chat_as_it_is_now_and_who_watches_sees_it(tmp_path: Path) -> None:
    async def test() -> None:
        async with serving(tmp_path) as (service, engine):
            chat = service.create_chat().id
            for text in ("the apple", "the pear", "the plum"):
                await service.send(chat, text)
                await ended(service, chat)
            turns = service.get_chat(chat).messages  # type: ignore[union-attr]
            events = service.subscribe(chat)
            service.remove_turn(chat, turns[2].id)
            event = await anext(events)
            assert isinstance(event, Shown)
            assert [m.content for m in event.messages[::2]] == ["the apple", "the plum"]
            await service.send(chat, "the fig", after=turns[-1].id)
            await ended(service, chat)
            assert "the apple" in engine.prompts[-1]
            assert "the plum" in engine.prompts[-1]
            assert "the pear" not in engine.prompts[-1]
            service.put_back(chat, turns[2].id)
            await service.send(chat, "the grape")
            await ended(service, chat)
            asked = [engine.prompts[-1].index(f"the {fruit}") for fruit in ("apple", "pear", "plum", "fig", "grape")]
            assert asked == sorted(asked)
            with pytest.raises(ChatError, match="no longer be undone"):
                service.put_back(chat, turns[2].id)

    run(test)


def test_a_message_without_a_reply_can_be_answered_anew(tmp_path: Path) -> None:
    async def test() -> None:
        numbers = iter(range(1, 9))
        async with serving(tmp_path, FakeEngine(lambda _: f"reply {next(numbers)}")) as (service, _):
            chat = service.create_chat().id
            await service.send(chat, "question", nonce="n1")
            reply = await ended(service, chat)
            service.remove_turn(chat, reply.id)
            assert texts(service, chat) == ["question"]
            question = service.get_chat(chat).messages[0]  # type: ignore[union-attr]
            await service.regenerate(chat, question.id)
            await ended(service, chat)
            assert texts(service, chat) == ["question", "reply 2"]
            service.remove_turn(chat, service.get_chat(chat).messages[1].id)  # type: ignore[union-attr]
            await service.send(chat, "question", nonce="n1")  # an answer that was lost
            await ended(service, chat)
            assert texts(service, chat) == ["question", "reply 3"]

    run(test)


def test_nothing_is_removed_under_the_hands_of_a_reply_or_an_import(tmp_path: Path) -> None:
    async def test() -> None:
        engine = FakeEngine(lambda _: "word " * 40)
        async with serving(tmp_path, engine) as (service, _):
            chat = service.create_chat().id
            await service.send(chat, "first")
            first = await ended(service, chat)
            engine.hold(after=20)
            await service.send(chat, "second")
            await some_text(service, chat)
            with pytest.raises(ChatBusyError):
                service.remove_turn(chat, first.id)
            engine.release()
            await ended(service, chat)
            async with service._taking_in:
                with pytest.raises(ChatError, match="being imported"):
                    service.remove_turn(chat, first.id)
            service.remove_turn(chat, first.id)
            assert len(texts(service, chat)) == 3
            await asyncio.sleep(0)

    run(test)
