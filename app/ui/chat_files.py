"""Chats over HTTP: export of one or all as a download, and import of what the page has read from a file."""

from __future__ import annotations

import asyncio
import tempfile
import zipfile
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any
from urllib.parse import quote

from fastapi import FastAPI, Request
from fastapi.responses import Response, StreamingResponse

from octavo.app.api.body import read_body
from octavo.app.api.errors import ApiError
from octavo.app.chat.exporting import file_name, json_pieces, markdown
from octavo.app.chat.importing import NotAChatError, read_chat, read_presets
from octavo.app.chat.patience import patiently_aside
from octavo.app.chat.service import ChatService
from octavo.app.chat.store import ChatStore
from octavo.app.chat.types import Preset
from octavo.app.ui import chat_copies
from octavo.app.ui.chat_tally import ImportTally
from octavo.app.ui.panels.deps import PanelDeps

PATH = "/api/ui/chats"
MEMORY_BYTES = 16 * 1024 * 1024  # a larger archive goes to a temporary file
PIECE_BYTES = 1 << 16

FORMATS = ("json", "markdown")


def add_routes(app: FastAPI, deps: PanelDeps) -> None:
    service = deps.service

    @app.get(f"{PATH}/export")
    def export(format: str = "json", chat: str | None = None) -> Response:
        if format not in FORMATS:
            raise ApiError(400, f"A chat can be exported as {' or '.join(FORMATS)}, not as {format!r}.", code="format")
        if chat is not None:
            return _export_one(service, chat, format)
        ids = [summary.id for summary in service.list_chats() if not summary.temporary]
        if format == "json":
            records = (record for chat_id in ids if (record := service.store.record(chat_id)) is not None)
            pieces = json_pieces(records, service.store.presets.list())
            return _download(pieces, "application/json", "octavo-chats.json")
        return _download(_archive(service, ids), "application/zip", "octavo-chats.zip")

    @app.post(f"{PATH}/import")
    async def take(request: Request) -> dict[str, Any]:
        body = await read_body(request)
        chats = body.get("chats")
        if not isinstance(chats, list):
            raise ApiError(400, "chats must be a list.", code="chats")
        tally = ImportTally()
        for value in chats:
            try:
                tally.put(await service.put(await asyncio.to_thread(read_chat, value)))
            except NotAChatError as error:
                tally.fault(error)
        await patiently_aside(partial(_add_presets, service.store, read_presets(body.get("presets"))))
        return tally.answer()

    chat_copies.add_routes(app, service, partial(_add_presets, service.store))


def _add_presets(store: ChatStore, presets: Sequence[Preset]) -> None:
    """Those whose names are not taken, all or none."""
    with store.together():
        taken = {known.name for known in store.presets.list()}
        for preset in presets:
            if preset.name not in taken:
                taken.add(preset.name)
                store.presets.create(preset.name, preset.system, preset.sampling)


def _export_one(service: ChatService, chat_id: str, format: str) -> Response:
    store = service.store_of(chat_id)
    record, chat = store.record(chat_id), service.get_chat(chat_id)
    if record is None or chat is None:
        raise ApiError(404, "There is no such chat.", code="unknown_chat")
    if format == "json":
        return _download(json_pieces([record]), "application/json", file_name(chat.title, ".json"))
    return _download(iter([markdown(chat)]), "text/markdown; charset=utf-8", file_name(chat.title, ".md"))


def _archive(service: ChatService, ids: list[str]) -> Iterator[bytes]:
    """A zip with a Markdown file for each chat."""
    taken: set[str] = set()
    with tempfile.SpooledTemporaryFile(MEMORY_BYTES) as file:
        with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
            for chat_id in ids:
                chat = service.get_chat(chat_id)
                if chat is not None:
                    archive.writestr(file_name(chat.title, ".md", taken), markdown(chat))
        file.seek(0)
        yield from iter(lambda: file.read(PIECE_BYTES), b"")


def _download(pieces: Iterator[str] | Iterator[bytes], media_type: str, name: str) -> Response:
    disposition = f"attachment; filename=\"{_ascii(name)}\"; filename*=UTF-8''{quote(name)}"  # RFC 6266
    return StreamingResponse(pieces, media_type=media_type, headers={"Content-Disposition": disposition})


def _ascii(name: str) -> str:
    return name.encode("ascii", "replace").decode("ascii").replace("?", "_").replace("\\", "_").replace('"', "_")
