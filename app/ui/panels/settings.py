"""The settings panel: every key of config.yaml, what it is and where that came from."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI

from octavo.app.config import schema
from octavo.app.ui.panels.deps import PanelDeps


def add_routes(app: FastAPI, deps: PanelDeps) -> None:
    @app.get("/api/ui/settings")
    def show() -> dict[str, Any]:
        settings = deps.settings
        public = settings.public()
        rows = []
        for key, info in schema.fields().items():
            section, name = key.split(".")
            row = {"key": key, "value": public[section][name], "about": info.description}
            rows.append({**row, "source": settings.sources[key], "applies": schema.applies(key)})
        return {"path": str(settings.path), "keys": rows}
