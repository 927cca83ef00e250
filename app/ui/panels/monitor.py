"""The monitor panel: what the engine does now."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI

from octavo.app.ui.panels.deps import PanelDeps


def add_routes(app: FastAPI, deps: PanelDeps) -> None:
    @app.get("/api/ui/monitor")
    def now() -> dict[str, Any]:
        engine = deps.host.engine
        if engine is None:
            return {"state": deps.host.state, "requests": {}, "pages": {}}
        status = engine.status()
        return {"state": deps.host.state, "requests": status.requests, "pages": status.pages}
