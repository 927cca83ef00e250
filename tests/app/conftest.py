"""Makes the stand-ins of tests/app/support importable; what several of the tests need."""

import logging
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent / "support"))


@pytest.fixture
def restored_logging() -> Iterator[None]:
    """Takes back what a start does to the process's logging."""
    root, level = logging.getLogger(), logging.getLogger().level
    octavo_level, handlers = logging.getLogger("octavo").level, list(root.handlers)
    yield
    for handler in [handler for handler in root.handlers if handler not in handlers]:
        root.removeHandler(handler)
        handler.close()
    root.setLevel(level)
    logging.getLogger("octavo").setLevel(octavo_level)
