"""Apps with a fake engine behind them, served for real."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest
from fake_engine import FakeEngine
from hosting import ready_host, settings
from openai import OpenAI
from serving import running

from octavo.app.chat.store import ChatStore
from octavo.app.server import create_app

Serve = Callable[..., str]


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Serve]:
    """Starts servers: `serve(engine, server__api_key="k")` gives the address of one."""
    with ExitStack() as stack:

        def start(engine: FakeEngine | None = None, **values: object) -> str:
            config = settings(tmp_path, **values)
            host = ready_host(engine or FakeEngine(), config)
            return stack.enter_context(running(create_app(config, host, ChatStore(None))))

        yield start


@pytest.fixture(scope="session")
def _shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, FakeEngine]]:
    """One server for all tests that change nothing about it: starting one takes as long as thirty requests."""
    engine = FakeEngine()
    config = settings(tmp_path_factory.mktemp("config"))
    with running(create_app(config, ready_host(engine, config), ChatStore(None))) as address:
        yield address, engine


@pytest.fixture
def engine(_shared: tuple[str, FakeEngine]) -> FakeEngine:
    """The shared server's engine, with nothing remembered of earlier tests."""
    engine = _shared[1]
    assert engine.is_idle
    engine.forget()
    return engine


@pytest.fixture
def url(_shared: tuple[str, FakeEngine], engine: FakeEngine) -> str:
    return _shared[0]


@pytest.fixture(scope="session")
def _clients(_shared: tuple[str, FakeEngine]) -> Iterator[tuple[httpx.Client, OpenAI]]:
    address = _shared[0]
    with (
        httpx.Client(base_url=address, timeout=60) as http,
        OpenAI(base_url=f"{address}/v1", api_key="none", max_retries=0, timeout=60) as client,
    ):
        yield http, client


@pytest.fixture
def http(_clients: tuple[httpx.Client, OpenAI], engine: FakeEngine) -> httpx.Client:
    return _clients[0]


@pytest.fixture
def client(_clients: tuple[httpx.Client, OpenAI], engine: FakeEngine) -> OpenAI:
    return _clients[1]
