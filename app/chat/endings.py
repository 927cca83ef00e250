"""Replies that have ended, kept until they are on disk."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping

from octavo.app.chat.patience import patiently
from octavo.app.chat.shelves import Shelves
from octavo.app.chat.store import StoreError
from octavo.app.chat.types import Message

log = logging.getLogger(__name__)

FIRST_PAUSE_S = 0.1
LONGEST_PAUSE_S = 10.0  # between two tries while the disk is full or another process holds the file
CLOSING_S = 5.0  # how long a closing server waits for the file


class Endings:
    """Stores ended replies; one that the file does not take is kept here and tried again until it does.

    Belongs to the event loop, except `waiting`. `on_stored` gets the chat of each reply that was stored late.
    """

    def __init__(self, shelves: Shelves, on_stored: Callable[[str], None]) -> None:
        self._shelves = shelves
        self._on_stored = on_stored
        self._waiting: dict[str, Message] = {}  # by id
        self._task: asyncio.Task[None] | None = None

    @property
    def waiting(self) -> Mapping[str, Message]:
        """The replies that are not on disk yet, by id; a copy."""
        return dict(self._waiting)

    def add(self, message: Message) -> StoreError | None:
        """Store a reply that has just ended, or keep it for later; why it is not stored yet, if it is not."""
        try:
            self._finish(message)
        except StoreError as error:
            log.warning("A reply could not be saved yet: %s", error)
            self._waiting[message.id] = message
            if self._task is None or self._task.done():
                self._task = asyncio.create_task(self._try_again(), name="save-replies")
            return error
        return None

    async def close(self) -> None:
        """Store what is left, if the file takes it within CLOSING_S."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        try:
            await patiently(self._store_waiting, seconds=CLOSING_S)
        except StoreError:
            log.exception("%d replies could not be saved", len(self._waiting))

    async def _try_again(self) -> None:
        pause_s = FIRST_PAUSE_S
        while self._waiting:
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
            try:
                self._store_waiting()
            except StoreError as error:
                log.debug("A reply could not be saved yet: %s", error)

    def _store_waiting(self) -> None:
        for message in tuple(self._waiting.values()):
            self._finish(message)
            del self._waiting[message.id]
            self._on_stored(message.chat_id)

    def _finish(self, message: Message) -> None:
        self._shelves.of(message.chat_id).finish_reply(
            message.id,
            message.status,
            message.content,
            message.reasoning,
            token_ids=message.token_ids,
            error=message.error,
            error_code=message.error_code,
            stats=message.stats,
        )
