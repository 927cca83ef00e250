"""Load, memory, temperature and power of the GPU that the engine runs on, as its driver says."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class GpuReading:
    """One look at a GPU. `load` is the share of the last moment in which it worked; what it cannot tell is None."""

    name: str
    total_bytes: int
    used_bytes: int
    load: float | None = None
    temperature_c: int | None = None
    power_w: float | None = None


class GpuMeter:
    """Reads one GPU through NVML; answers None where there is none or the driver does not talk."""

    def __init__(self) -> None:
        self._open = False
        self._handles: dict[str, object] = {}

    def read(self, device: str) -> GpuReading | None:
        """`device` as torch names it: cuda or cuda:N, counted as this process sees them."""
        if not device.startswith("cuda"):
            return None
        import pynvml

        try:
            if not self._open:
                pynvml.nvmlInit()
                self._open = True
            handle = self._handles.get(device) or self._handles.setdefault(device, _handle(device))
            memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
            name = pynvml.nvmlDeviceGetName(handle)
        except pynvml.NVMLError:
            return None
        load = temperature = power = None
        with suppress(pynvml.NVMLError):
            load = pynvml.nvmlDeviceGetUtilizationRates(handle).gpu / 100
        with suppress(pynvml.NVMLError):
            temperature = int(pynvml.nvmlDeviceGetTemperature(handle, pynvml.NVML_TEMPERATURE_GPU))
        with suppress(pynvml.NVMLError):
            power = pynvml.nvmlDeviceGetPowerUsage(handle) / 1000
        return GpuReading(str(name), int(memory.total), int(memory.used), load, temperature, power)

    def close(self) -> None:
        if self._open:
            import pynvml

            self._open = False
            self._handles.clear()
            with suppress(pynvml.NVMLError):
                pynvml.nvmlShutdown()


def _handle(device: str) -> object:
    """The driver's own GPU for torch's number: CUDA_VISIBLE_DEVICES may count differently, the UUID does not."""
    import pynvml
    import torch

    number = int(device.partition(":")[2] or 0)
    uuid = getattr(torch.cuda.get_device_properties(number), "uuid", None)
    if uuid is not None:
        with suppress(pynvml.NVMLError):
            return pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}")
    return pynvml.nvmlDeviceGetHandleByIndex(number)
