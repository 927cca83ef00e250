"""Tensors that only say they are on a GPU, where torch was built without CUDA."""

from __future__ import annotations

import ctypes
from pathlib import Path

import pytest
import torch
from torch._C._autograd import DeviceType

_REGISTRY = "_ZN3c104impl26device_guard_impl_registryE"  # c10/core/impl/DeviceGuardImplInterface.h


def let_device_be_switched() -> None:
    """A torch with CUDA lets the device of tensors without storage be switched to where there is no GPU; one without
    CUDA is taught the same here, or the test is skipped."""
    if torch.version.cuda is not None:
        return
    try:
        library = ctypes.CDLL(str(next((Path(torch.__file__).parent / "lib").glob("libc10.*"))))
        registry = (ctypes.c_void_p * 16).in_dll(library, _REGISTRY)
    except (OSError, ValueError, StopIteration):
        pytest.skip("this build of torch keeps its devices elsewhere")
    registry[int(DeviceType.CUDA)] = registry[int(DeviceType.Meta)]
