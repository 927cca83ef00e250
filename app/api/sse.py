"""Answers that end with their connection: server-sent events, and plain ones that stop working when nobody waits."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, TypeVar

from fastapi import Request, Response
from fastapi.responses import JSONResponse, StreamingResponse
from starlette.types import Receive, Scope, Send

from octavo.app.api.errors import as_api_error

T = TypeVar("T")

KEEP_ALIVE_S = 15.0  # a comment while a long prompt is read, for clients and proxies that give up on silence


class ClientGoneError(Exception):
    """The connection was closed before the answer was ready."""


async def while_connected(request: Request, work: Awaitable[T]) -> T:
    """The result of `work`; cancels it and raises ClientGoneError as soon as the connection is closed.

    The body must have been read.
    """
    task = asyncio.ensure_future(work)
    gone = asyncio.create_task(_disconnected(request))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise ClientGoneError
    finally:
        gone.cancel()
        if not task.done():
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


async def plain_answer(
    request: Request, work: Awaitable[T], answer: Callable[[T], dict[str, Any]], close: Callable[[], None]
) -> Response:
    """What `answer` makes of the result of `work`, as JSON; `close` is called however it ends."""
    try:
        result = await while_connected(request, work)
    except ClientGoneError:
        return Response(status_code=499)
    finally:
        close()
    return JSONResponse(answer(result))


class EventStream(StreamingResponse):
    """`chunks` as server-sent events with the final [DONE]; an error becomes a last event.

    `close` is called exactly once when the answer ends, however it ends: also when the connection was closed while a
    chunk was waited for, or before the first.
    """

    def __init__(self, chunks: AsyncIterator[dict[str, Any]], close: Callable[[], None]) -> None:
        headers = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
        super().__init__(_encoded(chunks), media_type="text/event-stream", headers=headers)
        self._close = close

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._close()


async def _encoded(chunks: AsyncIterator[dict[str, Any]]) -> AsyncIterator[bytes]:
    pending: asyncio.Task[dict[str, Any]] | None = None
    try:
        while True:
            pending = asyncio.ensure_future(anext(chunks))  # type: ignore[arg-type]
            while not (await asyncio.wait({pending}, timeout=KEEP_ALIVE_S))[0]:
                yield b": waiting\n\n"
            yield _event(pending.result())
    except StopAsyncIteration:
        yield b"data: [DONE]\n\n"
    except Exception as error:
        yield _event(as_api_error(error).body())
    finally:
        if pending is not None:
            pending.cancel()


def _event(value: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode() + b"\n\n"


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
