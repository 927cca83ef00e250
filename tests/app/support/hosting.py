"""A model host that loads fake engines, and settings without a file."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

from fake_engine import FakeEngine

from octavo.app.config import Settings, load_settings
from octavo.app.host import ModelHost, Report


def settings(tmp_path: Path, **values: object) -> Settings:
    """Settings from no file; `server__port=1` sets server.port."""
    overrides = {name.replace("__", "."): value for name, value in values.items()}
    return load_settings(tmp_path / "config.yaml", overrides, environment={})


class GatedLoads:
    """Builds engines for a ModelHost, each only after `open()`."""

    def __init__(self, make: Callable[[], FakeEngine]) -> None:
        self.made: list[FakeEngine] = []
        self.failure: Exception | None = None
        self._make = make
        self._open = threading.Event()

    def open(self) -> None:
        self._open.set()

    def shut(self) -> None:
        self._open.clear()

    def host(self) -> ModelHost:
        return ModelHost(find=lambda config, report: Path(config.model.id), build=self._build)

    def _build(self, source: object, config: object, report: Report) -> FakeEngine:
        done = 0
        while not self._open.wait(0.01):
            done += 1
            report("weights", done, 1000, str(source))
        if self.failure is not None:
            raise self.failure
        engine = self._make()
        self.made.append(engine)
        return engine


def ready_host(engine: FakeEngine, settings: Settings) -> ModelHost:
    """A host in state "ready" with this engine."""
    loads = GatedLoads(lambda: engine)
    loads.open()
    host = loads.host()
    host.load(settings.values)
    assert host.wait(240) == "ready", host.error
    return host
