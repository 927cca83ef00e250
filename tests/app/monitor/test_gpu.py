"""The GPU's figures are those of the very GPU the engine runs on, and their absence ends nothing."""

from __future__ import annotations

import types
from typing import Any

import pynvml
import pytest
import torch

from octavo.app.monitor.gpu import GpuMeter, GpuReading

GIB = 2**30


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """A driver that knows two GPUs in another order than CUDA does, and asks nobody twice what it cannot tell."""
    answers: dict[str, Any] = {"started": 0, "stopped": 0, "refuses": set()}
    gpus = {"GPU-aaaa": ("Small", 8 * GIB, GIB), "GPU-bbbb": ("Big", 24 * GIB, 20 * GIB)}

    def count(name: str) -> Any:
        def called() -> None:
            answers[name] += 1

        return called

    def told(name: str, value: Any) -> Any:
        def tell(*_: Any) -> Any:
            if name in answers["refuses"]:
                raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
            return value

        return tell

    def memory(handle: str) -> types.SimpleNamespace:
        if "memory" in answers["refuses"]:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_GPU_IS_LOST)
        return types.SimpleNamespace(total=gpus[handle][1], used=gpus[handle][2])

    def by_uuid(uuid: str) -> str:
        if "uuid" in answers["refuses"]:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)
        return uuid

    monkeypatch.setattr(pynvml, "nvmlInit", count("started"))
    monkeypatch.setattr(pynvml, "nvmlShutdown", count("stopped"))
    monkeypatch.setattr(pynvml, "nvmlDeviceGetHandleByUUID", by_uuid)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetHandleByIndex", lambda index: list(gpus)[index])
    monkeypatch.setattr(pynvml, "nvmlDeviceGetName", lambda handle: gpus[handle][0])
    monkeypatch.setattr(pynvml, "nvmlDeviceGetMemoryInfo", memory)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetUtilizationRates", told("load", types.SimpleNamespace(gpu=37)))
    monkeypatch.setattr(pynvml, "nvmlDeviceGetTemperature", told("temperature", 61))
    monkeypatch.setattr(pynvml, "nvmlDeviceGetPowerUsage", told("power", 123_400))
    properties = {0: "bbbb", 1: "aaaa"}  # CUDA counts the faster one first
    monkeypatch.setattr(
        torch.cuda, "get_device_properties", lambda number: types.SimpleNamespace(uuid=properties[number])
    )
    return answers


def test_it_is_the_gpu_that_cuda_means(driver: dict[str, Any]) -> None:
    meter = GpuMeter()
    assert meter.read("cuda:0") == GpuReading("Big", 24 * GIB, 20 * GIB, 0.37, 61, 123.4)
    small = meter.read("cuda:1")
    assert small is not None
    assert small.name == "Small"
    meter.read("cuda")
    assert driver["started"] == 1
    meter.close()
    meter.close()
    assert driver["stopped"] == 1


def test_what_a_gpu_cannot_tell_is_left_out(driver: dict[str, Any]) -> None:
    driver["refuses"] |= {"load", "temperature", "power"}
    assert GpuMeter().read("cuda:0") == GpuReading("Big", 24 * GIB, 20 * GIB)


def test_a_driver_without_uuids_is_asked_by_number(driver: dict[str, Any]) -> None:
    driver["refuses"].add("uuid")
    found = GpuMeter().read("cuda:1")
    assert found is not None
    assert found.name == "Big"


def test_a_gpu_that_is_lost_or_none_at_all_is_no_error(driver: dict[str, Any]) -> None:
    driver["refuses"].add("memory")
    assert GpuMeter().read("cuda:0") is None
    assert GpuMeter().read("cpu") is None
