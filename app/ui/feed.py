"""One chat, kept drawn for all tabs that show it: each reply is rendered once, whoever watches."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress

from octavo.app.chat.live import Subscription
from octavo.app.chat.service import ChatService
from octavo.app.chat.types import Append, Ended, LiveEvent, Message, Notice, Progress, Snapshot, UserTurn
from octavo.app.ui.turns import Turn
from octavo.engine.errors import OctavoError

log = logging.getLogger(__name__)


class ChatFeed:
    """The turns of one chat, following the chat service. Watchers are called after every change and must not block.

    `order` rises when a turn is added or taken away. `over` is set when nothing will change any more, `gone` too if
    that is because the chat was deleted.
    """

    def __init__(self, chat_id: str, service: ChatService) -> None:
        self.chat_id = chat_id
        self.title = ""
        self.turns: list[Turn] = []
        self.order = 0
        self.over = False
        self.gone = False
        self._service = service
        self._watchers: set[Callable[[], None]] = set()
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> bool:
        """Read the chat and follow it from here on; False if there is no such chat."""
        events = self._service.subscribe(self.chat_id)  # before reading, so that nothing falls between
        try:
            chat = await asyncio.to_thread(self._service.get_chat, self.chat_id)
        except BaseException:
            await events.aclose()
            raise
        if chat is None:
            await events.aclose()
            return False
        self.title = chat.title
        self.turns = [Turn(message) for message in chat.messages if message.role != "system"]
        running = self._service.running(self.chat_id)
        if running is not None:
            self._whole(running)
        self._task = asyncio.create_task(self._follow(events), name=f"feed-{self.chat_id}")
        return True

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task

    def watch(self, watcher: Callable[[], None]) -> None:
        self._watchers.add(watcher)

    def unwatch(self, watcher: Callable[[], None]) -> None:
        self._watchers.discard(watcher)

    @property
    def watched(self) -> bool:
        return bool(self._watchers)

    def find(self, message_id: str) -> Turn | None:
        return next((turn for turn in reversed(self.turns) if turn.id == message_id), None)

    async def _follow(self, events: Subscription[LiveEvent]) -> None:
        try:
            async for event in events:
                self._apply(event)
                self._tell()
        except Exception:
            log.exception("Following a chat failed")
        finally:
            await events.aclose()
        self.over = True
        try:
            self.gone = self._service.get_chat(self.chat_id) is None
        except OctavoError:  # the server is closing
            self.gone = False
        self._tell()

    def _tell(self) -> None:
        for watcher in tuple(self._watchers):
            watcher()

    def _apply(self, event: LiveEvent) -> None:
        if isinstance(event, (Snapshot, UserTurn)):
            self._whole(event.message)
            return
        if isinstance(event, Ended):
            ended = self.find(event.message.id)
            if ended is not None:
                ended.end(event.message)
            else:
                self._whole(event.message)
            return
        turn = self.find(event.message_id)
        if turn is None:
            return
        if isinstance(event, Append):
            turn.append(event)
        elif isinstance(event, Progress):
            turn.set_progress(event)
        elif isinstance(event, Notice):
            turn.add_notice(event.text)

    def _whole(self, message: Message) -> None:
        """A message with all its text: known already, or a new turn, which replaces what followed its parent."""
        turn = self.find(message.id)
        if turn is not None:
            if turn.message != message:
                turn.reset(message)
            return
        parent = next((at for at, known in enumerate(self.turns) if known.id == message.parent_id), None)
        if parent is not None:
            del self.turns[parent + 1 :]
        elif message.parent_id is None:
            self.turns.clear()
        self.turns.append(Turn(message))
        self.order += 1
