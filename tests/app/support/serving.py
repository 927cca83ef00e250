"""A real uvicorn on a free loopback port, in a thread."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn
from starlette.types import ASGIApp


def free_socket() -> socket.socket:
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.bind(("127.0.0.1", 0))
    listener.listen(64)
    return listener


@contextmanager
def running(app: ASGIApp, **options: Any) -> Iterator[str]:
    """Serves `app` and gives its address; `options` are uvicorn's."""
    listener = free_socket()
    port = listener.getsockname()[1]
    config = uvicorn.Config(
        app, ws="websockets-sansio", log_config=None, proxy_headers=False, timeout_graceful_shutdown=1, **options
    )
    server = uvicorn.Server(config)
    started = threading.Event()
    original = server.startup

    async def startup(sockets: list[socket.socket] | None = None) -> None:
        await original(sockets)
        started.set()

    server.startup = startup  # type: ignore[method-assign]
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    try:
        assert started.wait(240)
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        thread.join(60)
