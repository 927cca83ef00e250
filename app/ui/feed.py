"""One chat, kept drawn for all tabs that show it: each reply is rendered once, whoever watches."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from contextlib import suppress

from octavo.app.chat.live import Subscription
from octavo.app.chat.service import ChatService
from octavo.app.chat.types import Append, Ended, LiveEvent, Message, Notice, Progress, Shown, Snapshot, UserTurn
from octavo.app.ui.turns import Turn
from octavo.engine.errors import OctavoError

log = logging.getLogger(__name__)

KEPT_ASIDE = 32  # turns on other branches whose drawing is kept


class ChatFeed:
    """The turns of one chat, following the chat service. Watchers are called after every change and must not block.

    `turns` are those of the branch that is shown; what was drawn of others is kept for turning back. `order` rises when
    a turn is added or taken away. `over` is set when nothing will change any more, `gone` too if that is because the
    chat was deleted.
    """

    def __init__(self, chat_id: str, service: ChatService) -> None:
        self.chat_id = chat_id
        self.title = ""
        self.turns: list[Turn] = []
        self._drawn: dict[str, Turn] = {}  # every turn seen so far, shown or not
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
        self._show(chat.messages)
        running = self._service.running(self.chat_id)
        if running is not None:
            self._turn(running)
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

    @property
    def writing(self) -> bool:
        """Its last reply is growing."""
        return bool(self.turns) and self.turns[-1].live

    def find(self, message_id: str) -> Turn | None:
        """A turn of the chat that was shown at some time."""
        return self._drawn.get(message_id)

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
        if isinstance(event, Shown):
            self._show(event.messages)
        elif isinstance(event, (Snapshot, UserTurn)):
            self._follow_with(event.message)
        elif isinstance(event, Ended):
            self._turn(event.message).end(event.message)
        elif (turn := self.find(event.message_id)) is None:
            return
        elif isinstance(event, Append):
            turn.append(event)
        elif isinstance(event, Progress):
            turn.set_progress(event)
        elif isinstance(event, Notice):
            turn.add_notice(event.remark)

    def _show(self, messages: Iterable[Message]) -> None:
        """These are the turns that are shown now."""
        self._shown([self._turn(message) for message in messages])

    def _follow_with(self, message: Message) -> None:
        """A new turn takes the place of what followed its parent; a known one may have another text."""
        known = self.find(message.id) in self.turns
        turn = self._turn(message)
        if known:
            return
        parent = next((at for at, above in enumerate(self.turns) if above.id == message.parent_id), None)
        if parent is None and message.parent_id is not None:
            return  # on a branch that is not shown
        self._shown([*self.turns[: 0 if parent is None else parent + 1], turn])

    def _shown(self, turns: list[Turn]) -> None:
        self.turns = turns
        self.order += 1
        shown = {turn.id for turn in turns}
        aside = [turn.id for turn in self._drawn.values() if turn.id not in shown and not turn.live]
        for forgotten in aside[:-KEPT_ASIDE]:
            del self._drawn[forgotten]

    def _turn(self, message: Message) -> Turn:
        """The drawing of a message, with the text it has now."""
        turn = self.find(message.id)
        if turn is None:
            turn = self._drawn[message.id] = Turn(message)
        elif turn.message != message:
            turn.reset(message)
        return turn
