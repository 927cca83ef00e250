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


class Download:
    """Tensors on their way to the host; `wait` gives them once they have arrived. On the CPU they are there already."""

    def __init__(self, tensors: Sequence[Tensor | None]) -> None:
        first = next((tensor for tensor in tensors if tensor is not None), None)
        self._event: torch.cuda.Event | None = None
        if first is None or first.device.type != "cuda":
            self._tensors = list(tensors)
            return
        self._tensors = [None if tensor is None else _queued(tensor) for tensor in tensors]
        self._event = torch.cuda.Event(blocking=True)  # a waiting thread sleeps: the page needs the processor too
        self._event.record()

    def wait(self) -> list[Tensor | None]:
        """The tensors on the host."""
        if self._event is not None:
            self._event.synchronize()
        return self._tensors


def _queued(tensor: Tensor) -> Tensor:
    host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
    return host.copy_(tensor, non_blocking=True)
