"""OpenAI-compatible routes and the status routes beside them."""

from __future__ import annotations

from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.routing import Match
from starlette.types import Receive, Scope, Send

from octavo.app.api import chat, completions, errors, models, status

_ROUTERS = tuple(module.router for module in (models, chat, completions, status))


def add_routes(app: FastAPI) -> None:
    """Add all routes of the API. `app.state` must have `host` and `settings`."""
    app.state.metrics = status.metrics_registry(app.state.host)
    for router in _ROUTERS:
        app.include_router(router)
    errors.install(app)


def close_prefixes(app: FastAPI) -> None:
    """Answer what is left under the API's prefixes in its error form. For apps where something is mounted at "/" and
    would answer it otherwise; call it after `add_routes` and before that."""
    for prefix in errors.API_PREFIXES:
        app.add_route(prefix + "{path:path}", _NoSuchRoute(), include_in_schema=False)  # type: ignore[arg-type]


class _NoSuchRoute:
    """An ASGI application, so that it gets every method."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        known = [route for router in _ROUTERS for route in router.routes if route.matches(scope)[0] is Match.PARTIAL]
        if not known:
            raise HTTPException(404)
        methods = sorted({method for route in known for method in getattr(route, "methods", None) or ()})
        raise HTTPException(405, headers={"Allow": ", ".join(methods)})
