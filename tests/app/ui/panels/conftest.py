"""The panels' routes over a scripted engine, asked as a browser of this machine asks, without Gradio."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from fake_engine import FakeEngine
from fastapi.testclient import TestClient
from hosting import GatedLoads

from octavo.app.chat.service import ChatService
from octavo.app.chat.store import ChatStore
from octavo.app.chat.types import Message
from octavo.app.config import Settings, load_settings
from octavo.app.host import ModelHost
from octavo.app.server import create_app
from octavo.app.ui.panels import PanelDeps, add_panels

OWN = "http://127.0.0.1:7860"


@dataclass
class House:
    client: TestClient
    settings: Settings
    host: ModelHost
    service: ChatService
    loads: GatedLoads
    deps: PanelDeps

    def from_elsewhere(self) -> dict[str, str]:
        """Headers that make a request one of another device (through a proxy on this machine)."""
        return {"x-forwarded-for": "192.168.1.9", "authorization": "Bearer open-sesame"}

    def begin_chat(self, text: str) -> str:
        """Send a message in a chat of its own and wait for the reply's first words."""

        async def begin() -> str:
            chat = self.service.create_chat()
            await self.service.send(chat.id, text)
            while not (self.service.running(chat.id) or Message("", "", "user", "over")).content:
                await asyncio.sleep(0.005)
            return chat.id

        return self.client.portal.call(begin)  # type: ignore[union-attr,no-any-return]

    def get(self, path: str, **options: Any) -> Any:
        answer = self.client.get(path, **options)
        assert answer.status_code == 200, answer.text
        return answer.json()


@pytest.fixture
def house(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., House]]:
    """`house(text, engine, flags...)`: a running app with this config.yaml and a loaded model."""
    monkeypatch.setenv("OCTAVO_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.setattr("octavo.app.paths.cache_dir", lambda: tmp_path / "cache")
    monkeypatch.setattr("octavo.app.paths.log_dir", lambda: tmp_path / "log")
    (tmp_path / "data").mkdir()
    with ExitStack() as stack:

        def make(text: str = "", engine: Callable[[], FakeEngine] = FakeEngine, **flags: object) -> House:
            path = tmp_path / "config.yaml"
            path.write_text(text, encoding="utf-8")
            overrides = {name.replace("__", "."): value for name, value in flags.items()}
            settings = load_settings(path, overrides, environment={})
            loads = GatedLoads(engine)
            loads.open()
            host, store = loads.host(), ChatStore(tmp_path / "data" / "chats.sqlite3")
            app = create_app(settings, host, store)
            deps = PanelDeps(app.state.service, host, store, settings)
            add_panels(app, deps)
            client = TestClient(app, base_url=OWN, client=("127.0.0.1", 50000), headers={"origin": OWN})
            stack.enter_context(client)
            host.load(settings.values)
            assert host.wait(240) == "ready"
            return House(client, settings, host, app.state.service, loads, deps)

        yield make
