"""A reply is streamed to whoever watches, goes on without them, and is all there for who comes later."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from chatting import ended, run, serving, some_text
from fake_engine import THINKING, FakeEngine, endless

from octavo.app.chat.errors import UnknownChatError
from octavo.app.chat.reply import COALESCE_S
from octavo.app.chat.types import (
    Append,
    ChatChanged,
    ChatList,
    ChatRemoved,
    Ended,
    Snapshot,
    UserTurn,
)


def test_a_reply_is_streamed_and_stored(tmp_path: Path) -> None:
    async def test() -> None:
        async with serving(tmp_path) as (service, _):
            chat = service.create_chat()
            events = service.subscribe(chat.id)
            reply = await service.send(chat.id, "hello")
            assert reply.status == "streaming"
            assert reply.content == ""
            seen = []
            async for event in events:
                seen.append(event)
                if isinstance(event, Ended):
                    break
            assert isinstance(seen[0], UserTurn)
            assert isinstance(seen[1], Snapshot)
            text = "".join(event.text for event in seen if isinstance(event, Append))
            last = seen[-1]
            assert isinstance(last, Ended)
            assert text == last.message.content == "You said: hello"
            assert last.message.status == "complete"
            assert last.message.stats is not None
            assert last.message.stats.completion_tokens == len(text) + 1
            stored = service.get_chat(chat.id)
            assert stored is not None
            assert [m.content for m in stored.messages] == ["hello", text]
            assert stored.messages[1].token_ids == last.message.token_ids

    run(test)


def test_a_reply_goes_on_when_nobody_watches(tmp_path: Path) -> None:
    async def test() -> None:
        async with serving(tmp_path, FakeEngine(token_s=0.002)) as (service, _):
            chat = service.create_chat()
            events = service.subscribe(chat.id)
            await service.send(chat.id, "hello")
            await anext(events)
            events.close()
            last = await ended(service, chat.id)
            assert (last.status, last.content) == ("complete", "You said: hello")

    run(test)


def test_who_comes_later_gets_all_of_it_once(tmp_path: Path) -> None:
    async def test() -> None:
        text = "word " * 60
        async with serving(tmp_path, FakeEngine(lambda _: text, token_s=0.001)) as (service, engine):
            engine.hold(after=30)
            chat = service.create_chat()
            await service.send(chat.id, "go")
            await some_text(service, chat.id)
            seen = ""
            async for event in service.subscribe(chat.id):
                if isinstance(event, Snapshot):
                    assert not seen
                    seen = event.message.content
                    engine.release()
                elif isinstance(event, Append):
                    seen += event.text
                elif isinstance(event, Ended):
                    break
            assert seen == text

    run(test)


def test_deltas_are_coalesced(tmp_path: Path) -> None:
    async def test() -> None:
        async with serving(tmp_path, FakeEngine(lambda _: "x" * 400, token_s=0.001)) as (service, _):
            chat = service.create_chat()
            events = service.subscribe(chat.id)
            loop = asyncio.get_running_loop()
            began = loop.time()
            await service.send(chat.id, "go")
            appends = 0
            async for event in events:
                appends += isinstance(event, Append)
                if isinstance(event, Ended):
                    break
            assert appends <= (loop.time() - began) / COALESCE_S + 3

    run(test)


def test_chats_stream_at_the_same_time_and_stay_apart(tmp_path: Path) -> None:
    async def test() -> None:
        async with serving(tmp_path, FakeEngine(token_s=0.001)) as (service, engine):
            engine.hold()
            chats = [service.create_chat().id for _ in range(8)]
            await asyncio.gather(*(service.send(chat, f"number {chat}") for chat in chats))
            while len(engine.submitted) < len(chats):
                await asyncio.sleep(0.005)
            assert all(summary.generating for summary in service.list_chats())
            engine.release()
            replies = await asyncio.gather(*(ended(service, chat) for chat in chats))
            assert [reply.content for reply in replies] == [f"You said: number {chat}" for chat in chats]
            assert not any(summary.generating for summary in service.list_chats())
            assert engine.status().counters["steps"] < sum(len(reply.content) for reply in replies) / 4

    run(test)


def test_reasoning_is_a_part_of_its_own(tmp_path: Path) -> None:
    async def test() -> None:
        engine = FakeEngine(lambda _: "<think>let me see</think>\n\nIt is 4.", template=THINKING)
        async with serving(tmp_path, engine) as (service, _):
            chat = service.create_chat()
            await service.send(chat.id, "2+2?")
            last = await ended(service, chat.id)
            assert (last.reasoning, last.content) == ("let me see", "It is 4.")
            await service.send(chat.id, "sure?")
            await ended(service, chat.id)
            assert "let me see" not in engine.prompts[-1]

    run(test)


def test_the_list_tells_every_change(tmp_path: Path) -> None:
    async def test() -> None:
        async with serving(tmp_path) as (service, _):
            old = service.create_chat()
            changes = service.subscribe_list()
            first = await anext(changes)
            assert isinstance(first, ChatList)
            assert [chat.id for chat in first.chats] == [old.id]
            chat = service.create_chat()
            await service.send(chat.id, "What is the capital of France?")
            await ended(service, chat.id)
            await asyncio.to_thread(lambda: service.update_chat(chat.id, title="Paris"))
            await asyncio.to_thread(service.delete_chat, chat.id)
            seen: list[object] = []
            async for change in changes:
                seen.append(change)
                if isinstance(change, ChatRemoved):
                    break
            states = [(c.chat.title, c.chat.generating) for c in seen if isinstance(c, ChatChanged)]
            assert states[0] == ("", False)
            assert ("What is the capital of France?", True) in states
            assert states.index(("What is the capital of France?", True)) < states.index(
                ("What is the capital of France?", False)
            )
            assert states[-1] == ("Paris", False)
            assert seen[-1] == ChatRemoved(chat.id)

    run(test)


def test_deleting_a_chat_ends_its_reply_and_its_watchers(tmp_path: Path) -> None:
    async def test() -> None:
        engine = endless()
        async with serving(tmp_path, engine) as (service, _):
            chat = service.create_chat()
            events = service.subscribe(chat.id)
            await service.send(chat.id, "go")
            await some_text(service, chat.id)
            assert await asyncio.to_thread(service.delete_chat, chat.id)
            async for _ in events:
                pass
            while not engine.is_idle:
                await asyncio.sleep(0.01)
            assert engine.status().counters["aborted"] == 1
            with pytest.raises(UnknownChatError):
                await service.send(chat.id, "still there?")

    run(test)


def test_a_watcher_that_does_not_read_costs_a_bounded_backlog(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("octavo.app.chat.live.BACKLOG", 8)
    monkeypatch.setattr("octavo.app.chat.reply.COALESCE_S", 0.0)

    async def test() -> None:
        text = "word " * 100
        async with serving(tmp_path, FakeEngine(lambda _: text, token_s=0.001)) as (service, _):
            chat = service.create_chat()
            lazy = service.subscribe(chat.id)
            await service.send(chat.id, "go")
            await ended(service, chat.id)
            seen, count = "", 0
            async for event in lazy:
                count += 1
                if isinstance(event, Snapshot):
                    seen = event.message.content
                elif isinstance(event, Append):
                    seen += event.text
                elif isinstance(event, Ended):
                    seen = event.message.content
                    break
            assert count <= 9
            assert seen == text

    run(test)


STRICT = (
    "{% for message in messages %}"
    "{% if (message.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Roles must alternate.') }}{% endif %}"
    "{{ '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
