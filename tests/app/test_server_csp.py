"""The page may run the scripts this server wrote and talk to this server; nothing else, whatever is in it."""

from __future__ import annotations

import asyncio
import hashlib
from base64 import b64encode
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from octavo.app.csp import ContentSecurityPolicy, inline_scripts


def fetch(response: Response, **headers: str) -> tuple[httpx.Response, Request]:
    seen: list[Request] = []

    async def page(request: Request) -> Response:
        seen.append(request)
        return response

    async def one() -> httpx.Response:
        app = ContentSecurityPolicy(Starlette(routes=[Route("/", page)]))
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://x") as http:
            return await http.get("/", headers=headers)

    return asyncio.run(one()), seen[0]


def directives(response: httpx.Response) -> dict[str, list[str]]:
    parts = [part.split() for part in response.headers["content-security-policy"].split(";")]
    return {name: values for name, *values in parts}


def digest(script: str) -> str:
    return f"'sha256-{b64encode(hashlib.sha256(script.encode()).digest()).decode()}'"


def test_the_policy_names_our_inline_scripts_and_no_others() -> None:
    html = "<script>let a = '<b>' < 1 && \"é\";</script><script src='x.js'>ignored()</script><p>text</p>"
    answer, _ = fetch(HTMLResponse(html))
    assert answer.text == html
    policy = directives(answer)
    assert policy["script-src"] == ["'self'", digest("let a = '<b>' < 1 && \"é\";")]


def test_the_policy_is_strict() -> None:
    policy = directives(fetch(HTMLResponse("<p>hi</p>"))[0])
    assert policy["script-src"] == ["'self'"]
    assert policy["object-src"] == ["'none'"]
    assert policy["frame-ancestors"] == ["'none'"]
    assert policy["frame-src"] == ["'none'"]
    assert policy["form-action"] == ["'self'"]
    assert policy["base-uri"] == ["'self'"]
    for name in ("connect-src", "img-src", "font-src", "media-src", "default-src"):
        assert policy[name][0] == "'self'"
        assert set(policy[name][1:]) <= {"data:", "blob:"}
    assert not any("unsafe-eval" in value for values in policy.values() for value in values)
    assert "'unsafe-inline'" not in policy["script-src"]


def test_a_page_that_is_streamed_gets_the_policy_of_all_of_it() -> None:
    async def pieces() -> Any:
        yield "<script>first"
        yield "()</script>"
        yield "<script>second()</script>"

    answer, _ = fetch(StreamingResponse(pieces(), media_type="text/html"))
    assert directives(answer)["script-src"][1:] == [digest("first()"), digest("second()")]
    assert answer.text.endswith("<script>second()</script>")


def test_scripts_are_hashed_as_browsers_read_them() -> None:
    assert inline_scripts("<script>\r\na()\r</script>") == ["\na()\n"]
    assert inline_scripts("<SCRIPT type='module'>b()</SCRIPT >") == ["b()"]
    assert inline_scripts("<script>x = '<!-- <b> &amp; </div>'</script>") == ["x = '<!-- <b> &amp; </div>'"]
    assert inline_scripts("<!-- <script>no()</script> --><textarea></textarea>") == []


def test_a_page_is_asked_for_without_compression() -> None:
    _, request = fetch(HTMLResponse("x"), accept="text/html", **{"accept-encoding": "gzip"})
    assert "accept-encoding" not in request.headers
    _, request = fetch(JSONResponse({}), accept="application/json", **{"accept-encoding": "gzip"})
    assert request.headers["accept-encoding"] == "gzip"


@pytest.mark.parametrize("kind", ["image/svg+xml", "application/xhtml+xml", "text/xml"])
def test_documents_of_other_kinds_run_nothing(kind: str) -> None:
    answer, _ = fetch(Response("<svg/>", media_type=kind))
    assert "default-src 'none'" in answer.headers["content-security-policy"]
    assert "sandbox" in answer.headers["content-security-policy"]


def test_other_answers_are_passed_on_as_they_come() -> None:
    answer, _ = fetch(JSONResponse({"a": 1}))
    assert "content-security-policy" not in answer.headers
    assert answer.json() == {"a": 1}
