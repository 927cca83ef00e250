"""The settings panel: every key of config.yaml, what it is and where that came from; saving, and what waits."""

from __future__ import annotations

import asyncio
import time
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request

from octavo.app import paths
from octavo.app.api.body import read_body
from octavo.app.api.errors import ApiError
from octavo.app.config import ConfigError, format_size, save, schema
from octavo.app.config.form import forms
from octavo.app.data_files import MOVE_NOTE
from octavo.app.hardware import look
from octavo.app.ui.panels import data, household
from octavo.app.ui.panels.deps import PanelDeps
from octavo.app.ui.panels.local import is_here, not_from_here
from octavo.app.ui.panels.measured import measured
from octavo.app.ui.panels.pending import PendingWatch, describe
from octavo.app.ui.strings import choose_language, keys

PATH = "/api/ui/settings"
STOP_S = 3.0  # so long replies are given to end before their model goes
NAMED_CHATS = 8  # in the question before a reload
DATA_FOLDER = "app.data_folder"
HERE_ALONE = ("server.", DATA_FOLDER)  # not to be changed from another device


def add_routes(app: FastAPI, deps: PanelDeps) -> None:
    panel = SettingsPanel(deps)
    household.add_routes(app, deps)
    data.add_routes(app, deps)

    @app.get(PATH)
    def show(request: Request) -> dict[str, Any]:
        return panel.describe(request)

    @app.post(PATH)
    async def change(request: Request) -> dict[str, Any]:
        body = await read_body(request)
        await asyncio.to_thread(panel.save, body.get("changes"), is_here(request))
        return await asyncio.to_thread(panel.describe, request)

    @app.get(f"{PATH}/pending")
    def pending() -> dict[str, Any]:
        return panel.consequences()

    @app.post(f"{PATH}/reload")
    async def reload() -> dict[str, Any]:
        await panel.reload()
        return {}

    @app.post(f"{PATH}/restart")
    async def restart(request: Request) -> dict[str, Any]:
        if not is_here(request):
            raise not_from_here()
        again = getattr(request.app.state, "restart", None)
        if again is None:
            raise ApiError(409, "This Octavo cannot restart itself. Stop it and start it again.", code="no_restart")
        again("asked")
        return {}

    @app.post(f"{PATH}/quit")
    async def leave(request: Request) -> dict[str, Any]:
        if not is_here(request):
            raise not_from_here()
        stop = getattr(request.app.state, "stop", None)
        if stop is None:
            raise ApiError(409, "This Octavo cannot be ended from here. Stop it where it was started.", code="no_stop")
        stop()
        return {}


@cache
def has_gpu() -> bool:
    """Whether this machine has a GPU as the measured ones are; the driver is asked once."""
    return bool(look().gpus)


class SettingsPanel:
    """What the routes do."""

    def __init__(self, deps: PanelDeps) -> None:
        self._deps = deps
        self._pending = PendingWatch(deps.settings, deps.host, deps.board)
        self._data = paths.data_dir(deps.settings.values.app.data_folder)

    def describe(self, request: Request) -> dict[str, Any]:
        """Everything the panel shows."""
        settings = self._deps.settings
        language = choose_language(settings.values.app.language, request.headers.get("accept-language", ""))
        engine = self._deps.host.engine
        resolved: dict[str, object] = {}
        if engine is not None:
            resolved = engine.status().settings | {"kv_memory": format_size(engine.info.kv_bytes)}
        chosen = self._deps.host.chosen
        public, pending = settings.public(), asdict(self._pending.now())
        waiting = {*pending["reload"], *pending["restart"]}
        rows = []
        for key, form in forms().items():
            section, name = key.split(".")
            row = asdict(form) | {
                "section": section,
                "title": keys.title(key, language),
                "about": keys.about(key, language),
                "value": public[section][name],
                "source": settings.sources[key],
                "place": settings.places.get(key, "") if settings.sources[key] != "file" else "",
                "line": _line(settings.places.get(key, "")) if settings.sources[key] == "file" else None,
                "waits": key in waiting,
            }
            if row["value"] == "auto" and section in ("model", "engine") and resolved.get(name) not in (None, "auto"):
                row["resolved"] = resolved[name]
            elif section == "model" and engine is not None and chosen.get(name, row["value"]) != row["value"]:
                row["resolved"] = chosen[name]  # on the page, for this run
            rows.append(row)
        return {
            "path": str(settings.path),
            "local": is_here(request),
            "sections": list(schema.sections()),
            "keys": rows,
            "pending": pending,
            "measured": measured(),
            "gpu": has_gpu(),
        }

    def save(self, changes: object, local: bool) -> None:
        """Write these keys into the file and take them over. Raises ApiError naming a key that cannot be so."""
        if not isinstance(changes, dict) or not changes:
            raise ApiError(400, 'Send {"changes": {"section.key": value}}.', param="changes")
        if not local and any(str(key).startswith(HERE_ALONE) for key in changes):
            raise not_from_here()
        settings, moved = self._deps.settings, None
        try:
            if DATA_FOLDER in changes and changes[DATA_FOLDER] != settings.values.app.data_folder:
                moved = self._moved(changes[DATA_FOLDER])
            save(settings.path, changes)
            settings.refresh()
        except ConfigError as error:
            if moved is not None:
                (moved / MOVE_NOTE).unlink(missing_ok=True)
            named = next((problem.key for problem in error.problems if problem.key), None)
            message = "; ".join(
                f"{problem.key} {problem.message}" for problem in error.problems if problem.key in changes
            )
            message = message or describe(error) or str(error)
            raise ApiError(400, message, param=named, code="invalid_setting") from error

    def _moved(self, wanted: object) -> Path | None:
        """The other folder that the chats will follow to; None if they stay. A value of a wrong kind is left to
        `save`. Raises as `data.prepare` does."""
        if wanted is None:
            wanted = str(paths.data_dir())
        if not isinstance(wanted, str) or wanted in ("", str(self._data)):
            return None
        try:
            return data.prepare(self._data, wanted)
        except ApiError as error:
            error.param = DATA_FOLDER
            raise

    def consequences(self) -> dict[str, Any]:
        """What a reload would change, and the chats it would stop."""
        writing = [chat for chat in self._deps.service.list_chats() if chat.generating]
        engine = self._deps.host.engine
        requests = {} if engine is None else engine.status().requests
        others = max(0, requests.get("running", 0) + requests.get("waiting", 0) - len(writing))
        named = [{"id": chat.id, "title": chat.title} for chat in writing[:NAMED_CHATS]]
        return asdict(self._pending.now()) | {"chats": named, "more": len(writing) - len(named), "others": others}

    async def reload(self) -> None:
        """Load the model as the file says now. Replies that are being written end first, keeping what they have."""
        service = self._deps.service
        writing = [chat.id for chat in await asyncio.to_thread(service.list_chats) if chat.generating]
        for chat_id in writing:
            service.stop(chat_id)
        end = time.monotonic() + STOP_S
        while time.monotonic() < end and any(service.running(chat_id) for chat_id in writing):
            await asyncio.sleep(0.02)
        self._deps.host.load(self._deps.settings.values, self._deps.host.chosen)


def _line(place: str) -> int | None:
    """The number in `config.yaml line 12`."""
    number = place.rpartition(" line ")[2]
    return int(number) if number.isdigit() else None
