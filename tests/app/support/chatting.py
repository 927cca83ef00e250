"""A chat service with the fake engine, for tests that talk to it."""

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
    Ended,
    Message,
)


def run(test: Callable[[], Any]) -> Any:
    return asyncio.run(asyncio.wait_for(test(), 240))


def with_reply(store: ChatStore) -> tuple[str, str]:
    """A chat whose reply is just being written: the ids of both."""
    chat = store.create_chat()
    turn = store.add_message(chat.id, "user", "hello")
    reply = store.add_message(chat.id, "assistant", "", parent_id=turn.id, status="streaming")
    return chat.id, reply.id


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


async def some_text(service: ChatService, chat_id: str) -> None:
    """Returns once the running reply has a word."""
    while (reply := service.running(chat_id)) is None or len(reply.content) < 5:
        await asyncio.sleep(0.005)
