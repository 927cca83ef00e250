"""What a model takes comes back to the system when it is unloaded, also when nobody asked for it but the clock."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
import torch
from hosting import settings

from octavo.app.host import ModelHost
from octavo.app.idle import rest_when_idle
from octavo.app.memory import device_memory, release_memory, resident_bytes
from octavo.engine.model.compiled import Entry
from octavo.engine.request import SamplingParams

NOISE_BYTES = 40 << 20  # other threads, grown tables of libraries


async def rest(host: ModelHost) -> None:
    idle = asyncio.create_task(rest_when_idle(host, lambda: 0.01, check_every_s=0.01))
    while not host.is_resting:
        await asyncio.sleep(0.01)
    idle.cancel()
    await host.wait_until_settled()


def use(host: ModelHost) -> int:
    """A short reply of the model, once it is there; returns the size of its weights."""
    assert host.wait(240) == "ready", host.error
    assert host.engine is not None
    Entry.of(getattr(torch, host.engine.info.dtype)).wait()  # what that takes is not the model's
    for _ in host.engine.submit(list(range(5, 105)), SamplingParams(max_tokens=4, temperature=0.0)):
        pass
    return host.engine.info.weight_bytes


def test_a_model_nobody_uses_gives_all_its_memory_back(
    starter_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OCTAVO_STARTER", str(starter_path))
    host = ModelHost()
    host.load(settings(tmp_path, model__id="starter", model__device="cpu").values)
    use(host)
    asyncio.run(rest(host))  # once before anything is measured: libraries and compiled code stay
    release_memory()
    before = resident_bytes()
    host.wake()
    weights = use(host)
    assert resident_bytes() - before > 0.9 * weights
    asyncio.run(rest(host))
    assert resident_bytes() - before < NOISE_BYTES
    host.close()


def test_without_cuda_there_is_nothing_to_say_about_it() -> None:
    if not torch.cuda.is_initialized():
        assert device_memory() is None
