"""Gives a model's memory back when nobody has used it for a while; the next message loads it again."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from octavo.app.host import ModelHost

CHECK_EVERY_S = 5.0


async def rest_when_idle(
    host: ModelHost, limit_s: Callable[[], float], *, check_every_s: float = CHECK_EVERY_S
) -> None:
    """Let the host rest after `limit_s()` seconds without a request; 0: never. Runs until it is cancelled."""
    seen: tuple[int, int, int] | None = None
    since_s = time.monotonic()
    while True:
        await asyncio.sleep(check_every_s)
        engine, limit = host.engine, limit_s()
        now_s = time.monotonic()
        if engine is None:
            seen, since_s = None, now_s
            continue
        status = engine.status()
        is_busy = status.requests.get("running", 0) + status.requests.get("waiting", 0) > 0
        # woken: a request that is being prepared is not yet one of the engine's
        mark = (id(engine), status.counters.get("steps", 0), host.times_woken)
        if is_busy or mark != seen:
            seen, since_s = mark, now_s
        elif limit and now_s - since_s >= limit:
            host.rest()
