"""What this machine has, asked without importing torch: processor, memory, NVIDIA GPUs."""

from __future__ import annotations

import platform
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from octavo.app.config import format_size


@dataclass(frozen=True, slots=True)
class Gpu:
    """One NVIDIA GPU as its driver describes it; memory in bytes."""

    index: int
    name: str
    total_bytes: int
    free_bytes: int

    def __str__(self) -> str:
        memory = f"{format_size(self.free_bytes)} of {format_size(self.total_bytes)} free"
        return f"GPU {self.index}: {self.name}, {memory}"


@dataclass(frozen=True, slots=True)
class Hardware:
    """Processor, memory in bytes, GPUs; `driver` is the NVIDIA driver's version, `gpu_problem` why none was found."""

    processor: str
    cores: int
    total_bytes: int
    free_bytes: int
    gpus: tuple[Gpu, ...] = ()
    driver: str | None = None
    gpu_problem: str | None = None


def look() -> Hardware:
    """The hardware as it is now. Never fails."""
    memory = psutil.virtual_memory()
    gpus, driver, problem = _nvidia()
    cores = psutil.cpu_count(logical=False) or psutil.cpu_count() or 1
    return Hardware(_processor(), cores, memory.total, memory.available, gpus, driver, problem)


def _nvidia() -> tuple[tuple[Gpu, ...], str | None, str | None]:
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        if isinstance(error, pynvml.NVMLError_LibraryNotFound):
            return (), None, "no NVIDIA driver was found"
        return (), None, f"the NVIDIA driver does not answer ({error})"
    try:
        driver = pynvml.nvmlSystemGetDriverVersion()
        gpus = []
        for index in range(pynvml.nvmlDeviceGetCount()):
            handle = pynvml.nvmlDeviceGetHandleByIndex(index)
            memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
            gpus.append(Gpu(index, pynvml.nvmlDeviceGetName(handle), int(memory.total), int(memory.free)))
        return tuple(gpus), driver, None if gpus else "the NVIDIA driver knows no GPU"
    except pynvml.NVMLError as error:
        return (), None, f"the NVIDIA driver does not answer ({error})"
    finally:
        with suppress(pynvml.NVMLError):
            pynvml.nvmlShutdown()


def _processor() -> str:
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
