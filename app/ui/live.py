"""The WebSocket behind each tab: commands come in, changes go out, in JSON.

A browser opens six ordinary connections to a server but many WebSockets, so tabs do not wait for each other. The
server keeps a position for each tab (`View`) and sends what lies after it, at most some fifteen times a second. A tab
says when it draws a piece of a reply, and the next one comes no earlier: a busy machine gets larger pieces, not more of
them, and no tab falls behind. A hidden tab gets nothing until it is shown.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Any

from fastapi import FastAPI, WebSocket, WebSocketDisconnect

from octavo.app.api.errors import ApiError
from octavo.app.chat.service import ChatService
from octavo.app.config import Settings
from octavo.app.host import ModelHost
from octavo.app.text import read_json
from octavo.app.ui.board import Board
from octavo.app.ui.chat_commands import ChatCommands
from octavo.app.ui.chat_form import read_settings
from octavo.app.ui.compose import desk_of
from octavo.app.ui.feed import ChatFeed
from octavo.app.ui.hub import Hub
from octavo.app.ui.view import PATCH, View
from octavo.engine.errors import OctavoError

log = logging.getLogger(__name__)

PATH = "/api/live"
LEAST_GAP_S = 0.06  # between two frames of one tab
RENDER_SHARE = 8  # a frame that took t to make is followed by a pause of at least 8 t
LONGEST_TEXT = 2_000_000  # characters of one message

Command = dict[str, Any]


def add_live_route(
    app: FastAPI, service: ChatService, host: ModelHost, settings: Settings, build: str, board: Board | None = None
) -> None:
    """Add `/api/live`. `build` names the version of the page's files; a tab of another version reloads itself."""
    hub = Hub(service, host, settings, board)

    @app.websocket(PATH)
    async def live(socket: WebSocket) -> None:
        await socket.accept()
        await Tab(socket, hub, service, host, settings, build).run()


