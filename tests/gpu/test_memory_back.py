"""A closed engine gives its GPU memory back: what stays is CUDA's own context."""

from __future__ import annotations

import os

import pytest
import torch

from octavo.engine.config import EngineConfig
from octavo.engine.engine import Engine
from octavo.engine.request import SamplingParams

MIB = 1 << 20


def test_closing_leaves_nothing_on_the_gpu_but_the_context() -> None:
    memory = pytest.importorskip("octavo.app.memory")
    torch.zeros(1, device="cuda")  # the context is there before anything is measured
    memory.release_memory()
    before, _ = torch.cuda.mem_get_info()
    for _ in range(2):  # the first run also loads kernels and libraries' tables, which stay
        engine = Engine.load("shape:qwen-0.5b", EngineConfig(device="cuda", kv_memory_bytes=1 << 30))
        held = engine.info.weight_bytes + engine.info.kv_bytes
        for _ in engine.submit(list(range(100)), SamplingParams(max_tokens=8, temperature=0.0)):
            pass
        assert torch.cuda.memory_allocated() > 0.9 * held
        engine.close()
        del engine
        memory.release_memory()
        assert torch.cuda.memory_allocated() < 64 * MIB
        assert torch.cuda.memory_reserved() < 128 * MIB
    after, _ = torch.cuda.mem_get_info()
    if "PYTEST_XDIST_WORKER" not in os.environ:  # else it counts what others beside it take
        assert before - after < 768 * MIB
    found = memory.device_memory()
    assert found is not None
    assert found.context_bytes is None or 64 * MIB < found.context_bytes < 2048 * MIB
