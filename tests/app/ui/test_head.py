"""The page's styles and scripts stand in the document that Gradio serves, and nothing else is touched."""

from __future__ import annotations

import asyncio

import httpx
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from octavo.app.ui.head import PageHead
from octavo.app.ui.page import STYLES, asset, head_lines

DOCUMENT = "<html><head><title>Gradio</title></head><body><gradio-app></gradio-app></body></html>"
LINE = '<script src="/ui/first.js"></script>\n'


def fetch(response: Response, accept: str = "text/html") -> httpx.Response:
    async def page(request: Request) -> Response:
        return response

    async def one() -> httpx.Response:
        app = PageHead(Starlette(routes=[Route("/", page)]), LINE)
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://x") as http:
            return await http.get("/", headers={"accept": accept})

    return asyncio.run(one())


def test_the_lines_come_last_in_the_head_of_gradios_document() -> None:
    answer = fetch(HTMLResponse(DOCUMENT))
    assert answer.text == DOCUMENT.replace("</head>", LINE + "</head>")
    assert int(answer.headers["content-length"]) == len(answer.content)


def test_a_document_that_comes_in_pieces_gets_them_too() -> None:
    halves = [DOCUMENT[:30].encode(), DOCUMENT[30:].encode()]
    assert fetch(StreamingResponse(iter(halves), media_type="text/html")).text.count(LINE) == 1


def test_other_answers_stay_as_they_are() -> None:
    other = "<html><head></head><body>the key, please</body></html>"
    assert fetch(HTMLResponse(other)).text == other
    assert fetch(JSONResponse({"a": "</head><gradio-app"})).json() == {"a": "</head><gradio-app"}
    assert fetch(HTMLResponse(DOCUMENT), accept="application/json").text == DOCUMENT


def test_every_named_file_is_there_and_scripts_that_must_be_first_are() -> None:
    lines = head_lines().splitlines()
    names = [line.split('"/ui/')[1].split('"')[0] for line in lines if '"/ui/' in line]
    assert all(asset(name) is not None for name in names if name != "strings.js")
    assert [name for name in names if name.endswith(".css")] == [f"{name}.css" for name in STYLES]
    assert [line for line in lines if line.startswith("<script")] == [
        '<script src="/ui/theme.js"></script>',
        '<script src="/ui/still.js"></script>',
        '<script type="module" src="/ui/page.js"></script>',
    ]
