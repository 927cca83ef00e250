"""What the composer asks for while a message is written: its files as text, and how full they make the window."""

from __future__ import annotations

from base64 import b64decode
from dataclasses import asdict
from typing import Any

from fastapi import FastAPI, Request
from starlette.concurrency import run_in_threadpool

from octavo.app.api.body import Body, read_body
from octavo.app.api.errors import ApiError
from octavo.app.chat.attachments import AttachmentError
from octavo.app.chat.context import overflow_of
from octavo.app.chat.desk import Desk, Laid
from octavo.app.chat.errors import UnknownChatError
from octavo.app.chat.service import ChatService
from octavo.app.chat.types import TEMPORARY, Attachment
from octavo.app.ui.chat_form import read_settings

PATH = "/api/ui/compose"
LONGEST_DRAFT = 2_000_000  # characters


def add_compose_routes(app: FastAPI, service: ChatService) -> None:
    """Add `/api/ui/compose/...`."""
    desk = desk_of(app, service)

    @app.post(f"{PATH}/files")
    async def attach(request: Request) -> dict[str, Any]:
        body = await read_body(request)
        return await run_in_threadpool(_attach, desk, body.text("name") or "", body.text("data") or "")

    @app.get(PATH + "/files/{file_id}")
    def show_file(file_id: str) -> dict[str, Any]:
        laid = desk.file(file_id)
        if laid is None:
            raise ApiError(404, str(AttachmentError("lost")), code="file_lost")
        return {**_laid(laid), "text": laid.file.text}

    @app.post(f"{PATH}/files/remove")
    async def remove(request: Request) -> dict[str, Any]:
        desk.take_away(_ids((await read_body(request)).get("files")))
        return {}

    @app.get(f"{PATH}/sent")
    def show_sent(message: str, at: int) -> dict[str, Any]:
        return _sent(service, message, at)

    @app.post(f"{PATH}/measure")
    async def measure(request: Request) -> dict[str, Any]:
        return await run_in_threadpool(_measure, desk, service, await read_body(request))


def desk_of(app: Any, service: ChatService) -> Desk:
    """The server's one desk, made when somebody first asks for it."""
    desk: Desk | None = getattr(app.state, "desk", None)
    if desk is None:
        desk = app.state.desk = Desk(service)
    return desk


def _attach(desk: Desk, name: str, data: str) -> dict[str, Any]:
    try:
        return _laid(desk.add(name, b64decode(data, validate=True)))
    except AttachmentError as error:
        return {"refused": {"message": str(error), "code": error.code, "values": error.values}}
    except ValueError:
        raise ApiError(400, "data must be the file in Base64.", param="data") from None


def _measure(desk: Desk, service: ChatService, body: Body) -> dict[str, Any]:
    """The meter's reading, which of the files are no longer there, and what the chat has of its own."""
    text, chat_id = body.text("text") or "", body.text("chat")
    if len(text) > LONGEST_DRAFT:
        raise ApiError(400, f"A message can have {LONGEST_DRAFT:,} characters at most.", param="text")
    own = read_settings(body.get("settings"))
    if chat_id is not None:
        stored = service.store_of(chat_id).get_chat_settings(chat_id)
        if stored is None:
            raise ApiError(404, str(UnknownChatError()), code="unknown_chat")
        own = stored
    lost: list[str] = []
    files: list[Attachment] = []
    for file_id in _ids(body.get("files")):
        try:
            files.extend(desk.attachments([file_id]))
        except AttachmentError:
            lost.append(file_id)
    reading = desk.measure(chat_id, text, files, beside=body.text("beside"), settings=own)
    preset = service.store.presets.get(own.preset) if own.preset else None
    return {
        "reading": None if reading is None else asdict(reading),
        "lost": lost,
        "overflow": overflow_of(own.options),
        "preset": None if preset is None else preset.name,
        "changed": preset is not None and (own.system, dict(own.sampling)) != (preset.system, dict(preset.sampling)),
        "own": bool(own.system or own.sampling or own.options),
    }


def _sent(service: ChatService, message_id: str, at: int) -> dict[str, Any]:
    """A file of a stored message, with its text."""
    stores = (service.store_of(""), service.store_of(TEMPORARY))
    message = next((found for store in stores if (found := store.get_message(message_id)) is not None), None)
    if message is None or not 0 <= at < len(message.attachments):
        raise ApiError(404, "This file is not there any more.", code="file_gone")
    return asdict(message.attachments[at])


def _ids(value: object) -> list[str]:
    return [item for item in value if isinstance(item, str)] if isinstance(value, list) else []


def _laid(laid: Laid) -> dict[str, Any]:
    file = laid.file
    return {
        "id": laid.id,
        "name": file.name,
        "kind": file.kind,
        "tokens": laid.tokens,
        "characters": len(file.text),
        "remarks": [asdict(remark) for remark in file.remarks],
    }
