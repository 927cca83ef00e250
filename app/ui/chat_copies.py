"""Import of the file of chats out of a "copy of everything": it arrives in pieces, then its chats are added bit by bit.

The page unpacks the zip and sends the one file it needs, so no path of the zip is ever used here.
"""

from __future__ import annotations

import asyncio
import secrets
import tempfile
import time
from base64 import b64decode
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request

from octavo.app import paths
from octavo.app.api.body import read_body
from octavo.app.api.errors import ApiError
from octavo.app.chat.import_database import ChatDatabase
from octavo.app.chat.importing import NotAChatError
from octavo.app.chat.patience import patiently_aside
from octavo.app.chat.service import ChatService
from octavo.app.chat.types import Preset
from octavo.app.ui.chat_tally import ImportTally

PATH = "/api/ui/chats/import/database"
LARGEST_BYTES = 2 * 1024**3
MOST_AT_ONCE = 2  # copies that lie here; an older one was given up
ANSWER_S = 1.0  # so long chats are added for one answer, which says how far it is


@dataclass(slots=True)
class _Copy:
    """A file that is being received, or whose chats are being added."""

    folder: tempfile.TemporaryDirectory[str]
    size_bytes: int = 0
    database: ChatDatabase | None = None
    done: int = 0
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    @property
    def path(self) -> Path:
        return Path(self.folder.name) / "chats.sqlite3"


def add_routes(app: FastAPI, service: ChatService, add_presets: Callable[[Sequence[Preset]], None]) -> None:
    """Add the two steps: pieces of the file, then its chats until `done` is `total`."""
    copies: OrderedDict[str, _Copy] = OrderedDict()

    def known(name: str | None) -> _Copy:
        copy = copies.get(name or "")
        if copy is None:
            raise ApiError(404, "This import was given up. Choose the file again.", code="import_gone")
        return copy

    @app.post(PATH)
    async def receive(request: Request) -> dict[str, Any]:
        body = await read_body(request)
        name = body.text("copy")
        if name is None:
            name = secrets.token_hex(8)
            copies[name] = _Copy(await asyncio.to_thread(_new_folder))
            while len(copies) > MOST_AT_ONCE:
                await asyncio.to_thread(copies.popitem(last=False)[1].folder.cleanup)
        copy = known(name)
        async with copy.lock:
            copy.size_bytes += await asyncio.to_thread(_append, copy, body.text("data") or "")
        return {"copy": name}

    @app.post(f"{PATH}/chats")
    async def add(request: Request) -> dict[str, Any]:
        name = (await read_body(request)).text("copy") or ""
        copy = known(name)
        tally = ImportTally()
        try:
            async with copy.lock:
                database = copy.database
                if database is None:
                    database = copy.database = await asyncio.to_thread(ChatDatabase, copy.path)
                    await patiently_aside(partial(add_presets, await asyncio.to_thread(database.presets)))
                until_s = time.monotonic() + ANSWER_S
                while copy.done < len(database.chat_ids) and time.monotonic() < until_s:
                    chat_id = database.chat_ids[copy.done]
                    copy.done += 1
                    try:
                        tally.put(await service.put(await asyncio.to_thread(database.record, chat_id)))
                    except NotAChatError as error:
                        tally.fault(error)
        except BaseException:
            await _drop(copies, name)
            raise
        if copy.done == len(database.chat_ids):
            await _drop(copies, name)
        return {**tally.answer(), "done": copy.done, "total": len(database.chat_ids)}


async def _drop(copies: OrderedDict[str, _Copy], name: str) -> None:
    copy = copies.pop(name, None)
    if copy is not None:
        await asyncio.to_thread(copy.folder.cleanup)


def _new_folder() -> tempfile.TemporaryDirectory[str]:
    """A folder of our own, beside the page's other temporary files, that goes with the object."""
    parent = paths.cache_dir() / "import"
    parent.mkdir(parents=True, exist_ok=True)
    return tempfile.TemporaryDirectory(dir=parent, ignore_cleanup_errors=True)


def _append(copy: _Copy, data: str) -> int:
    try:
        piece = b64decode(data, validate=True)
    except ValueError:
        raise ApiError(400, "data must be the file in Base64.", param="data") from None
    if copy.size_bytes + len(piece) > LARGEST_BYTES:
        raise ApiError(413, f"The chats are larger than {LARGEST_BYTES} bytes.", code="import_large")
    try:
        with copy.path.open("ab") as file:
            file.write(piece)
    except OSError as error:
        raise ApiError(507, f"{copy.path} could not be written ({error.strerror or error}).") from error
    return len(piece)
