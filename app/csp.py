"""The Content-Security-Policy: whatever a model is made to write into the page runs no script and calls nobody."""

from __future__ import annotations

import hashlib
from base64 import b64encode
from collections.abc import Sequence
from html.parser import HTMLParser

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send


class ContentSecurityPolicy:
    """ASGI middleware: documents may load from this server alone and run only the scripts this server wrote.

    The inline scripts of each HTML answer are allowed by their hashes, so that markup a model wrote can run none.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        if "text/html" in Headers(scope=scope).get("accept", ""):
            # A compressed page could not be read for its scripts here.
            kept = [(name, value) for name, value in scope["headers"] if name != b"accept-encoding"]
            scope = {**scope, "headers": kept}
        held: Message | None = None
        body = bytearray()

        async def send_with_policy(message: Message) -> None:
            nonlocal held
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                kind = headers.get("content-type", "").split(";")[0].strip().lower()
                if kind == "text/html" and "content-encoding" not in headers:
                    held = message
                    return
                if kind.endswith(("html", "xml")):  # svg too: a document if somebody opens it by itself
                    headers["Content-Security-Policy"] = "default-src 'none'; frame-ancestors 'none'; sandbox"
            elif held is not None and message["type"] == "http.response.body":
                body.extend(message.get("body", b""))
                if message.get("more_body"):
                    return
                headers = MutableHeaders(scope=held)
                headers["Content-Security-Policy"] = page_policy(inline_scripts(body.decode("utf-8", "replace")))
                await send(held)
                await send({"type": "http.response.body", "body": bytes(body)})
                return
            await send(message)

        await self._app(scope, receive, send_with_policy)


def page_policy(scripts: Sequence[str]) -> str:
    """The policy of a page with these inline scripts (CSP Level 3: sha256 of the text between the tags)."""
    hashes = "".join(f" 'sha256-{b64encode(hashlib.sha256(script.encode()).digest()).decode()}'" for script in scripts)
    return (
        f"default-src 'self'; script-src 'self'{hashes}; style-src 'self' 'unsafe-inline';"
        " img-src 'self' data: blob:; media-src 'self' data: blob:; font-src 'self' data:; connect-src 'self';"
        " worker-src 'self' blob:; frame-src 'none'; object-src 'none'; base-uri 'self'; form-action 'self';"
        " frame-ancestors 'none'"
    )


def inline_scripts(html: str) -> list[str]:
    """The text of every script element without src, in order, each once."""
    finder = _ScriptFinder()
    finder.feed(html.replace("\r\n", "\n").replace("\r", "\n"))  # as browsers read it, before they hash
    finder.close()
    return list(dict.fromkeys(finder.scripts))


class _ScriptFinder(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=False)
        self.scripts: list[str] = []
        self._open = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "script" and not any(name == "src" for name, _ in attrs):
            self._open = True
            self.scripts.append("")

    def handle_endtag(self, tag: str) -> None:
        if tag == "script":
            self._open = False

    def handle_data(self, data: str) -> None:
        if self._open:
            self.scripts[-1] += data
