"""How another device of the household comes in: the key once, then a cookie; whoever guesses waits."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.testclient import TestClient
from starlette.websockets import WebSocketDisconnect

from octavo.app.attempts import FREE, FREE_IN_ALL, REFILL_S, Attempts
from octavo.app.guards import COOKIE_DAYS, Guards

HOST = "http://192.168.1.5:7860"
BROWSER = {"accept": "text/html,application/xhtml+xml,*/*;q=0.8", "accept-language": "de"}


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def guards(clock: Clock) -> Guards:
    async def reached(request: Request) -> Response:
        return JSONResponse({"path": request.url.path})

    app = Starlette(routes=[Route("/{path:path}", reached, methods=["GET", "POST"])])
    return Guards(
        app,
        host="0.0.0.0",
        api_key="open-sesame",
        door=lambda language: f"<p>knock ({language})</p>",
        open_files=["/ui/enter.js"],
        attempts=Attempts(clock),
    )


def device(guards: Guards, address: str = "192.168.1.9") -> TestClient:
    return TestClient(guards, base_url=HOST, client=(address, 50000))


def enter(browser: TestClient, key: object = "open-sesame", **options: Any) -> httpx.Response:
    return browser.post("/api/enter", json={"key": key}, **options)


def test_a_strange_browser_gets_the_door_and_no_password_dialog(guards: Guards) -> None:
    answer = device(guards).get("/", headers=BROWSER)
    assert answer.status_code == 401
    assert answer.text == "<p>knock (de)</p>"
    assert "www-authenticate" not in answer.headers
    assert "default-src 'self'" in answer.headers["content-security-policy"]
    assert answer.headers["cache-control"] == "no-store"


def test_a_strange_program_gets_an_error_it_can_read(guards: Guards) -> None:
    answer = device(guards).get("/api/status")
    assert answer.json()["error"]["code"] == "invalid_api_key"
    assert answer.headers["www-authenticate"] == "Bearer"  # Basic would open a password dialog over the door


def test_a_strange_websocket_is_refused_whatever_it_accepts(guards: Guards) -> None:
    browser = device(guards)
    with (
        pytest.raises(WebSocketDisconnect),
        browser.websocket_connect("/api/live", headers={"accept": "text/html", "host": "192.168.1.5:7860"}),
    ):
        pass


def test_the_door_needs_its_own_files_and_nothing_else_is_open(guards: Guards) -> None:
    browser = device(guards)
    assert browser.get("/ui/enter.js").status_code == 200
    assert browser.get("/ui/page.js").status_code == 401
    assert browser.post("/ui/enter.js").status_code == 401
    assert browser.get("/api/enter").status_code == 401


def test_the_key_is_entered_once_and_a_cookie_stands_for_it(guards: Guards) -> None:
    browser = device(guards)
    answer = enter(browser)
    assert answer.status_code == 204
    cookie = answer.headers["set-cookie"]
    for part in ("HttpOnly", "SameSite=Strict", "Path=/", f"Max-Age={COOKIE_DAYS * 86_400}"):
        assert part in cookie
    assert "open-sesame" not in cookie
    assert browser.get("/", headers=BROWSER).status_code == 200
    assert browser.get("/api/enter").status_code == 204
    assert browser.post("/api/ui/settings", json={}).status_code == 200


@pytest.mark.parametrize("key", ["", "open-sesam", "open-sesame ", None, 5, ["open-sesame"], "山"])
def test_a_wrong_key_opens_nothing(guards: Guards, key: object) -> None:
    browser = device(guards)
    answer = enter(browser, key)
    assert answer.status_code == 401
    assert "set-cookie" not in answer.headers
    assert browser.get("/").status_code == 401


@pytest.mark.parametrize("body", [b"", b"[]", b"{", b'"open-sesame"', b"x" * 10_000])
def test_a_body_that_is_no_key_is_a_wrong_key(guards: Guards, body: bytes) -> None:
    answer = device(guards).post("/api/enter", content=body, headers={"content-type": "application/json"})
    assert answer.status_code == 401


def test_other_web_pages_cannot_knock(guards: Guards) -> None:
    browser = device(guards)
    assert enter(browser, headers={"origin": "http://evil.example"}).status_code == 403
    form = browser.post("/api/enter", content=b'{"key":"open-sesame"}', headers={"content-type": "text/plain"})
    assert form.status_code == 415


def test_who_guesses_waits_even_with_the_right_key_and_others_do_not(guards: Guards, clock: Clock) -> None:
    guesser, neighbour = device(guards), device(guards, "192.168.1.10")
    assert enter(neighbour).status_code == 204
    for _ in range(FREE):
        assert enter(guesser, "guess").status_code == 401
    locked = enter(guesser)
    assert locked.status_code == 429
    assert 0 < int(locked.headers["retry-after"]) <= REFILL_S
    assert guesser.get("/v1/models", headers={"authorization": "Bearer open-sesame"}).status_code == 429
    assert neighbour.get("/").status_code == 200
    clock.now += REFILL_S
    assert enter(guesser).status_code == 204


def test_guessing_at_the_api_counts_too_and_a_device_that_is_in_stays_in(guards: Guards) -> None:
    browser = device(guards)
    enter(browser)
    for _ in range(FREE):
        stranger = device(guards)
        assert stranger.get("/v1/models", headers={"authorization": "Bearer guess"}).status_code == 401
    assert device(guards).get("/v1/models", headers={"authorization": "Bearer guess"}).status_code == 429
    assert browser.get("/").status_code == 200  # the same address, with its cookie


def test_programs_of_this_machine_are_never_made_to_wait(guards: Guards) -> None:
    here = TestClient(guards, base_url="http://127.0.0.1:7860", client=("127.0.0.1", 50000))
    for _ in range(3 * FREE):
        assert here.get("/v1/models", headers={"authorization": "Bearer old"}).status_code == 401
    assert here.get("/v1/models", headers={"authorization": "Bearer open-sesame"}).status_code == 200


def test_many_addresses_guess_no_faster_than_a_few(clock: Clock) -> None:
    attempts = Attempts(clock)
    for number in range(FREE_IN_ALL):
        attempts.failed(f"2001:db8:{number:x}::1")
    assert attempts.wait_s("203.0.113.7") > 0
    clock.now += 1.0
    assert attempts.wait_s("203.0.113.7") == 0


def test_the_addresses_of_one_ipv6_network_are_one(clock: Clock) -> None:
    attempts = Attempts(clock)
    for number in range(FREE):
        attempts.failed(f"2001:db8::{number:x}")
    assert attempts.wait_s("2001:db8::ffff") > 0
    assert attempts.wait_s("2001:db8:0:1::1") == 0


def test_without_a_key_there_is_no_door(clock: Clock) -> None:
    async def reached(request: Request) -> Response:
        return JSONResponse({})

    here = TestClient(
        Guards(Starlette(routes=[Route("/", reached)]), door=lambda _: "door"),
        base_url="http://127.0.0.1:7860",
        client=("127.0.0.1", 1),
    )
    assert here.get("/", headers=BROWSER).json() == {}
    assert here.get("/api/enter").status_code == 204
