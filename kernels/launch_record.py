"""Launches of kernels noted in place of being made: which kernel, with which types, constants and options."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor
from triton.runtime.jit import JITFunction
from triton.tools.tensor_descriptor import TensorDescriptor


@dataclass(frozen=True, slots=True)
class Launch:
    """One recorded launch, in the form `triton.compile` takes; picklable, equal if it compiles to the same binary."""

    module: str
    kernel: str
    signature: tuple[tuple[str, str], ...]
    constants: tuple[tuple[str, object], ...]
    divisible: tuple[int, ...]  # arguments known to be multiples of 16
    options: tuple[tuple[str, object], ...]

    @property
    def function(self) -> JITFunction:
        module = sys.modules.get(self.module) or __import__(self.module, fromlist=["_"])
        return getattr(module, self.kernel)


@contextmanager
def recording(launches: dict[Launch, None]) -> Iterator[None]:
    """Within, launching a kernel only notes what would be compiled."""
    run = JITFunction.run

    def note(self: JITFunction, *args: object, grid: object, warmup: bool, **kwargs: object) -> None:
        launches[_describe(self, args, kwargs)] = None

    JITFunction.run = note
    try:
        yield
    finally:
        JITFunction.run = run


def _describe(kernel: JITFunction, args: tuple[object, ...], kwargs: dict[str, object]) -> Launch:
    """The specialization Triton's own launcher would make of these arguments."""
    names = list(inspect.signature(kernel.fn).parameters)
    options = {key: kwargs.pop(key) for key in list(kwargs) if key not in names}
    bound = inspect.signature(kernel.fn).bind(*args, **kwargs).arguments
    signature: list[tuple[str, str]] = []
    constants: list[tuple[str, object]] = []
    divisible: list[int] = []
    for index, (name, parameter) in enumerate(zip(names, kernel.params)):
        value = bound[name]
        if parameter.is_constexpr:
            kind = "constexpr"
        elif isinstance(value, Tensor):
            kind = "*" + _TYPE_NAMES[value.dtype]
            if not parameter.do_not_specialize_on_alignment:
                divisible.append(index)
        elif isinstance(value, TensorDescriptor):
            kind = f"tensordesc<{_TYPE_NAMES[value.base.dtype]}{list(value.block_shape)}>"
        elif hasattr(value, "block_shape"):  # of the layout language, which says how tiles lie in shared memory
            kind = f"tensordesc<{_TYPE_NAMES[value.base.dtype]}{list(value.block_shape)},{value.layout!r}>"
        elif isinstance(value, float):
            kind = "fp32"
        elif value == 1 and not parameter.do_not_specialize:
            kind = "constexpr"
        else:
            assert isinstance(value, int)
            kind = "i32" if -(2**31) <= value < 2**31 else "i64"
            if value % 16 == 0 and not parameter.do_not_specialize:
                divisible.append(index)
        signature.append((name, kind))
        if kind == "constexpr":
            constants.append((name, value))
    return Launch(
        kernel.fn.__module__,
        kernel.fn.__name__,
        tuple(signature),
        tuple(constants),
        tuple(divisible),
        tuple(sorted(options.items())),
    )


_TYPE_NAMES = {
    torch.int8: "i8",
    torch.int16: "i16",
    torch.float8_e4m3fn: "fp8e4nv",
    torch.float16: "fp16",
    torch.bfloat16: "bf16",
    torch.float32: "fp32",
    torch.int32: "i32",
    torch.int64: "i64",
    torch.uint8: "u8",
    torch.uint16: "u16",
}