class Tab:
    """One tab's connection: a reader of commands and a writer of changes."""

    def __init__(
        self, socket: WebSocket, hub: Hub, service: ChatService, host: ModelHost, settings: Settings, build: str
    ) -> None:
        self._socket = socket
        self._hub = hub
        self._service = service
        self._host = host
        self._settings = settings
        self._desk = desk_of(socket.app, service)
        self._view: View | None = None
        self._outbox: list[dict[str, Any]] = [{"k": "hello", "build": build, "theme": settings.values.app.theme}]
        self._wake = asyncio.Event()  # something changed
        self._hurry = asyncio.Event()  # somebody waits for an answer
        self._visible = True
        self._draws = False  # it has a piece of a reply and has not said yet that it is drawn
        self._answers = False  # whether it says so at all
        self._list_version = -1
        self._model_version = -1
        self._board_version = 0
        self._knows_machine = False
        self._commands: dict[str, Callable[[Command], Awaitable[None]]] = {
            "open": self._open,
            "send": self._send,
            "earlier": self._earlier,
            "source": self._source,
            "visible": self._set_visible,
            "drawn": self._drawn,
            "load": self._load,
            "cancel": self._cancel,
            **ChatCommands(service, host, settings, self._answer).handlers,
        }

    async def run(self) -> None:
        """Until the tab goes away. What it started goes on without it."""
        self._hub.enter(self._wake.set)
        self._wake.set()
        reader = asyncio.create_task(self._read(), name="tab-reader")
        writer = asyncio.create_task(self._write(), name="tab-writer")
        try:
            await asyncio.wait({reader, writer}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._show(None)
            self._hub.leave(self._wake.set)
            for task in (reader, writer):
                task.cancel()
            await asyncio.wait({reader, writer})  # not gather, which forgets who cancelled it: the server must know
            for task in (reader, writer):
                error = None if task.cancelled() else task.exception()
                if error is not None and not isinstance(error, (WebSocketDisconnect, RuntimeError)):
                    log.error("A tab's connection failed", exc_info=error)
            with suppress(Exception):
                await self._socket.close()

    # Out

    async def _write(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            self._hurry.clear()
            began = time.perf_counter()
            messages = self._collect()
            if messages:
                await self._socket.send_text(json.dumps(messages, ensure_ascii=False, separators=(",", ":")))
            pause = max(LEAST_GAP_S, RENDER_SHARE * (time.perf_counter() - began))
            with suppress(TimeoutError):
                await asyncio.wait_for(self._hurry.wait(), pause)

    def _collect(self) -> list[dict[str, Any]]:
        out, self._outbox = self._outbox, []
        if self._list_version != self._hub.list_version:
            out.extend(self._hub.list_changes(self._list_version))
            self._list_version = self._hub.list_version
        if self._model_version != self._hub.model_version:
            self._model_version = self._hub.model_version
            out.append(self._hub.model())
        if self._board_version != (version := self._hub.board.version):
            out.extend(self._hub.board.since(self._board_version))
            self._board_version = version
        if not self._knows_machine and self._host.state in ("loading", "empty", "failed"):
            machine = self._hub.machine()
            if machine is not None:
                self._knows_machine = True
                out.append(machine)
        if self._view is not None and self._visible and not self._is_drawing:
            changes = self._view.collect()
            if any(change["k"] == PATCH for change in changes):
                self._draws = True
            out.extend(changes)
            if self._view.feed.gone:
                self._show(None)
        return out

    @property
    def _is_drawing(self) -> bool:
        """More text would only wait in the tab; the end of a reply does not wait here."""
        return self._answers and self._draws and self._view is not None and self._view.feed.writing

    def _changed(self) -> None:
        """The chat that is shown has changed."""
        self._wake.set()
        if self._view is not None and not self._view.feed.writing:
            self._hurry.set()

    def _answer(self, *messages: dict[str, Any]) -> None:
        self._outbox.extend(messages)
        self._wake.set()
        self._hurry.set()

    def _show(self, view: View | None) -> None:
        if self._view is not None:
            self._view.feed.unwatch(self._changed)
        self._view = view
        self._draws = False
        if view is not None:
            view.feed.watch(self._changed)

    # In

    async def _read(self) -> None:
        while True:
            command = _parse(await self._socket.receive())
            handler = self._commands.get(str(command.get("k")))
            if handler is None:
                continue
            try:
                await handler(command)
            except OctavoError as error:
                said = getattr(error, "code", ""), getattr(error, "values", None)
                self._refuse(command, error.message, error.remedy, *said)
            except ApiError as error:  # from what reads fields for the routes as well
                self._refuse(command, error.message, None, error.code)
            except (WebSocketDisconnect, RuntimeError):
                raise
            except Exception as error:
                log.exception("A command of the page failed: %s", command.get("k"))
                self._refuse(command, f"That did not work ({type(error).__name__}). The log has the details.", None)

    def _refuse(
        self, command: Command, message: str, remedy: str | None, code: str = "", values: object = None
    ) -> None:
        """Say in English why a command was not done; the page may have words of its own for `code`."""
        self._answer(
            {
                "k": "refused",
                "what": command.get("k"),
                "chat": _name(command, "chat"),
                "nonce": _name(command, "nonce"),
                "message": message,
                "remedy": remedy,
                "code": code,
                "values": values or {},
            }
        )

    async def _open(self, command: Command) -> None:
        chat_id, have = command.get("chat"), command.get("have")
        if not isinstance(chat_id, str):
            self._show(None)
            return
        feed = await self._hub.feed(chat_id)
        if feed is None:
            self._show(None)
            self._answer({"k": "gone", "chat": chat_id})
            return
        self._show(View(feed, have if isinstance(have, dict) else None))
        self._answer()

    async def _send(self, command: Command) -> None:
        text, nonce = command.get("text"), command.get("nonce")
        if not isinstance(text, str) or not isinstance(nonce, str):
            return
        if len(text) > LONGEST_TEXT:
            self._refuse(command, f"A message can have {LONGEST_TEXT:,} characters at most.", "Send it in parts.")
            return
        chat_id, after, beside = (_name(command, field) for field in ("chat", "after", "beside"))
        created = chat_id is None
        listed = command.get("files")
        files = [item for item in listed if isinstance(item, str)] if isinstance(listed, list) else []
        if chat_id is None:
            temporary, again = command.get("temporary") is True, command.get("again") is True
            chat_id = await self._hub.begin(nonce, temporary=temporary, again=again)
        try:
            if created and command.get("settings") is not None:
                own = read_settings(command["settings"])
                await asyncio.to_thread(self._service.set_chat_settings, chat_id, own)
            ready = await asyncio.to_thread(self._desk.ready, chat_id, text, files, beside=beside, nonce=nonce)
            await self._service.send(chat_id, text, after=after, beside=beside, nonce=nonce, attachments=ready)
            self._desk.take_away(files)
        except BaseException:  # whatever it was, even the end of the tab: nothing was stored
            if created:
                self._hub.abandon(nonce)
            raise
        self._answer({"k": "sent", "chat": chat_id, "nonce": nonce, "created": created})
        if created and self._view is None:  # the reader may have gone on to another chat
            feed: ChatFeed | None = await self._hub.feed(chat_id)
            if feed is not None:
                self._show(View(feed))
                self._answer()

    async def _earlier(self, command: Command) -> None:
        if self._view is not None and self._view.feed.chat_id == command.get("chat"):
            self._answer(*self._view.earlier())

    async def _source(self, command: Command) -> None:
        turn = self._view.feed.find(str(command.get("id"))) if self._view is not None else None
        if turn is not None:
            self._answer({"k": "source", "id": turn.id, "nonce": _name(command, "nonce"), "text": turn.source})

    async def _drawn(self, command: Command) -> None:
        """The tab has the last piece on its screen."""
        self._answers = True
        self._draws = False
        self._wake.set()

    async def _set_visible(self, command: Command) -> None:
        self._visible = bool(command.get("on"))
        self._draws = False  # hidden, it may never say so
        if self._visible:
            self._answer()

    async def _load(self, command: Command) -> None:
        if self._host.state in ("empty", "failed"):
            self._host.load(self._settings.values, self._host.wanted)

    async def _cancel(self, command: Command) -> None:
        self._host.cancel()


def _parse(message: Mapping[str, Any]) -> Command:
    """The command in a received message; an empty one for noise. Raises WebSocketDisconnect at the end."""
    if message["type"] == "websocket.disconnect":
        raise WebSocketDisconnect(message.get("code", 1000))
    try:
        command = read_json(message.get("text") or "null")
    except (ValueError, RecursionError):
        return {}
    return command if isinstance(command, dict) else {}


def _name(command: Command, field: str) -> str | None:
    """A name that the page chose, to be sent back to it; None for anything that is no name."""
    value = command.get(field)
    return value if isinstance(value, str) else None
