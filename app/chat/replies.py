"""The replies that are being written: one a chat at most, each until its end is on disk."""

from __future__ import annotations

from collections.abc import Container, Mapping
from typing import TYPE_CHECKING

from octavo.app.chat.cuts import Cut
from octavo.app.chat.endings import Endings
from octavo.app.chat.news import News
from octavo.app.chat.preparation import prepare_reply
from octavo.app.chat.reply import Reply
from octavo.app.chat.shelves import Shelves
from octavo.app.chat.store import StoreBusyError
from octavo.app.chat.types import LiveEvent, Message, Notice, Remark, Snapshot
from octavo.app.host import ModelHost

if TYPE_CHECKING:
    from octavo.app.config import Settings


class Replies(Container[str]):
    """Contains the ids of the chats that are writing. Belongs to the event loop, except what only looks."""

    def __init__(self, shelves: Shelves, host: ModelHost, settings: Settings, news: News) -> None:
        self._shelves = shelves
        self._host = host
        self._settings = settings
        self._news = news
        self._running: dict[str, Reply] = {}  # by chat
        self._endings = Endings(shelves, news.changed)

    def __contains__(self, chat_id: object) -> bool:
        return chat_id in self._running

    def start(self, message: Message) -> None:
        """Begin to write a reply that is stored as streaming; one that has a text goes on after it."""
        chat_id, store = message.chat_id, self._shelves.of(message.chat_id)
        reply = Reply(
            message,
            store=store,
            host=self._host,
            prepare=lambda engine: prepare_reply(
                engine, message, store=store, settings=self._settings, unsaved=self._endings.waiting
            ),
            publish=self._news.chat(chat_id).publish,
        )
        self._running[chat_id] = reply
        self._news.chat(chat_id).publish(Snapshot(message))
        reply.start(on_end=self._ended)
        self._news.changed(chat_id)

    def stop(self, chat_id: str) -> bool:
        """End the chat's reply soon, keeping what it has; False if none runs. From any thread."""
        reply = self._running.get(chat_id)
        if reply is None:
            return False
        self._news.on_loop(reply.stop)
        return True

    def running(self, chat_id: str) -> Message | None:
        """The chat's reply so far, if one is being written."""
        reply = self._running.get(chat_id)
        return None if reply is None else reply.message

    def opening(self, chat_id: str) -> list[LiveEvent]:
        """What someone who begins to watch the chat now needs to know of its running reply."""
        reply = self._running.get(chat_id)
        return [] if reply is None else [Snapshot(reply.message), *reply.opening()]

    def requests(self) -> dict[str, str]:
        """The chats that the engine is replying to, by the ids of its requests."""
        pairs = [(reply.request_id, chat_id) for chat_id, reply in tuple(self._running.items())]
        return {request_id: chat_id for request_id, chat_id in pairs if request_id is not None}

    @property
    def unsaved(self) -> Mapping[str, Message]:
        """Replies that have ended and are not on disk yet, by id; a copy."""
        return self._endings.waiting

    async def close(self, cut: Cut) -> None:
        """Stop all, keeping what they have and saying why, and store what is not stored."""
        replies = list(self._running.values())
        for reply in replies:
            reply.stop(cut)
        for reply in replies:
            await reply.wait()
        await self._endings.close()

    def _ended(self, message: Message) -> None:
        chat_id = message.chat_id
        try:
            error = self._endings.add(message)
        finally:
            self._running.pop(chat_id, None)
        if error is not None and not isinstance(error, StoreBusyError):  # a busy file is nothing to trouble anyone with
            remark = Remark(f"This reply is not saved yet. {error}", "unsaved", {"why": str(error)})
            self._news.chat(chat_id).publish(Notice(message.id, remark))
        self._news.changed(chat_id)
        self._news.tidy(self._running)
