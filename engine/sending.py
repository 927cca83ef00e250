"""Large tensors from the host to a device, without a wait for each of them: how weights are loaded.

A copy from page-locked memory is only queued, and runs at the rate of the bus while the next tensor is read. torch
keeps such memory from being used again before nobody holds the tensor and the copies from it have ended, so nobody here
must know who still reads what.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

import torch
from torch import Tensor

PINNED_BYTES = 256 << 20  # of one tensor: the system has little page-locked memory to give
QUEUED_BYTES = 128 << 20  # of copies that wait in a device's queue while weights are loaded
PIECE_BYTES = 32 << 20  # of pageable memory that goes to a device through page-locked memory at a time
PIECES = 4  # of them on their way


def host_room(shape: Sequence[int], dtype: torch.dtype, pinned: bool) -> Tensor:
    """An empty host tensor; in page-locked memory if `pinned`, unless it is larger than PINNED_BYTES or the system has
    no more to give."""
    if pinned and math.prod(shape) * dtype.itemsize <= PINNED_BYTES:
        try:
            return torch.empty(tuple(shape), dtype=dtype, pin_memory=True)
        except RuntimeError:  # the system's limit, or its memory
            pass
    return torch.empty(tuple(shape), dtype=dtype)


def send(target: Tensor, source: Tensor) -> None:
    """target.copy_(source). From the host to a CUDA device the copy is only queued: of pageable memory in pieces, each
    brought to page-locked memory while the device takes those before it."""
    if target.device.type != "cuda" or source.device.type != "cpu":
        target.copy_(source)
        return
    size = source.numel() * source.element_size()
    if size <= PIECE_BYTES or source.dtype != target.dtype or source.is_pinned():
        target.copy_(source, non_blocking=True)
        return
    backlog = Backlog(target.device, PIECES)
    for begin, end in pieces(source.shape[0], size):
        target[begin:end].copy_(source[begin:end].pin_memory(), non_blocking=True)
        backlog.add(1)


def pieces(rows: int, size_bytes: int) -> list[tuple[int, int]]:
    """Runs of rows, of PIECE_BYTES each, of so many rows of so many bytes altogether."""
    step = max(1, PIECE_BYTES * rows // size_bytes)
    return [(begin, min(begin + step, rows)) for begin in range(0, rows, step)]


class Marker(Protocol):
    """What tells that all before it has been done: a recorded torch.cuda.Event."""

    def synchronize(self) -> None: ...


class Backlog:
    """Bounds what is queued from page-locked memory: `add` waits until at most `limit` is on its way, in whatever unit
    sizes are given. On the CPU nothing is ever on its way."""

    def __init__(self, device: torch.device, limit: int, mark: Callable[[], Marker] | None = None) -> None:
        self._limit = limit
        self._held = 0
        self._queued: deque[tuple[int, Marker]] = deque()
        self._mark = mark or (_recorded if device.type == "cuda" else None)

    def add(self, size: int) -> None:
        """So much has just been queued."""
        if self._mark is None:
            return
        self._queued.append((size, self._mark()))
        self._held += size
        while self._held > self._limit and len(self._queued) > 1:
            done, marker = self._queued.popleft()
            marker.synchronize()
            self._held -= done


def _recorded() -> Marker:
    event = torch.cuda.Event(blocking=True)
    event.record()
    return event


def settle(device: torch.device) -> None:
    """Waits for all queued copies, and gives the page-locked memory that they came from back to the system."""
    if device.type != "cuda":
        return
    torch.cuda.synchronize(device)
    if hasattr(torch.accelerator, "empty_host_cache"):
        torch.accelerator.empty_host_cache()
