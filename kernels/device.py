"""What the launch code must know of a device to choose tiles: a few figures, never a card's name."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache

import torch


@dataclass(frozen=True, slots=True)
class DeviceTraits:
    """`capability` is 10 * major + minor; `shared_bytes` the most shared memory one block may ask for."""

    capability: int
    multiprocessors: int
    shared_bytes: int

    @property
    def tensor_cores(self) -> bool:
        """Whether Triton's dot reaches tensor cores in 16 bit; below 8.0 it becomes plain multiply-adds."""
        return self.capability >= 80


# Away from a GPU (Triton's interpreter, compiling ahead) nothing can be asked; few multiprocessors keep grids small.
NO_DEVICE = DeviceTraits(capability=90, multiprocessors=4, shared_bytes=232448)

_override: list[DeviceTraits] = []


def device_traits(device: torch.device) -> DeviceTraits:
    """The traits of a CUDA device, or those of `as_device` where it is active."""
    if _override:
        return _override[-1]
    if device.type != "cuda":
        return NO_DEVICE
    return _cuda_traits(torch.cuda.current_device() if device.index is None else device.index)


@lru_cache(maxsize=16)
def _cuda_traits(index: int) -> DeviceTraits:
    properties = torch.cuda.get_device_properties(index)
    return DeviceTraits(
        capability=10 * properties.major + properties.minor,
        multiprocessors=properties.multi_processor_count,
        shared_bytes=getattr(properties, "shared_memory_per_block_optin", properties.shared_memory_per_block),
    )


@contextmanager
def as_device(traits: DeviceTraits) -> Iterator[None]:
    """Launch code chooses as on a device with these traits; for compiling ahead and for tests."""
    _override.append(traits)
    try:
        yield
    finally:
        _override.pop()
