"""The process's memory: giving back what nobody holds any more, and saying what it takes."""

from __future__ import annotations

import ctypes
import gc
import logging
import os
import sys
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from typing import Any

import psutil

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class DeviceMemory:
    """What this process has on one GPU, in bytes. `context_bytes` is what CUDA itself takes (its context, code and
    libraries' tables): it stays until the process ends. None where the driver does not say."""

    allocated_bytes: int
    reserved_bytes: int
    context_bytes: int | None


def release_memory() -> None:
    """Gives the memory of freed tensors back to the system: collects, empties CUDA's cache, trims the C heap."""
    gc.collect()
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        with suppress(RuntimeError):  # a lost GPU has nothing to give back
            torch.cuda.synchronize()
            forget = getattr(torch._C, "_cuda_clearCublasWorkspaces", None)
            if forget is not None:
                forget()  # 32 MiB for every stream that ever multiplied
            torch.cuda.empty_cache()
    trim = _malloc_trim()
    if trim is not None:
        trim(0)


def resident_bytes() -> int:
    """Memory of this process that is really there (RSS)."""
    return int(psutil.Process().memory_info().rss)


def device_memory() -> DeviceMemory | None:
    """What CUDA holds for this process on the current device; None while CUDA was not used."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return None
    try:
        index = torch.cuda.current_device()
        allocated, reserved = torch.cuda.memory_allocated(index), torch.cuda.memory_reserved(index)
        used = _driver_says(str(torch.cuda.get_device_properties(index).uuid))
    except RuntimeError:
        return None
    return DeviceMemory(allocated, reserved, None if used is None else max(0, used - reserved))


def _driver_says(uuid: str) -> int | None:
    """Bytes this process has on a GPU by the driver's count. Windows' display driver and containers do not say."""
    try:
        import pynvml
    except ImportError:
        return None
    try:
        pynvml.nvmlInit()
        try:
            handle = pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid.removeprefix('GPU-')}")
            for process in pynvml.nvmlDeviceGetComputeRunningProcesses(handle):
                if process.pid == os.getpid() and process.usedGpuMemory:
                    return int(process.usedGpuMemory)
        finally:
            pynvml.nvmlShutdown()
    except pynvml.NVMLError as error:
        log.debug("The driver does not say what this process uses: %s", error)
    return None


@cache
def _malloc_trim() -> Any:
    """glibc keeps freed small blocks for itself until it is asked; other systems have no such call."""
    if not sys.platform.startswith("linux"):
        return None
    with suppress(OSError, AttributeError):
        return ctypes.CDLL("libc.so.6").malloc_trim
    return None
