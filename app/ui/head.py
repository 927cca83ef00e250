"""Puts the page's own styles and scripts into the head of the document that Gradio serves.

Gradio's own way for this is a script that adds them once it runs itself, a second later: here they are fetched beside
Gradio's files, the page has its colours at once, and a script may run before Gradio's do.
"""

from __future__ import annotations

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

MARK = b"<gradio-app"  # what only Gradio's document has
END = b"</head>"


class PageHead:
    """ASGI middleware: `lines` come last in the head of Gradio's document; all other answers pass as they are."""

    def __init__(self, app: ASGIApp, lines: str) -> None:
        self._app = app
        self._lines = lines.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or "text/html" not in Headers(scope=scope).get("accept", ""):
            await self._app(scope, receive, send)
            return
        held: Message | None = None
        body = bytearray()

        async def send_with_lines(message: Message) -> None:
            nonlocal held
            if message["type"] == "http.response.start" and _is_document(MutableHeaders(scope=message)):
                held = message
            elif held is not None and message["type"] == "http.response.body":
                body.extend(message.get("body", b""))
                if message.get("more_body"):
                    return
                whole = bytes(body)
                if MARK in whole:
                    whole = whole.replace(END, self._lines + END, 1)
                MutableHeaders(scope=held)["content-length"] = str(len(whole))
                await send(held)
                await send({"type": "http.response.body", "body": whole})
            else:
                await send(message)

        await self._app(scope, receive, send_with_lines)


def _is_document(headers: MutableHeaders) -> bool:
    kind = headers.get("content-type", "").split(";")[0].strip().lower()
    return kind == "text/html" and "content-encoding" not in headers
