"""OpenAI-compatible routes and the status routes beside them."""

from __future__ import annotations

from fastapi import FastAPI

from octavo.app.api import chat, completions, errors, models, status


def add_routes(app: FastAPI) -> None:
    """Add all routes of the API. `app.state` must have `host` and `settings`."""
    app.state.metrics = status.metrics_registry(app.state.host)
    for module in (models, chat, completions, status):
        app.include_router(module.router)
    errors.install(app)
