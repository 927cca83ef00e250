"""What the guards answer by themselves: refusals in the API's error form, and the page that asks for the key."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from contextlib import suppress

from starlette.types import Message, Receive, Scope, Send

from octavo.app.csp import page_policy

KEY_LIMIT_BYTES = 4096
LINGER_S = 10.0  # so long the rest of a refused body is thrown away before the connection is closed


class Body:
    """A request's body, as a server gives it piece by piece, that knows when it has ended."""

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._has_ended = False

    @classmethod
    def of(cls, receive: Receive) -> Body:
        return receive if isinstance(receive, Body) else cls(receive)

    async def __call__(self) -> Message:
        message = await self._receive()
        self._has_ended = message["type"] != "http.request" or not message.get("more_body")
        return message

    async def throw_away(self) -> None:
        """Take what is left of it: many clients read no answer before they have sent all, and a connection that is
        closed under them takes the answer with it."""
        while not self._has_ended:
            await self()


class Refusal:
    """An answer in the API's error form, or for a WebSocket the refusal of its handshake."""

    def __init__(
        self, status: int, message: str, code: str, headers: Sequence[tuple[str, str]] = (), *, param: str | None = None
    ) -> None:
        self._status = status
        self._headers = headers
        kind = "authentication_error" if status == 401 else "invalid_request_error"
        self._body = {"error": {"message": message, "type": kind, "param": param, "code": code}}

    async def send(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008, "reason": self._body["error"]["code"]})
            return
        body = json.dumps(self._body).encode()
        headers = [(b"content-type", b"application/json"), (b"x-content-type-options", b"nosniff")]
        headers += [(name.lower().encode(), value.encode()) for name, value in self._headers]
        headers.append((b"content-length", str(len(body)).encode()))
        headers.append((b"connection", b"close"))
        await send({"type": "http.response.start", "status": self._status, "headers": headers})
        await send(
            {"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else body, "more_body": True}
        )
        if not any(name == b"expect" for name, _ in scope["headers"]):  # a client that asked first sends nothing now
            with suppress(TimeoutError):
                await asyncio.wait_for(Body.of(receive).throw_away(), LINGER_S)
        await send({"type": "http.response.body", "body": b""})


class DoorPage(Refusal):
    """The page that asks for the key, in place of a refusal."""

    def __init__(self, html: str) -> None:
        super().__init__(401, "The key is missing.", "invalid_api_key")
        self._html = html.encode()

    async def send(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = [
            (b"content-type", b"text/html; charset=utf-8"),
            (b"content-security-policy", page_policy([]).encode()),
            (b"x-content-type-options", b"nosniff"),
            (b"referrer-policy", b"same-origin"),
            (b"cache-control", b"no-store"),
            (b"vary", b"Cookie, Accept-Language"),
            (b"content-length", str(len(self._html)).encode()),
        ]
        await send({"type": "http.response.start", "status": 401, "headers": headers})
        await send({"type": "http.response.body", "body": self._html})


async def read_key(receive: Receive) -> str | None:
    """The `key` of a small JSON body; None for anything else."""
    body = b""
    while True:
        message = await receive()
        body += message.get("body", b"")
        if len(body) > KEY_LIMIT_BYTES or message["type"] != "http.request":
            return None
        if not message.get("more_body"):
            break
    try:
        given = json.loads(body).get("key")
    except (ValueError, AttributeError, RecursionError):
        return None
    return given if isinstance(given, str) else None


async def send_empty(send: Send, status: int, headers: Sequence[tuple[str, str]]) -> None:
    headers = [*headers, ("X-Content-Type-Options", "nosniff")]
    encoded = [(name.lower().encode(), value.encode("latin-1", "replace")) for name, value in headers]
    await send({"type": "http.response.start", "status": status, "headers": encoded})
    await send({"type": "http.response.body", "body": b""})
