"""What all tabs have in common: the list of chats, the state of the model, and the chats that are kept drawn."""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

from octavo.app.chat.patience import patiently
from octavo.app.chat.service import ChatService
from octavo.app.chat.types import ChatChanged, ChatList, ChatRemoved, ChatSummary
from octavo.app.config import Settings
from octavo.app.host import ModelHost
from octavo.app.ui.board import Board
from octavo.app.ui.feed import ChatFeed
from octavo.app.ui.machine import describe
from octavo.engine.errors import OctavoError

log = logging.getLogger(__name__)

IDLE_FEEDS = 32  # chats that nobody looks at but whose drawing is kept, for switching back at once
REMEMBERED_BEGINNINGS = 256
LOG_LENGTH = 256  # changes of the list that a slow tab may catch up on; a slower one gets the whole list


class Hub:
    """One for the server; lives on its event loop. Subscriptions begin with the first tab and end with the last."""

    def __init__(self, service: ChatService, host: ModelHost, settings: Settings, board: Board | None = None) -> None:
        self.board = board or Board()
        self._service = service
        self._host = host
        self._settings = settings
        self._feeds: OrderedDict[str, ChatFeed] = OrderedDict()
        self._opening: dict[str, asyncio.Task[ChatFeed | None]] = {}
        self._watchers: set[Callable[[], None]] = set()
        self._list_task: asyncio.Task[None] | None = None
        self._remove_listener: Callable[[], None] | None = None
        self._unwatch_board: Callable[[], None] | None = None
        self._chats: dict[str, ChatSummary] = {}
        self._changes: list[dict[str, Any]] = []
        self._first_change = 0  # number of changes already forgotten
        self._begun: OrderedDict[str, str] = OrderedDict()
        self._machine: dict[str, Any] | None = None
        self._looking: asyncio.Task[None] | None = None
        self.model_version = 0

    # Tabs

    def enter(self, watcher: Callable[[], None]) -> None:
        """A tab has come; `watcher` is called on the loop after every change and must not block."""
        self._watchers.add(watcher)
        if self._list_task is None:
            events = self._service.subscribe_list()
            self._list_task = asyncio.create_task(self._follow_list(events), name="chat-list")
        if self._remove_listener is None:
            loop = asyncio.get_running_loop()

            def changed() -> None:  # in whatever thread loads
                if not loop.is_closed():
                    loop.call_soon_threadsafe(self._model_changed)

            self._remove_listener = self._host.add_listener(changed)

            def told() -> None:
                if not loop.is_closed():
                    loop.call_soon_threadsafe(self._tell)

            self._unwatch_board = self.board.watch(told)

    def leave(self, watcher: Callable[[], None]) -> None:
        self._watchers.discard(watcher)
        if self._watchers:
            return
        if self._list_task is not None:
            self._list_task.cancel()
            self._list_task = None
        if self._remove_listener is not None:
            self._remove_listener()
            self._remove_listener = None
        if self._unwatch_board is not None:
            self._unwatch_board()
            self._unwatch_board = None

    # Chats

    async def feed(self, chat_id: str) -> ChatFeed | None:
        """The drawn chat, shared by all who look at it; None if there is no such chat."""
        feed = self._feeds.get(chat_id)
        if feed is not None and not feed.over:
            self._feeds.move_to_end(chat_id)
            return feed
        task = self._opening.get(chat_id)
        if task is None:  # two tabs that ask at the same time get the same one
            task = self._opening[chat_id] = asyncio.create_task(self._open(chat_id), name=f"open-{chat_id}")
            task.add_done_callback(lambda _: self._opening.pop(chat_id, None))
        return await asyncio.shield(task)

    async def begin(self, nonce: str, *, temporary: bool = False, again: bool = False) -> str:
        """The chat that a first message of this name makes: a new one, or if its answer was lost the same again.

        `again`: it may have been stored before, perhaps by a server that has ended since.
        """
        return await patiently(lambda: self._begin(nonce, temporary, again))

    def _begin(self, nonce: str, temporary: bool, again: bool) -> str:
        chat_id = self._begun.get(nonce)
        if chat_id is None and again:
            chat_id = self._service.chat_begun_by(nonce)
        if chat_id is None:
            chat_id = self._begun[nonce] = self._service.create_chat(temporary=temporary).id
            if len(self._begun) > REMEMBERED_BEGINNINGS:
                self._begun.popitem(last=False)
        return chat_id

    def abandon(self, nonce: str) -> None:
        """Undo `begin` for a first message that was not stored; a chat that has turns stays.

        A chat that cannot be deleted now stays too, and is what the next message of this name gets.
        """
        chat_id = self._begun.get(nonce)
        if chat_id is None:
            return
        try:
            chat = self._service.get_chat(chat_id)
            if chat is not None and chat.messages:
                return
            self._service.delete_chat(chat_id)
        except OctavoError as error:
            log.warning("An empty chat could not be deleted: %s", error)
            return
        del self._begun[nonce]

    async def _open(self, chat_id: str) -> ChatFeed | None:
        feed = ChatFeed(chat_id, self._service)
        if not await feed.start():
            return None
        self._feeds[chat_id] = feed
        idle = [known for known in self._feeds.values() if known is not feed and (known.over or not known.watched)]
        for old in idle[: max(0, len(idle) - IDLE_FEEDS)]:
            del self._feeds[old.chat_id]
            await old.close()
        return feed

    # The list

    @property
    def list_version(self) -> int:
        return self._first_change + len(self._changes)

    def whole_list(self) -> dict[str, Any]:
        """Every chat, the last used first."""
        chats = sorted(self._chats.values(), key=lambda chat: -chat.updated_s)
        return {"k": "list", "chats": [_summary(chat) for chat in chats]}

    def list_changes(self, since: int) -> list[dict[str, Any]]:
        """What happened to the list after `since`, an earlier `list_version`."""
        if since < self._first_change:
            return [self.whole_list()]
        return self._changes[since - self._first_change :]

    async def _follow_list(self, events: Any) -> None:
        try:
            async for event in events:
                if isinstance(event, ChatList):
                    self._chats = {chat.id: chat for chat in event.chats}
                    self._first_change += len(self._changes) + 1  # everybody takes the whole list
                    self._changes.clear()
                elif isinstance(event, ChatChanged):
                    self._chats[event.chat.id] = event.chat
                    self._changed({"k": "listed", "chat": _summary(event.chat)})
                elif isinstance(event, ChatRemoved):
                    self._chats.pop(event.chat_id, None)
                    self._changed({"k": "unlisted", "chat": event.chat_id})
                self._tell()
        except Exception:
            log.exception("Following the list of chats failed")
        finally:
            await events.aclose()

    def _changed(self, change: dict[str, Any]) -> None:
        self._changes.append(change)
        if len(self._changes) > LOG_LENGTH:
            forgotten = len(self._changes) // 2
            del self._changes[:forgotten]
            self._first_change += forgotten

    # The model

    def model(self) -> dict[str, Any]:
        """The state of the model, for the page's header and for the picture of a load."""
        host = self._host
        progress, engine = host.progress, host.engine
        out: dict[str, Any] = {"k": "model", "state": host.state, "id": host.model_id, "error": host.error}
        out["notices"] = list(host.notices)
        configured = host.wanted.get("id", self._settings.values.model.id)  # what `load` of a tab would load
        out["configured"] = None if configured == "none" else configured
        if progress is not None:
            out["progress"] = {
                "stage": progress.stage,
                "done": progress.done,
                "total": progress.total,
                "source": progress.source,
            }
        if engine is not None:
            info = engine.info
            out["info"] = {
                "name": info.name,
                "architecture": info.architecture,
                "format": info.format,
                "device": info.device,
                "context": info.context_length,
                "longest": info.longest_context,
                "weights": info.weight_bytes,
                "kv": info.kv_bytes,
                "chat": info.chat_bytes,
            }
        return out

    def machine(self) -> dict[str, Any] | None:
        """What the page says about the machine while no model is there; None while it is being looked at."""
        if self._machine is None and self._looking is None:
            self._looking = asyncio.create_task(self._look(), name="look-at-machine")
        return self._machine

    async def _look(self) -> None:
        try:
            self._machine = await asyncio.to_thread(describe)
        finally:
            self._looking = None
        self._tell()

    def _model_changed(self) -> None:
        self.model_version += 1
        self._tell()

    def _tell(self) -> None:
        for watcher in tuple(self._watchers):
            watcher()


def _summary(chat: ChatSummary) -> list[Any]:
    """A line of the list for the page, whose `unpack` (assets/chats.js) knows the order."""
    written = (chat.id, chat.title, round(chat.updated_s, 3), chat.generating)
    return [*written, chat.pinned, chat.folder, chat.tags, chat.model]
