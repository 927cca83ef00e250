"""A store of chats in a file of its own; tests of other stores make theirs."""

from __future__ import annotations

from pathlib import Path

import pytest

from octavo.app.chat.store import ChatStore


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "chats.sqlite3"


@pytest.fixture
def store(file: Path) -> ChatStore:
    return ChatStore(file)
