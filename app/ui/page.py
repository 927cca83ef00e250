"""The page: Gradio Blocks that lay out its panels, mounted at "/", and the files that fill them.

Nothing here is a Gradio event: a queued event holds one of the six connections a browser opens to a server, so a few
tabs would stop each other. The panels live on one WebSocket a tab instead (`live`).
"""

from __future__ import annotations

import hashlib
import json
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import TYPE_CHECKING

from fastapi import FastAPI, Request, Response

from octavo.app.chat.service import ChatService
from octavo.app.config import Settings
from octavo.app.host import ModelHost
from octavo.app.ui.board import Board
from octavo.app.ui.head import PageHead
from octavo.app.ui.live import add_live_route
from octavo.app.ui.panels import PANELS
from octavo.app.ui.strings import LANGUAGES, SENTENCES, choose_language

if TYPE_CHECKING:
    import gradio

TITLE = "Octavo"
ASSETS = "/ui"  # Gradio has /assets and /static for itself
ASSET_FOLDERS = ("panels",)
MEDIA_TYPES = {
    ".js": "text/javascript",
    ".css": "text/css",
    ".svg": "image/svg+xml",
    ".webmanifest": "application/manifest+json",
}
STYLES = ("tokens", "page", "chats", "main", "text", "talk", "composer", "welcome", "panels", "narrow")  # in this order
QUEUE_LOOK_S = 1.0
MANIFEST = {  # Web Application Manifest (W3C): Gradio's page asks for it, and browsers can then keep it as an app
    "name": TITLE,
    "start_url": "/",
    "display": "standalone",
    "icons": [{"src": f"{ASSETS}/icon.svg", "sizes": "any", "type": "image/svg+xml"}],
}
FIRST = ("theme", "still")  # scripts that run before anything else does
APART = ("enter.js", *(f"{name}.js" for name in FIRST))  # no modules of the page


def mount_page(
    app: FastAPI, service: ChatService, host: ModelHost, settings: Settings, board: Board | None = None
) -> FastAPI:
    """Mount the page at "/" and its live route. Call it last: routes added after it are not reached."""
    import gradio

    build = files_version()
    add_live_route(app, service, host, settings, build, board)
    _add_files(app, settings)
    app.add_middleware(PageHead, lines=head_lines())
    blocks = build_blocks()
    mounted = gradio.mount_gradio_app(
        app,
        blocks,
        path="/",
        footer_links=[],
        run_history=False,
        show_error=False,
        enable_monitoring=False,
        pwa=False,
        mcp_server=False,
        ssr_mode=False,
        theme=gradio.themes.Base(font=["system-ui", "sans-serif"], font_mono=["ui-monospace", "monospace"]),
        favicon_path=str(files("octavo.assets").joinpath("icon.svg")),
    )
    # The page has no queued events, yet Gradio looks into its queue a thousand times a second: 5 % of a core.
    blocks._queue.sleep_when_free = blocks._queue.progress_update_sleep_when_free = QUEUE_LOOK_S
    return mounted


def build_blocks() -> gradio.Blocks:
    """The layout: navigation and list of chats on the left, header, conversation and composer beside them, and a place
    for the open panel. The page's own script fills them by their ids."""
    import gradio

    blocks = gradio.Blocks(title=TITLE, analytics_enabled=False, fill_height=True, fill_width=True)
    with blocks, gradio.Row(elem_id="octavo"):
        gradio.Column(elem_id="octavo-nav")
        gradio.Column(elem_id="octavo-chats")
        with gradio.Column(elem_id="octavo-main"):
            gradio.Row(elem_id="octavo-header")
            gradio.Column(elem_id="octavo-talk")
            gradio.Column(elem_id="octavo-composer")
        gradio.Column(elem_id="octavo-panel")
    return blocks


@cache
def head_lines() -> str:
    """What the document's head needs to become this page. Every module that `page.js` imports is named, or the browser
    would learn of them one after the other."""
    modules = [name for name in _assets() if name.endswith(".js") and "/" not in name and name not in APART]
    lines = [
        f'<link rel="icon" type="image/svg+xml" href="{ASSETS}/icon.svg">',
        *(f'<script src="{ASSETS}/{name}.js"></script>' for name in FIRST),
        *(f'<link rel="stylesheet" href="{ASSETS}/{name}.css">' for name in STYLES),
        *(f'<link rel="modulepreload" href="{ASSETS}/{name}">' for name in ("strings.js", *modules)),
        f'<script type="module" src="{ASSETS}/page.js"></script>',
    ]
    return "\n".join(lines) + "\n"


@cache
def asset(name: str) -> bytes | None:
    """One of the page's files (`page.js`, `panels/settings.css`), or None if there is none of that name."""
    entry = _assets().get(name)
    return entry.read_bytes() if entry is not None else None


@cache
def _assets() -> dict[str, Traversable]:
    root = files("octavo.assets")
    places = {"": root, **{f"{name}/": root.joinpath(name) for name in ASSET_FOLDERS}}
    return {
        prefix + entry.name: entry
        for prefix, place in places.items()
        for entry in sorted(place.iterdir(), key=lambda entry: entry.name)
        if entry.is_file() and entry.name.endswith(tuple(MEDIA_TYPES))
    }


@cache
def files_version() -> str:
    """Changes with any of the page's files or words."""
    digest = hashlib.sha256(json.dumps([LANGUAGES, SENTENCES], sort_keys=True).encode())
    for name in _assets():
        digest.update(name.encode() + (asset(name) or b""))
    return digest.hexdigest()[:12]


def _add_files(app: FastAPI, settings: Settings) -> None:
    # Not in worker threads: everything is in memory, and a thread's turn takes longer than the answer.
    @app.get(f"{ASSETS}/strings.js", include_in_schema=False)
    async def strings(request: Request) -> Response:
        language = choose_language(settings.values.app.language, request.headers.get("accept-language", ""))
        return _answer(request, _words(language), ".js", vary="Accept-Language")

    @app.get("/manifest.json", include_in_schema=False)
    async def manifest(request: Request) -> Response:
        return _answer(request, json.dumps(MANIFEST).encode(), ".webmanifest")

    @app.get(ASSETS + "/{name:path}", include_in_schema=False)
    async def file(name: str, request: Request) -> Response:
        content = asset(name)
        if content is None:
            return Response(status_code=404)
        return _answer(request, content, name[name.rindex(".") :])


@cache
def _words(language: str) -> bytes:
    """`strings.js` in a language."""
    values = {
        "language": language,
        "build": files_version(),
        "panels": list(PANELS),
        "sentences": list(SENTENCES[language].items()),
        "words": LANGUAGES[language],
    }
    lines = (f"export const {name} = {json.dumps(value, ensure_ascii=False)};\n" for name, value in values.items())
    return "".join(lines).encode()


def _answer(request: Request, content: bytes, suffix: str, vary: str | None = None) -> Response:
    """Kept by the browser, but asked for again each time: a new version must not meet old files."""
    tag = f'"{hashlib.sha256(content).hexdigest()[:16]}"'
    headers = {"ETag": tag, "Cache-Control": "no-cache"}
    if vary:
        headers["Vary"] = vary
    if request.headers.get("if-none-match") == tag:
        return Response(status_code=304, headers=headers)
    return Response(content, media_type=MEDIA_TYPES[suffix], headers=headers)
