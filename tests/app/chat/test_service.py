"""Replies outlive whoever asked for them, one a chat at a time, and nothing of them is lost."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from fake_engine import FakeEngine
from hosting import ready_host, settings

from octavo.app.chat.service import ChatService
from octavo.app.chat.store import ChatStore
from octavo.app.chat.types import (
    Append,
    Ended,
    Message,
    Snapshot,
    UserTurn,
)


def run(test: Callable[[], Any]) -> Any:
    return asyncio.run(asyncio.wait_for(test(), 20))


@asynccontextmanager
async def serving(
    tmp_path: Path, engine: FakeEngine | None = None, **values: object
) -> AsyncIterator[tuple[ChatService, FakeEngine]]:
    engine = engine or FakeEngine()
    config = settings(tmp_path, **values)
    store = ChatStore(tmp_path / "chats.sqlite3")
    service = ChatService(store, ready_host(engine, config), config)
    await service.start()
    try:
        yield service, engine
    finally:
        await service.close()
        service.host.close()
        store.close()


async def ended(service: ChatService, chat_id: str) -> Message:
    """The newest reply, once it has ended."""
    subscription = service.subscribe(chat_id)
    if service.running(chat_id) is not None:
        async for event in subscription:
            if isinstance(event, Ended):
                break
    subscription.close()
    chat = service.get_chat(chat_id)
    assert chat is not None
    return chat.messages[-1]


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
