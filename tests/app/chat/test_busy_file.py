"""Another process may hold the file of chats, or the disk be full: the server goes on, and no reply is lost."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pytest
from fake_engine import FakeEngine, endless
from hosting import ready_host, settings

from octavo.app.chat import patience, reply
from octavo.app.chat.service import ChatService
from octavo.app.chat.store import ChatStore, StoreBusyError, StoreError
from octavo.app.chat.types import Ended, Message, Notice


def run(test: Callable[[], Any]) -> Any:
    return asyncio.run(asyncio.wait_for(test(), 240))


@contextmanager
def held(file: Path) -> Iterator[None]:
    """Another program is in the middle of writing to the file."""
    other = sqlite3.connect(file, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    try:
        yield
    finally:
        other.execute("ROLLBACK")
        other.close()


@asynccontextmanager
async def serving(file: Path, engine: FakeEngine | None = None) -> AsyncIterator[ChatService]:
    config = settings(file.parent)
    store = ChatStore(file)
    service = ChatService(store, ready_host(engine or FakeEngine(), config), config)
    await service.start()
    try:
        yield service
    finally:
        await service.close()
        service.host.close()
        store.close()


async def end_of(events: AsyncIterator[Any]) -> Message:
    async for event in events:
        if isinstance(event, Ended):
            return event.message
    raise AssertionError("no end")


async def stored(file: Path, chat_id: str, status: str) -> Message:
    """The newest turn on disk, once it has this status."""
    while True:
        again = ChatStore(file)
        chat = again.get_chat(chat_id)
        again.close()
        assert chat is not None
        if chat.messages[-1].status == status:
            return chat.messages[-1]
        await asyncio.sleep(0.02)


def test_a_busy_file_is_said_soon_and_changes_nothing(file: Path) -> None:
    store = ChatStore(file)
    with held(file), pytest.raises(StoreBusyError, match="Another program"):
        store.create_chat()
    assert store.list_chats() == []


def test_what_is_written_together_is_stored_whole_or_not_at_all(file: Path) -> None:
    store = ChatStore(file)
    chat = store.create_chat()

    def one_of_two() -> None:
        with store.together():
            store.add_message(chat.id, "user", "hello")
            store.add_message(chat.id, "assistant", "", parent_id="no-such-turn")

    with pytest.raises(StoreError):
        one_of_two()
    left = store.get_chat(chat.id)
    assert left is not None
    assert left.messages == ()


def test_nobody_else_waits_while_a_call_tries_to_get_the_file(file: Path) -> None:
    """A call stands in the way of the event loop: it tries for some hundredths of a second at most."""
    store = ChatStore(file)
    assert store._file._db.execute("PRAGMA busy_timeout").fetchone()[0] <= 100  # ms
    store.close()


def test_a_message_waits_for_the_file_and_nobody_waits_for_it(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patience, "PATIENCE_S", 3600.0)

    async def test() -> None:
        async with serving(file) as service:
            chat = service.create_chat()
            events = service.subscribe(chat.id)
            with held(file):
                sending = asyncio.create_task(service.send(chat.id, "hello", nonce="n1"))
                again = asyncio.create_task(service.send(chat.id, "hello", nonce="n1"))
                await asyncio.sleep(0.6)  # others have their turn meanwhile
                assert not sending.done()
            assert (await sending).id == (await again).id
            assert (await end_of(events)).content == "You said: hello"
            kept = service.get_chat(chat.id)
            assert kept is not None
            assert [message.content for message in kept.messages] == ["hello", "You said: hello"]

    run(test)


def test_a_message_that_waited_too_long_is_refused_and_leaves_nothing(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(patience, "PATIENCE_S", 0.2)

    async def test() -> None:
        async with serving(file) as service:
            chat = service.create_chat()
            with held(file), pytest.raises(StoreBusyError):
                await service.send(chat.id, "hello", nonce="n1")
            left = service.get_chat(chat.id)
            assert left is not None
            assert (left.title, left.messages) == ("", ())
            await service.send(chat.id, "hello", nonce="n1")

    run(test)


def test_a_reply_that_ends_while_the_file_is_held_is_shown_at_once_and_stored_later(file: Path) -> None:
    async def test() -> None:
        engine = FakeEngine()
        engine.hold()
        async with serving(file, engine) as service:
            chat = service.create_chat()
            events = service.subscribe(chat.id)
            await service.send(chat.id, "hello", nonce="n1")
            while not engine.submitted:
                await asyncio.sleep(0.005)
            with held(file):
                engine.release()
                last = await end_of(events)
                assert (last.status, last.content) == ("complete", "You said: hello")
                shown = service.get_chat(chat.id)
                assert shown is not None
                assert shown.messages[-1] == last
                assert await service.send(chat.id, "hello", nonce="n1") == last
            kept = await stored(file, chat.id, "complete")
            assert (kept.content, kept.token_ids, kept.stats) == (last.content, last.token_ids, last.stats)

    run(test)


def test_a_reply_that_could_not_be_stored_is_stored_at_the_end_of_the_server(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test() -> str:
        async with serving(file) as service:
            chat = service.create_chat()
            events = service.subscribe(chat.id)

            def full(*_: object, **__: object) -> None:
                raise StoreError("The disk is full.", remedy="Free some space.")

            with monkeypatch.context() as patched:
                patched.setattr(service.store, "finish_reply", full)
                await service.send(chat.id, "one")
                notices = []
                async for event in events:
                    if isinstance(event, Notice):
                        notices.append(event.text)
                    elif isinstance(event, Ended):
                        break
                assert notices == ["This reply is not saved yet. The disk is full. Free some space."]
                await service.send(chat.id, "two")  # it does not stand in the way of the next one
                assert (await end_of(events)).content == "You said: two"
            return chat.id

    chat_id = run(test)
    chat = ChatStore(file).get_chat(chat_id)
    assert chat is not None
    assert [(m.content, m.status) for m in chat.messages if m.role == "assistant"] == [
        ("You said: one", "complete"),
        ("You said: two", "complete"),
    ]


def test_partial_text_is_saved_again_after_a_save_that_failed(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reply, "SAVE_EVERY_S", 0.05)

    async def test() -> None:
        async with serving(file, endless()) as service:
            chat = service.create_chat()
            saving, tries = service.store.save_partial, 0

            def save(*args: Any) -> bool:
                nonlocal tries
                tries += 1
                if tries == 1:
                    raise StoreError("The disk is full.")
                return saving(*args)

            monkeypatch.setattr(service.store, "save_partial", save)
            await service.send(chat.id, "go")
            while not (await stored(file, chat.id, "streaming")).content:
                await asyncio.sleep(0.01)
            assert tries > 1

    run(test)


def test_a_list_that_cannot_be_read_does_not_keep_a_reply_from_ending(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test() -> None:
        async with serving(file) as service:
            chat = service.create_chat()
            events = service.subscribe(chat.id)

            def fail(_: str) -> None:
                raise StoreError("The chats cannot be read.")

            monkeypatch.setattr(service.store, "summary", fail)
            await service.send(chat.id, "hello")
            assert (await end_of(events)).status == "complete"
            assert service.running(chat.id) is None

    run(test)
