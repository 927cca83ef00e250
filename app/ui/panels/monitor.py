"""The monitor panel: the engine's figures, where its pages are, the log, and the facts for a report."""

from __future__ import annotations

import logging
import time
from dataclasses import asdict, astuple
from pathlib import Path
from typing import Annotated, Any

from fastapi import FastAPI, Query

from octavo.app import paths
from octavo.app.api.status import status
from octavo.app.doctor import findings
from octavo.app.logs import FILE_NAME
from octavo.app.monitor.facts import report
from octavo.app.monitor.lines import LINES
from octavo.app.monitor.sampler import COLUMNS, EVERY_S, KEPT, Sampler
from octavo.app.ui.panels.deps import PanelDeps

PATH = "/api/ui/monitor"
MOST_CELLS = 2000
LEVELS_IN_REPORT = ("warning", "error", "critical")
TITLES_KEPT_S = 30.0


def add_routes(app: FastAPI, deps: PanelDeps) -> None:
    sampler = deps.sampler or Sampler(deps.host)
    titles = _Titles(deps)
    if LINES not in logging.getLogger().handlers:
        logging.getLogger().addHandler(LINES)

    @app.get(PATH)
    def now(since: float = 0.0) -> dict[str, Any]:
        return {
            "now": status(deps.host, deps.settings),
            "gpu": sampler.gpu(),
            "columns": COLUMNS,
            "every_s": EVERY_S,
            "kept": KEPT,
            "samples": [astuple(sample) for sample in sampler.since(since)],
        }

    @app.get(f"{PATH}/pages")
    def pages(cells: int = 400) -> dict[str, Any] | None:
        """Null while the engine is too busy to count them."""
        engine = deps.host.engine
        if engine is None:
            return {"total": 0, "per_cell": 1, "cells": [], "owners": [], "chats": []}
        census = engine.census(max(1, min(MOST_CELLS, cells)))
        if census is None:
            return None
        chats = deps.service.requests()
        names = sorted({chats.get(request, "") for owners in census.owners for request in owners})
        places = {name: at for at, name in enumerate(names)}
        now = engine.status()
        return {
            "total": census.total,
            "per_cell": census.pages_per_cell,
            "page_size": now.pages.get("page_size", 0),
            "slots": now.settings.get("slots") is not None,  # each is a chat's whole context, not a page
            "cells": census.cells,
            "owners": [sorted({places[chats.get(request, "")] for request in owners}) for owners in census.owners],
            "chats": [{"id": name, "title": titles.of(name)} if name else None for name in names],
        }

    @app.get(f"{PATH}/log")
    def log_lines(after: Annotated[int, Query(ge=0)] = 0) -> dict[str, Any]:
        lines = [asdict(line) for line in LINES.after(after)]
        return {"file": str(paths.log_dir() / FILE_NAME), "lines": lines}

    @app.get(f"{PATH}/diagnostics")
    def diagnostics() -> dict[str, str]:
        picture = status(deps.host, deps.settings)
        lines = [line for line in LINES.after() if line.level in LEVELS_IN_REPORT]
        return {"text": report(findings(_existing(deps.settings.path)), picture, lines)}


def _existing(path: Path) -> Path | None:
    return path if path.exists() else None


class _Titles:
    """Titles of chats by id; the list is read again only for an unknown one or after a while."""

    def __init__(self, deps: PanelDeps) -> None:
        self._deps = deps
        self._known: dict[str, str] = {}
        self._read_s = 0.0

    def of(self, chat_id: str) -> str:
        if chat_id not in self._known or time.monotonic() - self._read_s > TITLES_KEPT_S:
            self._known = {chat.id: chat.title for chat in self._deps.service.list_chats()}
            self._read_s = time.monotonic()
        return self._known.get(chat_id, "")
