"""What is refused before any route sees it.

A server on loopback is still reachable by every web page its user opens: by a name that was rebound to 127.0.0.1 (the
Host check) and by cross-site requests that need no answer (the Origin and content-type checks).
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import math
import re
import secrets
from base64 import b64decode
from collections.abc import Callable, Iterable

from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from octavo.app.attempts import Attempts
from octavo.app.guard_answers import Body, DoorPage, Refusal, read_key, send_empty
from octavo.engine.errors import OctavoError

BODY_LIMIT_BYTES = 32 * 1024 * 1024
SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
JSON_PREFIXES = ("/v1/", "/api/")  # routes of ours that take JSON and nothing else
KEY_PREFIXES = ("/v1/",)  # need the key even from this machine, where one is set
OPEN_PATHS = frozenset({"/health"})  # need no key: a watchdog has none
# Doors of Gradio that the page does not use: they store files, run events and tell what the server is made of.
CLOSED_PATHS = frozenset(
    {
        *("/gradio_api", "/openapi.json", "/docs", "/redoc", "/config", "/login", "/logout", "/monitoring"),
        *("/svelte", "/pwa_icon"),
    }
)
KEY_COOKIE = "octavo_key"
COOKIE_DAYS = 400  # as long as browsers keep one
ENTER_PATH = "/api/enter"  # takes the key once and gives the cookie; a GET says whether it is there

_HOST = re.compile(r"(?:\[(?P<address>[^\]]*)\]|(?P<name>[^:]*))(?::[0-9]{0,5})?")


class UnsafeHostError(OctavoError):
    """The server was asked to listen to the network without a key."""

    def __init__(self, host: str) -> None:
        super().__init__(
            f"server.host {host} opens Octavo to the network, but server.api_key is not set.",
            remedy="Set server.api_key, or use 127.0.0.1.",
        )


def check_bind(host: str, api_key: str | None) -> None:
    """Raises UnsafeHostError for a host that others can reach without a key."""
    if not is_loopback_name(host) and not api_key:
        raise UnsafeHostError(host)


def is_loopback_name(name: str) -> bool:
    """Whether a host name or address can only mean this machine."""
    name = name.strip("[]").lower()
    if name == "localhost":
        return True
    address = _address(name)
    return address is not None and address.is_loopback


class Guards:
    """ASGI middleware that checks Host, Origin, preflights, key, closed paths, content type and size, in this
    order.

    `host` is the address the server listens on. Names that count as ours: loopback names, `host` itself,
    `allowed_hosts`, and where `host` is a wildcard any literal address (a rebound name is never one). Requests from
    other machines need the key for everything but /health; requests of this machine for the API.

    Where there is a `door`, a browser of another machine gets that page instead of a bare refusal (a function of its
    Accept-Language); it sends the key to ENTER_PATH, and a cookie stands for it from then on. Wrong keys make an
    address wait. `open_files` are what the door itself needs.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        host: str = "127.0.0.1",
        api_key: str | None = None,
        allowed_hosts: Iterable[str] = (),
        allowed_origins: Iterable[str] = (),
        body_limit_bytes: int = BODY_LIMIT_BYTES,
        door: Callable[[str], str] | None = None,
        open_files: Iterable[str] = (),
        attempts: Attempts | None = None,
    ) -> None:
        self._app = app
        self._host = host.strip("[]").lower()
        self._any_address = self._host in ("0.0.0.0", "::", "")
        self._api_key = api_key or None
        self._allowed_hosts = frozenset(name.lower() for name in allowed_hosts)
        self._allowed_origins = frozenset(origin.lower().rstrip("/") for origin in allowed_origins)
        self._body_limit_bytes = body_limit_bytes
        self._door = door
        self._open_files = frozenset(open_files)
        self._attempts = attempts or Attempts()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        refusal = self._refusal(scope, headers)
        if refusal is not None:
            await refusal.send(scope, receive, send)
            return
        if scope["type"] == "websocket":
            await self._app(scope, receive, send)
            return
        if scope["path"] == ENTER_PATH and scope["method"] in ("GET", "POST"):
            await self._enter(scope, headers, receive, send)
            return
        origin = headers.get("origin")
        if origin is not None and scope["method"] == "OPTIONS" and "access-control-request-method" in headers:
            await send_empty(send, 204, self._preflight(origin, headers))
            return
        extra = self._answer_headers(scope, headers)

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                answer = MutableHeaders(scope=message)
                for name, value in extra:
                    answer.append(name, value)
            await send(message)

        await self._app(scope, self._limited(receive), send_with_headers)

    def _refusal(self, scope: Scope, headers: Headers) -> Refusal | None:
        for name in ("host", "x-forwarded-host"):
            value = headers.get(name)
            if value is None and name == "x-forwarded-host":
                continue
            if not self._is_our_host(value or ""):
                return Refusal(
                    400,
                    f"This server does not answer to the host name {_shown(value)}."
                    " Add it to server.allowed_hosts if it is yours.",
                    "host_not_allowed",
                )
        origin = headers.get("origin")
        if origin is not None and not self._is_our_origin(origin, headers["host"]):
            return Refusal(
                403,
                f"Web pages of {_shown(origin)} may not use this server."
                " Add the origin to server.allowed_origins if it is yours.",
                "origin_not_allowed",
            )
        unsafe = scope["type"] == "websocket" or scope["method"] not in SAFE_METHODS
        if unsafe and origin is None and headers.get("sec-fetch-site", "none") not in ("same-origin", "none"):
            return Refusal(403, "Other web pages may not use this server.", "origin_not_allowed")
        if scope["type"] == "http" and scope["method"] == "OPTIONS":
            return None  # carries no key and no body; answered here or by the router
        if self._key_is_missing(scope, headers):
            if self._tries_key(headers):
                if self._wait_s(scope, headers) > 0:
                    return self._too_many(scope, headers)
                self._failed(scope, headers)
            if self._door is not None and "text/html" in headers.get("accept", "") and scope.get("method") == "GET":
                return DoorPage(self._door(headers.get("accept-language", "")))
            challenge = [("WWW-Authenticate", 'Bearer, Basic realm="Octavo", charset="UTF-8"')]
            if scope["path"].startswith(KEY_PREFIXES) or self._door is not None:
                challenge = [("WWW-Authenticate", "Bearer")]  # no password dialog for a script's request
            return Refusal(
                401,
                "The API key is missing or wrong; send it as `Authorization: Bearer KEY` (server.api_key).",
                "invalid_api_key",
                challenge,
            )
        if _is_closed(scope["path"]):
            return Refusal(404, f"There is no {scope['path'][:100]}.", "not_found")
        if scope["type"] == "http":
            return self._body_refusal(scope, headers)
        return None

    def _body_refusal(self, scope: Scope, headers: Headers) -> Refusal | None:
        if scope["method"] in SAFE_METHODS:
            return None
        if scope["path"].startswith(JSON_PREFIXES) and scope["method"] in ("POST", "PUT", "PATCH"):
            kind = headers.get("content-type", "").split(";")[0].strip().lower()
            if kind != "application/json":
                return Refusal(
                    415, "The body must be JSON, sent with `Content-Type: application/json`.", "unsupported_media_type"
                )
        length = headers.get("content-length", "0")
        if length.isdigit() and int(length) > self._body_limit_bytes:
            return Refusal(413, self._too_large(), "request_too_large")
        return None

    def _too_large(self) -> str:
        return f"The request is larger than {self._body_limit_bytes} bytes."

    def _is_our_host(self, value: str) -> bool:
        value = value.strip().lower()
        name = _without_port(value)
        if not name:
            return False
        if is_loopback_name(name) or name == self._host or value in self._allowed_hosts or name in self._allowed_hosts:
            return True
        return self._any_address and _address(name) is not None

    def _is_our_origin(self, origin: str, host: str) -> bool:
        origin, host = origin.lower(), host.lower()
        return origin in (f"http://{host}", f"https://{host}") or origin in self._allowed_origins

    def _key_is_missing(self, scope: Scope, headers: Headers) -> bool:
        if self._api_key is None or scope["path"] in OPEN_PATHS:
            return False
        if scope["type"] == "http" and scope["path"] in self._open_files and scope["method"] in ("GET", "HEAD"):
            return False
        if scope["type"] == "http" and scope["path"] == ENTER_PATH and scope["method"] == "POST":
            return False
        if is_local(scope, headers) and not scope["path"].startswith(KEY_PREFIXES):
            return False
        if self._carries_cookie(headers):
            return False
        # An address that has guessed too often is not even told that a guess was right.
        return self._wait_s(scope, headers) > 0 or not self._carries_key(headers)

    def _wait_s(self, scope: Scope, headers: Headers) -> float:
        return 0.0 if is_local(scope, headers) else self._attempts.wait_s(_address_of(scope))

    def _failed(self, scope: Scope, headers: Headers) -> None:
        if not is_local(scope, headers):  # a program of this machine with an old key must not lock out the others
            self._attempts.failed(_address_of(scope))

    def _too_many(self, scope: Scope, headers: Headers) -> Refusal:
        wait_s = math.ceil(self._wait_s(scope, headers))
        message = f"Too many wrong keys came from this address. Wait {wait_s} seconds."
        return Refusal(429, message, "too_many_attempts", [("Retry-After", str(wait_s))])

    @staticmethod
    def _tries_key(headers: Headers) -> bool:
        return headers.get("authorization", "").partition(" ")[0].lower() in ("basic", "bearer")

    async def _enter(self, scope: Scope, headers: Headers, receive: Receive, send: Send) -> None:
        """Answers ENTER_PATH: 204 with the cookie for the right key, 401 for a wrong one, 429 for too many."""
        if self._api_key is None or scope["method"] == "GET":
            await send_empty(send, 204, [("Cache-Control", "no-store")])
            return
        if self._wait_s(scope, headers) > 0:
            await self._too_many(scope, headers).send(scope, receive, send)
            return
        body = Body(receive)
        given = await read_key(body)
        if given is None or not secrets.compare_digest(given.encode("utf-8", "replace"), self._api_key.encode()):
            self._failed(scope, headers)
            await Refusal(401, "The key is wrong.", "invalid_api_key").send(scope, body, send)
            return
        await send_empty(send, 204, [("Set-Cookie", self._cookie(scope)), ("Cache-Control", "no-store")])

    def _cookie(self, scope: Scope) -> str:
        age_s = COOKIE_DAYS * 86_400
        secure = "; Secure" if scope.get("scheme") == "https" else ""
        return f"{KEY_COOKIE}={self._cookie_value()}; HttpOnly; SameSite=Strict; Path=/; Max-Age={age_s}{secure}"

    def _carries_key(self, headers: Headers) -> bool:
        assert self._api_key is not None
        scheme, _, value = headers.get("authorization", "").partition(" ")
        value = value.strip()
        if scheme.lower() == "basic":
            try:
                value = b64decode(value, validate=True).decode("utf-8", "replace").partition(":")[2]
            except ValueError:
                return False
        elif scheme.lower() != "bearer":
            return False
        return secrets.compare_digest(value.encode("utf-8", "replace"), self._api_key.encode())

    def _carries_cookie(self, headers: Headers) -> bool:
        pairs = (part.strip().partition("=") for part in headers.get("cookie", "").split(";"))
        value = next((value for name, _, value in pairs if name == KEY_COOKIE), "")
        return secrets.compare_digest(value.encode("utf-8", "replace"), self._cookie_value().encode())

    def _cookie_value(self) -> str:
        assert self._api_key is not None
        return hmac.new(self._api_key.encode(), b"octavo page", hashlib.sha256).hexdigest()

    def _preflight(self, origin: str, headers: Headers) -> list[tuple[str, str]]:
        answer = [
            ("Access-Control-Allow-Origin", origin),
            ("Access-Control-Allow-Methods", "GET, POST, OPTIONS"),
            ("Access-Control-Allow-Headers", headers.get("access-control-request-headers", "content-type")),
            ("Access-Control-Max-Age", "600"),
            ("Vary", "Origin, Access-Control-Request-Headers"),
        ]
        if headers.get("access-control-request-private-network") == "true":
            answer.append(("Access-Control-Allow-Private-Network", "true"))
        return answer

    def _answer_headers(self, scope: Scope, headers: Headers) -> list[tuple[str, str]]:
        extra = [("X-Content-Type-Options", "nosniff"), ("Referrer-Policy", "same-origin")]
        origin = headers.get("origin")
        if origin is not None and origin.lower().rstrip("/") in self._allowed_origins:
            extra += [("Access-Control-Allow-Origin", origin), ("Vary", "Origin")]
        basic = headers.get("authorization", "").lower().startswith("basic ")
        if self._api_key is not None and basic and self._carries_key(headers):
            # WebSocket handshakes of some browsers leave out the password that the page was opened with.
            extra.append(("Set-Cookie", self._cookie(scope)))
        return extra

    def _limited(self, receive: Receive) -> Receive:
        received = 0

        async def limited() -> Message:
            nonlocal received
            message = await receive()
            received += len(message.get("body", b""))
            if received > self._body_limit_bytes:
                raise HTTPException(413, self._too_large())
            return message

        return limited


def _address_of(scope: Scope) -> str:
    client = scope.get("client")
    return client[0] if client else ""


def is_local(scope: Scope, headers: Headers) -> bool:
    """Whether the request comes from this machine itself, not through a proxy that runs on it."""
    client = scope.get("client")
    if client is None or not is_loopback_name(client[0]):
        return False
    forwarded = any(name in headers for name in ("forwarded", "x-forwarded-for", "x-real-ip"))
    return not forwarded and is_loopback_name(_without_port(headers.get("host", "")))


def _is_closed(path: str) -> bool:
    return f"/{path.lstrip('/').partition('/')[0]}" in CLOSED_PATHS


def _without_port(host: str) -> str:
    """The name in a Host header, "" if what follows it is no port."""
    if _address(host) is not None:
        return host  # IPv6 as some programs write it, without brackets
    match = _HOST.fullmatch(host)
    return (match["address"] or match["name"]) if match else ""


def _address(name: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(name)
    except ValueError:
        return None


def _shown(value: str | None) -> str:
    return repr((value or "")[:100])
