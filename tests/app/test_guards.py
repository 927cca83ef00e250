"""What web pages, rebound names, strangers and oversized bodies cannot do."""

from __future__ import annotations

import asyncio
from base64 import b64encode
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route, WebSocketRoute
from starlette.testclient import TestClient
from starlette.websockets import WebSocket, WebSocketDisconnect

from octavo.app.guards import ENTER_PATH, Guards, UnsafeHostError, check_bind, is_loopback_name

OWN = "http://127.0.0.1:7860"


class Inner:
    """Counts what got through."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def app(self, **guards: Any) -> Guards:
        async def reached(request: Request) -> Response:
            self.calls.append(f"{request.method} {request.url.path}")
            return JSONResponse({"size": len(await request.body())})

        async def live(socket: WebSocket) -> None:
            self.calls.append("WS")
            await socket.accept()
            await socket.send_text("hello")
            await socket.close()

        methods = ["GET", "POST", "PUT", "DELETE", "OPTIONS"]
        routes = [Route(path, reached, methods=methods) for path in ("/", "/v1/chat/completions", "/health", "/upload")]
        return Guards(Starlette(routes=[*routes, WebSocketRoute("/api/live", live)]), **guards)


@pytest.fixture
def inner() -> Inner:
    return Inner()


def ask(app: Guards, method: str, path: str, *, client: str = "127.0.0.1", **options: Any) -> httpx.Response:
    async def one() -> httpx.Response:
        transport = httpx.ASGITransport(app=app, client=(client, 50000))
        async with httpx.AsyncClient(transport=transport, base_url=OWN) as http:
            return await http.request(method, path, **options)

    return asyncio.run(one())


def code(answer: httpx.Response) -> str:
    return answer.json()["error"]["code"]


@pytest.mark.parametrize(
    "host",
    [
        *("evil.example", "evil.example:7860", "127.0.0.1.evil.example", "localhost.evil.example", "192.168.1.5"),
        *("", "[::2]", "127.0.0.1@evil.example", "localhost:80:80", "xn--localhost-", "0.0.0.0"),
        *('localhost:99"</script>', "localhost:x", "localhost:-1", "localhost:9 9"),
        *("[::1]x", "[::1]:x", "[::1", "::1:x"),
    ],
)
@pytest.mark.parametrize("method", ["GET", "POST", "OPTIONS"])
def test_a_foreign_host_name_reaches_nothing(inner: Inner, host: str, method: str) -> None:
    answer = ask(inner.app(), method, "/", headers={"Host": host})
    assert answer.status_code == 400
    assert code(answer) == "host_not_allowed"
    assert inner.calls == []


@pytest.mark.parametrize("host", ["127.0.0.1:7860", "localhost", "LOCALHOST:7860", "[::1]:7860", "127.0.0.5:1"])
def test_loopback_names_are_ours(inner: Inner, host: str) -> None:
    assert ask(inner.app(), "GET", "/", headers={"Host": host}).status_code == 200


@pytest.mark.parametrize(
    "path",
    [
        *("/gradio_api/upload", "/gradio_api/run/x", "/gradio_api/queue/join", "/gradio_api/openapi.json"),
        *(
            "/gradio_api",
            "//gradio_api/upload",
            "/openapi.json",
            "/config",
            "/config/",
            "/login",
            "/monitoring/summary",
        ),
    ],
)
@pytest.mark.parametrize("method", ["GET", "POST", "HEAD"])
def test_doors_that_the_page_does_not_use_are_closed(path: str, method: str) -> None:
    reached = []

    async def anything(scope: Any, receive: Any, send: Any) -> None:
        reached.append(scope["path"])
        await Response()(scope, receive, send)

    guarded = Guards(anything)
    answer = ask(guarded, method, f"{OWN}{path}")
    assert answer.status_code == 404
    assert method == "HEAD" or code(answer) == "not_found"
    assert reached == []
    for used in ("/", "/theme.css", "/static/js/x.js", "/assets/index.js", "/favicon.ico"):
        assert ask(guarded, "GET", used).status_code == 200


def test_allowed_hosts_and_the_bound_address_are_ours(inner: Inner) -> None:
    app = inner.app(host="192.168.1.5", allowed_hosts=["octavo.home", "other.home:8443"])
    for host in ("192.168.1.5:7860", "octavo.home", "OCTAVO.home:7860", "other.home:8443"):
        assert ask(app, "GET", "/", headers={"Host": host}).status_code == 200
    for host in ("192.168.1.6:7860", "other.home", "sub.octavo.home"):
        assert ask(app, "GET", "/", headers={"Host": host}).status_code == 400


def test_on_a_wildcard_any_literal_address_is_ours_but_no_name(inner: Inner) -> None:
    app = inner.app(host="0.0.0.0", api_key="k")
    assert ask(app, "GET", "/", headers={"Host": "10.0.0.7:7860", "Authorization": "Bearer k"}).status_code == 200
    assert ask(app, "GET", "/", headers={"Host": "rebound.example:7860"}).status_code == 400


def test_a_forged_forwarded_host_is_refused(inner: Inner) -> None:
    assert ask(inner.app(), "GET", "/", headers={"X-Forwarded-Host": "evil.example"}).status_code == 400
    assert ask(inner.app(), "GET", "/", headers={"X-Forwarded-Host": "localhost:7860"}).status_code == 200


@pytest.mark.parametrize(
    "origin", ["http://evil.example", "null", "http://127.0.0.1:8000", "http://localhost:7860", ""]
)
@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "GET"])
def test_pages_of_other_origins_reach_nothing(inner: Inner, origin: str, method: str) -> None:
    answer = ask(inner.app(), method, "/upload", headers={"Origin": origin})
    assert answer.status_code == 403
    assert code(answer) == "origin_not_allowed"
    assert "access-control-allow-origin" not in answer.headers
    assert inner.calls == []


def test_a_cross_site_request_without_origin_reaches_nothing(inner: Inner) -> None:
    for site in ("cross-site", "same-site"):
        assert ask(inner.app(), "POST", "/upload", headers={"Sec-Fetch-Site": site}).status_code == 403
    assert inner.calls == []
    assert ask(inner.app(), "POST", "/upload", headers={"Sec-Fetch-Site": "same-origin"}).status_code == 200
    assert ask(inner.app(), "GET", "/", headers={"Sec-Fetch-Site": "cross-site"}).status_code == 200  # a followed link


def test_our_own_page_and_programs_without_origin_may_post(inner: Inner) -> None:
    assert ask(inner.app(), "POST", "/upload", headers={"Origin": OWN}).status_code == 200
    assert ask(inner.app(), "POST", "/upload").status_code == 200


def test_an_allowed_origin_may_post_and_read(inner: Inner) -> None:
    app = inner.app(allowed_origins=["https://tool.example"])
    answer = ask(app, "POST", "/v1/chat/completions", headers={"Origin": "https://tool.example"}, json={})
    assert answer.status_code == 200
    assert answer.headers["access-control-allow-origin"] == "https://tool.example"
    assert "Origin" in answer.headers["vary"]
    assert ask(app, "POST", "/upload", headers={"Origin": "http://tool.example"}).status_code == 403


PREFLIGHT = {
    "Access-Control-Request-Method": "POST",
    "Access-Control-Request-Headers": "authorization,content-type",
    "Access-Control-Request-Private-Network": "true",
}


def test_a_preflight_of_an_allowed_origin_is_answered_without_the_handler(inner: Inner) -> None:
    app = inner.app(allowed_origins=["https://tool.example"], api_key="secret")
    for origin in ("https://tool.example", OWN):
        answer = ask(app, "OPTIONS", "/v1/chat/completions", headers={"Origin": origin, **PREFLIGHT})
        assert answer.status_code == 204
        assert answer.headers["access-control-allow-origin"] == origin
        assert answer.headers["access-control-allow-headers"] == "authorization,content-type"
        assert "POST" in answer.headers["access-control-allow-methods"]
        assert answer.headers["access-control-allow-private-network"] == "true"
        assert answer.content == b""
    assert inner.calls == []


@pytest.mark.parametrize("origin", ["http://evil.example", "null"])
def test_a_preflight_of_another_origin_gets_no_permission(inner: Inner, origin: str) -> None:
    answer = ask(inner.app(), "OPTIONS", "/v1/chat/completions", headers={"Origin": origin, **PREFLIGHT})
    assert answer.status_code == 403
    assert not [name for name in answer.headers if name.startswith("access-control")]
    assert inner.calls == []


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", None])
def test_json_routes_take_nothing_a_form_could_send(inner: Inner, kind: str | None) -> None:
    headers = {"Content-Type": kind} if kind else {}
    answer = ask(inner.app(), "POST", "/v1/chat/completions", headers=headers, content=b'{"messages": []}')
    assert answer.status_code == 415
    assert inner.calls == []


def test_json_with_a_charset_is_json(inner: Inner) -> None:
    headers = {"Content-Type": "application/json; charset=utf-8"}
    assert ask(inner.app(), "POST", "/v1/chat/completions", headers=headers, content=b"{}").status_code == 200


def test_a_body_over_the_limit_is_refused_by_its_header(inner: Inner) -> None:
    answer = ask(inner.app(body_limit_bytes=1000), "POST", "/upload", content=b"x" * 1001)
    assert answer.status_code == 413
    assert inner.calls == []
    assert ask(inner.app(body_limit_bytes=1000), "POST", "/upload", content=b"x" * 1000).json() == {"size": 1000}


def test_a_body_over_the_limit_is_refused_while_it_arrives(inner: Inner) -> None:
    async def endless() -> Any:
        for _ in range(100):
            yield b"x" * 100

    answer = ask(inner.app(body_limit_bytes=1000), "POST", "/upload", content=endless())
    assert answer.status_code == 413


def test_a_body_that_was_read_is_not_waited_for_again(inner: Inner) -> None:
    """As a server does wait, for the end of the connection, when it is asked once more."""
    pieces = [{"type": "http.request", "body": b'{"key": "wrong"}', "more_body": False}]
    sent: list[Any] = []

    async def receive() -> Any:
        return pieces.pop()

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {"type": "http", "method": "POST", "path": ENTER_PATH, "client": ("192.168.1.9", 1), "scheme": "http"}
    scope["headers"] = [(b"host", b"127.0.0.1:7860"), (b"content-type", b"application/json")]
    asyncio.run(inner.app(api_key="secret")(scope, receive, send))
    assert sent[0]["status"] == 401
    assert not sent[-1].get("more_body")


@pytest.mark.parametrize("headers", [{}, {"Authorization": "Bearer wrong"}, {"Authorization": "secret"}])
def test_the_api_needs_the_key_even_from_here(inner: Inner, headers: dict[str, str]) -> None:
    answer = ask(inner.app(api_key="secret"), "POST", "/v1/chat/completions", json={}, headers=headers)
    assert answer.status_code == 401
    assert code(answer) == "invalid_api_key"
    assert answer.headers["www-authenticate"] == "Bearer"
    assert inner.calls == []
    assert ask(inner.app(api_key="secret"), "GET", "/").status_code == 200


def test_the_right_key_opens_the_api(inner: Inner) -> None:
    app = inner.app(api_key="sécret 山")
    value = "Bearer sécret 山".encode()
    answer = ask(app, "POST", "/v1/chat/completions", json={}, headers=[(b"Authorization", value)])
    assert answer.status_code == 401  # headers are Latin-1: a key beyond it cannot be sent as it is
    app = inner.app(api_key="secret")
    assert ask(app, "POST", "/v1/chat/completions", json={}, headers={"Authorization": "bearer secret"}).is_success


@pytest.mark.parametrize("client", ["192.168.1.9", "10.0.0.2", "2001:db8::1"])
def test_other_machines_need_the_key_for_everything_but_health(inner: Inner, client: str) -> None:
    app = inner.app(host="0.0.0.0", api_key="secret")
    headers = {"Host": "192.168.1.5:7860"}
    answer = ask(app, "GET", "/", client=client, headers=headers)
    assert answer.status_code == 401
    assert "Basic" in answer.headers["www-authenticate"]
    assert ask(app, "GET", "/health", client=client, headers=headers).status_code == 200
    basic = "Basic " + b64encode(b"anyone:secret").decode()
    opened = ask(app, "GET", "/", client=client, headers={**headers, "Authorization": basic})
    assert opened.status_code == 200
    cookie = opened.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=Strict" in cookie
    assert "secret" not in cookie
    again = ask(app, "GET", "/", client=client, headers={**headers, "Cookie": cookie.split(";")[0]})
    assert again.status_code == 200
    forged = {**headers, "Cookie": "octavo_key=0000"}
    assert ask(app, "GET", "/", client=client, headers=forged).status_code == 401


def test_a_proxy_on_this_machine_does_not_make_strangers_local(inner: Inner) -> None:
    app = inner.app(api_key="secret", allowed_hosts=["octavo.home"])
    assert ask(app, "GET", "/", headers={"X-Forwarded-For": "10.0.0.2"}).status_code == 401
    assert ask(app, "GET", "/", headers={"Host": "octavo.home"}).status_code == 401


def connect(app: Guards, headers: dict[str, str]) -> str:
    with (
        TestClient(app, base_url=OWN, client=("127.0.0.1", 50000)) as client,
        client.websocket_connect("/api/live", headers={"host": "127.0.0.1:7860", **headers}) as socket,
    ):
        return socket.receive_text()


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "http://evil.example"},
        {"origin": "null"},
        {"host": "evil.example"},
        {"origin": "http://localhost:7860"},
        {"sec-fetch-site": "cross-site"},
    ],
)
def test_a_websocket_of_another_page_is_refused_before_it_opens(inner: Inner, headers: dict[str, str]) -> None:
    with pytest.raises(WebSocketDisconnect):
        connect(inner.app(), headers)
    assert inner.calls == []


def test_a_websocket_of_our_page_opens(inner: Inner) -> None:
    assert connect(inner.app(), {"origin": OWN}) == "hello"


def test_every_answer_forbids_guessing_types_and_telling_others_where_one_was(inner: Inner) -> None:
    answer = ask(inner.app(), "GET", "/")
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["referrer-policy"] == "same-origin"


def test_listening_to_the_network_needs_a_key() -> None:
    for host in ("0.0.0.0", "::", "192.168.1.5", "octavo.home"):
        with pytest.raises(UnsafeHostError, match=r"server\.api_key"):
            check_bind(host, None)
        check_bind(host, "secret")
    for host in ("127.0.0.1", "localhost", "::1", "[::1]", "127.1.2.3"):
        check_bind(host, None)


@pytest.mark.parametrize(
    ("name", "loopback"),
    [("127.0.0.1", True), ("::1", True), ("LocalHost", True), ("127.0.0.1.nip.io", False), ("0.0.0.0", False)],
)
def test_only_loopback_is_loopback(name: str, loopback: bool) -> None:
    assert is_loopback_name(name) is loopback
