"""A chat service on a scripted engine that the test moves forward, without a browser."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from fake_engine import FakeEngine
from hosting import ready_host, settings

from octavo.app.chat.service import ChatService
from octavo.app.chat.store import ChatStore
from octavo.app.config import Settings
from octavo.app.host import ModelHost


@dataclass
class House:
    service: ChatService
    host: ModelHost
    settings: Settings
    engine: FakeEngine


@pytest.fixture
def house(tmp_path: Path) -> Callable[..., Any]:
    """`async with house(script=...) as h`: a running service over a fake engine."""

    @asynccontextmanager
    async def make(**engine_options: Any) -> AsyncIterator[House]:
        engine = FakeEngine(**engine_options)
        values = settings(tmp_path)
        host = ready_host(engine, values)
        service = ChatService(ChatStore(None), host, values)
        await service.start()
        try:
            yield House(service, host, values, engine)
        finally:
            await service.close()
            host.close()

    return make
