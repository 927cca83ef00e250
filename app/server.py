"""The one server: page, API and guards in one FastAPI app, started and stopped in order."""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

import uvicorn
from fastapi import FastAPI

from octavo.app import paths, restart
from octavo.app.api import add_routes, close_prefixes
from octavo.app.browser import open_page
from octavo.app.chat.service import ChatService
from octavo.app.chat.store import ChatStore
from octavo.app.csp import ContentSecurityPolicy
from octavo.app.gpu_watch import watch_gpu
from octavo.app.guards import Guards, check_bind
from octavo.app.host import ModelHost
from octavo.app.idle import rest_when_idle
from octavo.app.monitor.sampler import Sampler
from octavo.app.ports import page_url
from octavo.app.restart import RestartNote
from octavo.app.window import Window
from octavo.engine.errors import LoadError

if TYPE_CHECKING:
    from octavo.app.config import Settings
    from octavo.app.ui.board import Board

log = logging.getLogger(__name__)

REPLIES_S = 1.0  # requests of the API get so long to end after the first Ctrl+C, before the model is taken from them
GRACE_S = 3  # and their connections so long
FAREWELL_S = 0.15  # the tabs get so long to be told why they will lose their connection, and how replies ended
LET_GO_S = 20.0  # a lost GPU may hold up the end of the process for so long
CLOSE_MODEL_S = 3.0  # a load that does not notice its end by then is left to the end of the process
LARGEST_MESSAGE_BYTES = 16 * 1024 * 1024  # of a WebSocket


def create_app(
    settings: Settings,
    host: ModelHost,
    store: ChatStore,
    *,
    page: bool = False,
    news: Sequence[Mapping[str, Any]] = (),
    on_gpu_loss: Callable[[], None] | None = None,
) -> FastAPI:
    """The app with its routes, and the page if `page`. It owns `host` and `store` from its start on and closes them.

    Loading a model is the caller's: `host.load(settings.values)` at any time. `news` is what the page tells once.
    """
    service = ChatService(store, host, settings)

    def idle_limit_s() -> float:
        return 60.0 * service.settings.values.app.unload_after_minutes

    sampler = Sampler(host) if page else None

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        await service.start("gpu_lost" if any(item.get("kind") == "gpu" for item in news) else "interrupted")
        resting = asyncio.create_task(rest_when_idle(host, idle_limit_s))
        watching = asyncio.create_task(watch_gpu(host, on_gpu_loss)) if on_gpu_loss is not None else None
        if sampler is not None:
            sampler.start()
        try:
            yield
        finally:
            resting.cancel()
            if watching is not None:
                watching.cancel()
            if sampler is not None:
                await asyncio.to_thread(sampler.close)
            await service.close()
            await asyncio.to_thread(host.close, CLOSE_MODEL_S)
            store.close()

    # No generated documentation: its pages load scripts from elsewhere.
    app = FastAPI(title="Octavo", lifespan=lifespan, docs_url=None, redoc_url=None, openapi_url=None)
    app.state.settings = settings
    app.state.host = host
    app.state.store = store
    app.state.service = service
    add_routes(app)
    server = settings.values.server
    app.add_middleware(ContentSecurityPolicy)
    app.add_middleware(
        Guards,
        host=server.host,
        api_key=server.api_key.get_secret_value() if server.api_key else None,
        allowed_hosts=server.allowed_hosts,
        allowed_origins=server.allowed_origins,
        **_door(settings, page),
    )
    board: Board | None = None
    if page:
        from octavo.app.ui import PanelDeps, add_panels, mount_page  # takes seconds: only where there is a page

        deps = PanelDeps(service, host, store, settings, sampler=sampler)
        deps.board.put("news", [dict(item) for item in news])
        board = deps.board
        add_panels(app, deps)
        close_prefixes(app)
        app = mount_page(app, service, host, settings, board)

    async def take_leave(again: restart.Reason | None) -> None:
        if board is not None and board.watched:
            board.put("ending", "closed" if again is None else "again")
            await asyncio.sleep(FAREWELL_S)
        await service.close("closed" if again is None else "gpu_lost" if again == "gpu" else "restarted")
        if board is not None and board.watched:
            await asyncio.sleep(FAREWELL_S)  # for the ends of the replies, with their figures

    async def end_requests() -> None:
        await asyncio.sleep(REPLIES_S)
        await asyncio.to_thread(host.close, CLOSE_MODEL_S)

    app.state.take_leave = take_leave  # to be awaited before connections are closed
    app.state.end_requests = end_requests  # to be awaited while they are
    return app


def _door(settings: Settings, page: bool) -> dict[str, Any]:
    """What lets the browsers of other devices enter; without the page there is nothing to enter."""
    if not page:
        return {}
    from octavo.app.ui.door import FILES, make_door

    return {"door": make_door(settings), "open_files": FILES}


