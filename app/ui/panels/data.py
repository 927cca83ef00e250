"""The user's data in one place: how much there is and where, a copy of all of it, moving it, deleting it."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import FileResponse
from starlette.background import BackgroundTask

from octavo.app import data_files, paths
from octavo.app.api.body import read_body
from octavo.app.api.errors import ApiError
from octavo.app.config import ConfigError, save
from octavo.app.config.check import check
from octavo.app.data_files import DataError
from octavo.app.logs import FILE_NAME
from octavo.app.ui.panels.deps import PanelDeps
from octavo.app.ui.panels.local import is_here, not_from_here
from octavo.app.ui.panels.pending import describe

PATH = "/api/ui/data"


def add_routes(app: FastAPI, deps: PanelDeps) -> None:
    def folder() -> Path:
        return paths.data_dir(deps.settings.values.app.data_folder)

    started_in = folder()

    @app.get(PATH)
    def show(request: Request) -> dict[str, Any]:
        return {
            "local": is_here(request),
            "movable": "OCTAVO_DATA_DIR" not in os.environ,
            "folder": str(started_in),
            "next_folder": None if folder() == started_in else str(folder()),
            "chats": len(deps.service.list_chats()),
            "places": {
                "chats": _place(started_in, data_files.chats_size(started_in)),
                "settings": _place(deps.settings.path, data_files.size_of(deps.settings.path)),
                "log": _place(paths.log_dir(), data_files.size_of(paths.log_dir())),
                "cache": _place(paths.cache_dir(), data_files.size_of(paths.cache_dir())),
            },
        }

    @app.get(f"{PATH}/export")
    def export() -> FileResponse:
        name = time.strftime("octavo-%Y-%m-%d.zip")
        target = paths.cache_dir() / "export" / f"{time.time_ns()}.zip"
        target.parent.mkdir(parents=True, exist_ok=True)
        data_files.export(target, started_in, deps.settings.path, paths.log_dir() / FILE_NAME)
        remove = BackgroundTask(lambda: target.unlink(missing_ok=True))
        return FileResponse(target, media_type="application/zip", filename=name, background=remove)

    @app.post(f"{PATH}/move")
    async def move(request: Request) -> dict[str, Any]:
        if not is_here(request):
            raise not_from_here()
        body = await read_body(request)
        wanted = body.text("folder") or ""
        await asyncio.to_thread(_move, deps, started_in, wanted.strip())
        return {}

    @app.post(f"{PATH}/delete")
    async def delete(request: Request) -> dict[str, Any]:
        if not is_here(request):
            raise not_from_here()
        what = (await read_body(request)).get("what")
        cleaners = _cleaners(deps, started_in)
        if not isinstance(what, list) or not what or any(name not in [*cleaners] for name in what):
            raise ApiError(400, f"Send what to delete: a list of {', '.join(cleaners)}.", param="what")
        for name in what:
            await asyncio.to_thread(cleaners[name])
        return {}


def _place(path: Path, size_bytes: int) -> dict[str, object]:
    return {"path": str(path), "size": size_bytes}


def prepare(data: Path, wanted: str) -> Path:
    """Check a folder for the chats in `data` and have them follow at the next start, once config.yaml names it. Raises
    ApiError for a folder that will not do, ConfigError for a name that config.yaml cannot hold."""
    if "OCTAVO_DATA_DIR" in os.environ:
        raise ApiError(409, "The variable OCTAVO_DATA_DIR says where the data is; change it there.", code="fixed")
    check({"app": {"data_folder": wanted}}, lambda _: ("", None))
    try:
        return data_files.prepare_move(data, wanted)
    except DataError as error:
        raise ApiError(400, str(error), param="folder", code="folder") from error


def _move(deps: PanelDeps, data: Path, wanted: str) -> None:
    """Prepare the folder, then let config.yaml name it; the chats follow at the next start."""
    target = None
    try:
        target = prepare(data, wanted)
        save(deps.settings.path, {"app.data_folder": str(target)})
        deps.settings.refresh()
    except ConfigError as error:
        if target is not None:
            (target / data_files.MOVE_NOTE).unlink(missing_ok=True)
        raise ApiError(400, describe(error) or str(error), param="folder", code="invalid_setting") from error


def _cleaners(deps: PanelDeps, data: Path) -> dict[str, Callable[[], None]]:
    def chats() -> None:
        for chat in deps.service.list_chats():
            deps.service.delete_chat(chat.id)
        deps.store.purge_deleted()
        data_files.compact(data)

    def log() -> None:
        for path in paths.log_dir().glob(f"{FILE_NAME}*"):
            try:
                if path.name == FILE_NAME:
                    os.truncate(path, 0)  # still open for what is logged next
                else:
                    path.unlink()
            except OSError as error:
                raise ApiError(500, f"{path} could not be deleted ({error.strerror or error}).") from error

    return {"chats": chats, "log": log, "cache": lambda: data_files.clear(paths.cache_dir())}
