"""Which model a request means, and the list of those there are: the one that is loaded."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from fastapi import APIRouter, Request

from octavo.app.api.body import Body
from octavo.app.api.errors import ApiError, unavailable
from octavo.app.host import ModelHost

if TYPE_CHECKING:
    from octavo.engine.engine import Engine

DEFAULT = "default"  # means whatever is loaded

router = APIRouter()
_started_s = int(time.time())


async def engine_for(host: ModelHost, body: Body) -> Engine:
    """The engine that serves the body's `model`; one that was unloaded for idleness is loaded again first.

    Raises ApiError: 400 if none is named, 404 if it is not the one loaded, 503 while none is loaded.
    """
    wanted = body.text("model")
    if not wanted:
        message = f'model is missing. Use "{DEFAULT}" for the loaded model.'
        raise ApiError(400, message, param="model", code="missing_required_parameter")
    is_resting = host.is_resting
    host.wake()
    if is_resting:
        await host.wait_until_settled()
    engine = host.engine
    if engine is None:
        raise _not_ready(host)
    names = (engine.info.name, DEFAULT, *([host.model_id] if host.model_id else []))
    if wanted not in names:
        raise ApiError(
            404,
            f"The model {wanted!r} is not loaded; {engine.info.name!r} is. Use its name or {DEFAULT!r}.",
            param="model",
            code="model_not_found",
        )
    return engine


def _not_ready(host: ModelHost) -> ApiError:
    if host.state == "loading":
        progress = host.progress
        share = f", {progress.done / progress.total:.0%} of {progress.stage}" if progress and progress.total else ""
        return unavailable(f"The model is loading{share}. Try again in a moment.", "model_loading")
    if host.state == "unloading":
        return unavailable("The model is being unloaded. Try again in a moment.", "model_unloading")
    if host.state == "failed":
        return unavailable(f"The model could not be loaded. {host.error}", "model_failed")
    return unavailable("No model is loaded. Choose one on the page or set model.id.", "model_empty")


@router.get("/v1/models")
async def list_models(request: Request) -> dict[str, Any]:
    """The loaded model, or an empty list."""
    engine = request.app.state.host.engine
    return {"object": "list", "data": [] if engine is None else [_describe(engine)]}


@router.get("/v1/models/{name:path}")
async def get_model(request: Request, name: str) -> dict[str, Any]:
    """One model, by its name or "default"."""
    return _describe(await engine_for(request.app.state.host, Body({"model": name})))


def _describe(engine: Engine) -> dict[str, Any]:
    return {
        "id": engine.info.name,
        "object": "model",
        "created": _started_s,
        "owned_by": "octavo",
        "max_model_len": engine.context_length,
    }
