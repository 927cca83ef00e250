"""The models panel: what is on disk, what the hub has, downloads, and which model runs."""

from __future__ import annotations

import asyncio
from typing import Any

from fastapi import FastAPI, Request, Response

from octavo.app.api.body import read_body
from octavo.app.api.errors import ApiError
from octavo.app.library import AccessError, DiskFullError, LibraryError, ModelNotFoundError, OfflineError
from octavo.app.ui.panels.deps import PanelDeps
from octavo.app.ui.panels.local import is_here, not_from_here
from octavo.app.ui.panels.model_desk import ModelDesk

PATH = "/api/ui/models"
LONGEST_CONTEXT = 1 << 30
LONGEST_SEARCH = 200
_CODES: tuple[tuple[type[LibraryError], str], ...] = (
    (OfflineError, "offline"),
    (DiskFullError, "disk_full"),
    (ModelNotFoundError, "not_found"),
)


def add_routes(app: FastAPI, deps: PanelDeps) -> None:
    desk = ModelDesk(deps)
    app.add_exception_handler(LibraryError, _refusal)

    @app.get(PATH)
    def overview(request: Request) -> dict[str, Any]:
        return desk.overview() | {"local_user": is_here(request)}

    # Posts, since they reach the network: no other site's page can send one.
    @app.post(f"{PATH}/search")
    async def search(request: Request) -> dict[str, Any]:
        body = await read_body(request)
        kind = body.text("kind") or "any"
        if kind not in ("any", "safetensors", "gguf"):
            raise ApiError(400, "kind is one of any, safetensors, gguf.", param="kind")
        words = (body.text("words") or "")[:LONGEST_SEARCH]
        return {"found": await asyncio.to_thread(desk.search, words, kind)}

    @app.post(f"{PATH}/look")
    async def look(request: Request) -> dict[str, Any]:
        body = await read_body(request)
        return await asyncio.to_thread(desk.look, _model(body))

    @app.post(f"{PATH}/fit")
    async def fit(request: Request) -> dict[str, Any]:
        body = await read_body(request)
        return await asyncio.to_thread(desk.fit, _model(body), _choice(body))

    @app.post(f"{PATH}/load")
    async def load(request: Request) -> dict[str, Any]:
        body = await read_body(request)
        await desk.load(_model(body), _choice(body), force=body.flag("force"))
        return {}

    @app.post(f"{PATH}/unload")
    async def unload(request: Request) -> dict[str, Any]:
        body = await read_body(request)
        await desk.unload(force=body.flag("force"))
        return {}

    @app.post(f"{PATH}/wake")
    def wake() -> dict[str, Any]:
        deps.host.wake()
        return {}

    @app.post(f"{PATH}/cancel")
    def cancel() -> dict[str, Any]:
        deps.host.cancel()
        return {}

    @app.post(f"{PATH}/downloads")
    async def download(request: Request) -> dict[str, Any]:
        body = await read_body(request)
        quantization = _choice(body).get("quantization")
        return await asyncio.to_thread(desk.download, _model(body), body.flag("load"), quantization)

    @app.post(PATH + "/downloads/{job_id}/{what}")
    async def change_download(job_id: str, what: str) -> dict[str, Any]:
        await asyncio.to_thread(desk.change_download, job_id, what)
        return {}

    @app.post(f"{PATH}/remove")
    async def remove(request: Request) -> dict[str, Any]:
        _only_here(request)
        body = await read_body(request)
        return {"freed": await asyncio.to_thread(desk.remove, _model(body))}

    @app.post(f"{PATH}/start")
    async def use_at_start(request: Request) -> dict[str, Any]:
        body = await read_body(request)
        await asyncio.to_thread(desk.use_at_start, _model(body))
        return {}

    @app.post(f"{PATH}/folders")
    async def folders(request: Request) -> dict[str, Any]:
        _only_here(request)
        body = await read_body(request)
        return await asyncio.to_thread(desk.change_folders, body.text("add"), body.text("remove"))

    @app.post(f"{PATH}/token")
    async def token(request: Request) -> dict[str, Any]:
        _only_here(request)
        body = await read_body(request)
        return await asyncio.to_thread(desk.set_token, body.text("token"))


async def _refusal(request: Request, error: Exception) -> Response:
    """Why a model could not be had: 422 with a code that says which button helps."""
    assert isinstance(error, LibraryError)
    code = next((code for kind, code in _CODES if isinstance(error, kind)), "library")
    if isinstance(error, AccessError):
        code = error.reason.replace(" ", "_")
    return ApiError(422, str(error), code=code).response()


def _model(body: Any) -> str:
    model_id = body.text("id")
    if not model_id or len(model_id) > 4096:
        raise ApiError(400, "id must name a model.", param="id")
    return str(model_id)


def _choice(body: Any) -> dict[str, object]:
    """What of the model section a request replaces; what is absent is config.yaml's."""
    from octavo.app.library.weights import quantizations

    chosen: dict[str, object] = {}
    context = body.whole("context_length", 16, LONGEST_CONTEXT)
    if context is not None:
        chosen["context_length"] = context
    quantization = body.text("quantization")
    if quantization is not None:
        if quantization not in quantizations():
            raise ApiError(400, f"quantization is one of {', '.join(quantizations())}.", param="quantization")
        chosen["quantization"] = quantization
    return chosen


def _only_here(request: Request) -> None:
    if not is_here(request):
        raise not_from_here()