def run_server(
    settings: Settings,
    *,
    page: bool,
    open_browser: bool,
    port: int,
    sock: socket.socket | None = None,
    on_started: Callable[[], None] | None = None,
    window: Path | None = None,
    note: RestartNote | None = None,
    news: Sequence[Mapping[str, Any]] = (),
) -> int:
    """Serve until Ctrl+C or SIGTERM and return the exit code.

    `port` is where it listens, or where `sock` listens already. The model is loaded in the background once requests
    are answered; then `on_started` is called and, if `open_browser`, the page is shown. The first Ctrl+C lets open
    requests end for a moment, the second ends at once. With `window`, a folder for its files, the page opens in a
    window whose closing ends the server. With `note` the app may start itself anew: the exit code is then
    `restart.CODE`. Raises UnsafeHostError, StoreError and, without the page, on which another model could be chosen,
    LoadError if the model cannot be loaded.
    """
    values = settings.values
    key = values.server.api_key
    check_bind(values.server.host, key.get_secret_value() if key else None)
    host = ModelHost()
    store = ChatStore(paths.data_dir(values.app.data_folder) / "chats.sqlite3")
    shown: list[Window] = []

    def gpu_lost() -> None:
        if note is not None and note.may_restart():
            server.start_again("gpu")
            # What waits for a GPU that hangs waits for ever, the orderly end included.
            last_resort = threading.Timer(LET_GO_S, restart.force, (note, "gpu", values.server.port, port))
            last_resort.daemon = True
            last_resort.start()
        else:
            log.error("The GPU was lost again and again; Octavo does not restart any more. Restart the machine.")

    app = create_app(settings, host, store, page=page, news=news, on_gpu_loss=gpu_lost)

    failures: list[str] = []

    def give_up_without_a_model() -> None:
        if host.state == "ready":
            remove_listener()
        elif host.state == "failed" and host.error is not None and not failures:
            failures.append(host.error)
            server.stop()

    remove_listener = (lambda: None) if page else host.add_listener(give_up_without_a_model)

    def started() -> None:
        host.load(values)
        if on_started is not None:
            on_started()
        url = page_url(values.server.host, port)
        if window is not None:
            shown.append(Window(url, window, on_close=server.stop))
        elif page and open_browser:
            open_page(url)

    config = uvicorn.Config(
        app,
        host=values.server.host.strip("[]"),
        port=port,
        loop="asyncio",
        ws="websockets-sansio",
        ws_max_size=LARGEST_MESSAGE_BYTES,
        log_config=None,
        log_level="warning",
        access_log=False,
        proxy_headers=False,  # a header must not make a stranger look like this machine
        server_header=False,
        timeout_graceful_shutdown=GRACE_S,
    )
    server = Server(config, on_started=started, before_shutdown=app.state.take_leave, meanwhile=app.state.end_requests)
    app.state.stop = server.stop
    app.state.restart = server.start_again if note is not None else None
    try:
        server.run(sockets=[sock] if sock is not None else None)
    except SystemExit:  # uvicorn's way to say that it could not start; the log has the reason
        return 1
    except KeyboardInterrupt:
        return 130
    finally:
        for open_window in shown:
            open_window.close()
    if server.restart_reason is not None and note is not None and not server.force_exit:
        note.leave(server.restart_reason, asked_port=values.server.port, port=port)
        return restart.CODE
    if failures and not server.force_exit:
        raise LoadError(failures[0])
    return 130 if server.force_exit else 0


class Server(uvicorn.Server):
    """uvicorn's server that says when it answers and ends replies before it waits for connections. `before_shutdown` is
    told why it is to start again, if it is; `meanwhile` runs while connections are waited for, and ends with that."""

    def __init__(
        self,
        config: uvicorn.Config,
        *,
        on_started: Callable[[], None],
        before_shutdown: Callable[[restart.Reason | None], Coroutine[Any, Any, None]],
        meanwhile: Callable[[], Coroutine[Any, Any, None]] | None = None,
    ) -> None:
        super().__init__(config)
        self._meanwhile = meanwhile
        self._on_started = on_started
        self._before_shutdown = before_shutdown
        self.restart_reason: restart.Reason | None = None

    def stop(self) -> None:
        """As the first Ctrl+C; from any thread."""
        self.should_exit = True

    def start_again(self, reason: restart.Reason) -> None:
        """End in order, for a new start."""
        self.restart_reason = reason
        self.should_exit = True

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self._on_started()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        closing = asyncio.create_task(self._before_shutdown(self.restart_reason))
        while not closing.done() and not self.force_exit:
            await asyncio.wait({closing}, timeout=0.05)
        ending = asyncio.create_task(self._meanwhile()) if self._meanwhile is not None else None
        try:
            await super().shutdown(sockets)
        finally:
            if ending is not None:
                ending.cancel()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Unlike uvicorn's own, does not raise the signal again at the end: ending as asked is a success."""
        if self.should_exit and sig == signal.SIGINT:
            self.force_exit = True
            for name in ("uvicorn.error", "asyncio"):  # traces of what is cut off help nobody who asked for it
                logging.getLogger(name).disabled = True
        else:
            self.should_exit = True
