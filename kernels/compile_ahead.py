"""Compiles what a step will launch before it runs, on all cores: a first start waits for the slowest kernel, not for
the sum of all.

The step is gone through once with every operation idle: kernels are only compiled, each by a thread of its own (most of
the compiler does not hold Python's lock), torch's operations only make room for their results. Nothing runs on the
device, and nothing that the step has is changed. That is right for steps that can be captured, whose launches do not
depend on what tensors hold.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only
from triton.runtime.jit import JITFunction

try:
    from triton.runtime._async_compile import AsyncCompileMode
except ImportError:  # a Triton without it compiles kernels one by one, when they are launched
    AsyncCompileMode = None

log = logging.getLogger(__name__)

_MOST_THREADS = 8  # a step has about as many kernels, and whoever serves the page meanwhile waits for all of them


def compile_ahead(step: Callable[[], object], idle: TorchDispatchMode | None = None) -> bool:
    """Compiles the kernels of a step that can be captured; False if that did not work, which costs nothing but time."""
    if AsyncCompileMode is None:
        return False
    try:
        with (
            ThreadPoolExecutor(min(_MOST_THREADS, os.cpu_count() or 1), "compile") as pool,
            AsyncCompileMode(pool),
            only_compiling(),
            idle or Idle(),
        ):
            step()
    except Exception as error:  # the step itself will tell, if it fails as well
        log.debug("kernels are compiled one by one: %s", error)
        return False
    return True


@contextmanager
def only_compiling() -> Iterator[None]:
    """Within, this thread's launches compile and do no more."""
    run, owner = JITFunction.run, threading.get_ident()

    def compiled(self: JITFunction, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> Any:
        return run(self, *args, grid=grid, warmup=warmup or threading.get_ident() == owner, **kwargs)

    JITFunction.run = compiled
    try:
        yield
    finally:
        JITFunction.run = run


class Idle(TorchDispatchMode):
    """Operations of tensors give results of the right shape and do nothing. Views are views; what takes no tensor of a
    device, such as a table that is filled, is done."""

    def __init__(self, devices: tuple[str, ...] = ("cuda",)) -> None:
        super().__init__()
        self._devices = devices

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        device = self._device_of(args, kwargs)
        if func.is_view or device is None:
            return func(*args, **kwargs)
        if func._schema.is_mutable:
            return _written(func, args, kwargs)
        where = {"device": "meta"} if "device" in kwargs else {}
        flat = tree_map_only(Tensor, _as_meta, (args, {**kwargs, **where}))
        target = torch.device(kwargs["device"]) if kwargs.get("device") is not None else device
        return tree_map_only(Tensor, lambda made: _room(made, target), func(*flat[0], **flat[1]))

    def _device_of(self, args: Any, kwargs: Any) -> torch.device | None:
        tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        return next((tensor.device for tensor in tensors if tensor.device.type in self._devices), None)


def _as_meta(tensor: Tensor) -> Tensor:
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")


def _room(made: Tensor, device: torch.device) -> Tensor:
    return torch.empty_strided(made.shape, made.stride(), dtype=made.dtype, device=device)


def _written(func: Any, args: Any, kwargs: Any) -> Any:
    """What an operation that writes to its arguments returns: these."""
    arguments = func._schema.arguments
    given = dict(zip([argument.name for argument in arguments], args, strict=False)) | kwargs
    written = {
        _alias(argument): given[argument.name]
        for argument in arguments
        if argument.alias_info is not None and argument.alias_info.is_write
    }
    found = tuple(written[_alias(result)] for result in func._schema.returns)
    return found[0] if len(found) == 1 else found or None


def _alias(place: Any) -> str:
    return str(next(iter(place.alias_info.before_set)))
