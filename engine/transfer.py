"""Moving small things between host and device without making either wait for the other."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


def upload(values: Sequence[float] | NDArray[np.generic], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Host values as a tensor on the device. On CUDA the copy is only queued: one from memory that is not pinned would
    wait for all work before it."""
    if device.type != "cuda":
        return torch.as_tensor(values, dtype=dtype, device=device)
    return torch.as_tensor(values, dtype=dtype).pin_memory().to(device, non_blocking=True)


class Stopwatch:
    """Seconds that the device needs for what is queued from now on until a download; None where nobody can tell."""

    def __init__(self, device: torch.device) -> None:
        self._begin: torch.cuda.Event | None = None
        if device.type == "cuda":
            self._begin = torch.cuda.Event(enable_timing=True)
            self._begin.record()

    def seconds(self, until: Download) -> float | None:
        """The download must have been waited for."""
        if self._begin is None or until.event is None:
            return None
        return self._begin.elapsed_time(until.event) / 1000


class Download:
    """Tensors on their way to the host; `wait` gives them once they have arrived. On the CPU they are there already."""

    def __init__(self, tensors: Sequence[Tensor | None]) -> None:
        first = next((tensor for tensor in tensors if tensor is not None), None)
        self.event: torch.cuda.Event | None = None
        if first is None or first.device.type != "cuda":
            self._tensors = list(tensors)
            return
        self._tensors = [None if tensor is None else _queued(tensor) for tensor in tensors]
        # a waiting thread sleeps: the page needs the processor too
        self.event = torch.cuda.Event(enable_timing=True, blocking=True)
        self.event.record()

    def done(self) -> bool:
        """Whether `wait` would return at once."""
        return self.event is None or self.event.query()

    def wait(self) -> list[Tensor | None]:
        """The tensors on the host."""
        if self.event is not None:
            self.event.synchronize()
        return self._tensors


def _queued(tensor: Tensor) -> Tensor:
    host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
    return host.copy_(tensor, non_blocking=True)
