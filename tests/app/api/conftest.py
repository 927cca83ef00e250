"""One app with a fake engine behind it, served for real."""

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


@pytest.fixture
def engine() -> FakeEngine:
    return FakeEngine()


@pytest.fixture
def url(serve: Serve, engine: FakeEngine) -> str:
    return serve(engine)


@pytest.fixture
def http(url: str) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=url, timeout=10) as client:
        yield client


@pytest.fixture
def client(url: str) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=10) as client:
        yield client
