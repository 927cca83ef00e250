"""Tests that need a CUDA GPU; they skip, saying so, where there is none."""

import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "kernels" / "support"))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.gpu)
            if not torch.cuda.is_available():
                item.add_marker(pytest.mark.skip(reason="needs a CUDA GPU"))


@pytest.fixture(autouse=True)
def _exact_references(monkeypatch: pytest.MonkeyPatch):
    """TF32 off, so that torch's float32 is float32."""
    monkeypatch.setattr(torch.backends.cuda.matmul, "allow_tf32", False)


@pytest.fixture(autouse=True)
def _compiled_at_launch(monkeypatch: pytest.MonkeyPatch):
    """The many small models of these tests do not each start processes that compile for them."""
    monkeypatch.setattr("octavo.engine.assemble.compile_ahead", lambda *told: None)
