"""Who watches what: the subscribers of each chat and of the list, told on one event loop from any thread."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Container

from octavo.app.chat.live import Hub
from octavo.app.chat.store import StoreError
from octavo.app.chat.types import ChatChanged, ChatRemoved, ChatSummary, ListEvent, LiveEvent

log = logging.getLogger(__name__)


class News:
    """`summary` gives a chat's line in the list as it is now, None if there is no such chat."""

    def __init__(self, summary: Callable[[str], ChatSummary | None]) -> None:
        self.list: Hub[ListEvent] = Hub()
        self._summary = summary
        self._chats: dict[str, Hub[LiveEvent]] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._loop_thread: int | None = None

    def bind(self) -> None:
        """Take over the running loop, once."""
        if self._loop is None:
            self._loop, self._loop_thread = asyncio.get_running_loop(), threading.get_ident()

    def on_loop(self, action: Callable[[], None]) -> None:
        """Do it on the loop: at once if this is its thread."""
        if self._loop is None or threading.get_ident() == self._loop_thread:
            action()
        elif not self._loop.is_closed():
            self._loop.call_soon_threadsafe(action)

    def later(self, seconds: float, action: Callable[[], None]) -> None:
        if self._loop is not None:
            self._loop.call_later(seconds, action)

    def chat(self, chat_id: str) -> Hub[LiveEvent]:
        return self._chats.setdefault(chat_id, Hub())

    def tell(self, chat_id: str, event: Callable[[], LiveEvent | None]) -> None:
        """Publish what `event` makes, on the loop, if anybody watches the chat."""

        def publish() -> None:
            hub = self._chats.get(chat_id)
            made = event() if hub is not None else None
            if hub is not None and made is not None:
                hub.publish(made)

        self.on_loop(publish)

    def changed(self, chat_id: str) -> None:
        """The chat's line in the list is another now."""

        def publish() -> None:
            try:
                chat = self._summary(chat_id)
            except StoreError:  # what happened in the chat has happened, though the list cannot show it
                log.exception("A chat's line in the list could not be read")
                return
            if chat is not None:
                self.list.publish(ChatChanged(chat))

        self.on_loop(publish)

    def removed(self, chat_id: str) -> None:
        def publish() -> None:
            hub = self._chats.pop(chat_id, None)
            if hub is not None:
                hub.close()
            self.list.publish(ChatRemoved(chat_id))

        self.on_loop(publish)

    def tidy(self, needed: Container[str]) -> None:
        """Forget the chats that nobody watches, except those."""
        for idle in [idle for idle, hub in self._chats.items() if not len(hub) and idle not in needed]:
            del self._chats[idle]

    def close(self) -> None:
        for hub in self._chats.values():
            hub.close()
        self.list.close()
