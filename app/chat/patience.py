"""Waiting for the file of chats without holding up the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from octavo.app.chat.store import StoreBusyError

T = TypeVar("T")

PATIENCE_S = 10.0
FIRST_PAUSE_S = 0.02
LONGEST_PAUSE_S = 0.5


async def patiently(action: Callable[[], T], *, seconds: float | None = None) -> T:
    """What `action` returns, tried again with growing pauses while another process is writing to the file.

    `action` must change nothing if it raises StoreBusyError, which is passed on after `seconds` (None: PATIENCE_S).
    """

    async def attempt() -> T:
        return action()

    return await _again(attempt, PATIENCE_S if seconds is None else seconds)


async def patiently_aside(action: Callable[[], T]) -> T:
    """`patiently` for what takes longer: `action` runs in another thread."""
    return await _again(lambda: asyncio.to_thread(action), PATIENCE_S)


async def _again(attempt: Callable[[], Awaitable[T]], seconds: float) -> T:
    loop = asyncio.get_running_loop()
    until_s = loop.time() + seconds
    pause_s = FIRST_PAUSE_S
    while True:
        try:
            return await attempt()
        except StoreBusyError:
            if loop.time() + pause_s > until_s:
                raise
        await asyncio.sleep(pause_s)
        pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
