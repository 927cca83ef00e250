"""What launches would have compiled, noted as jobs that another process can do: it leaves the binary in Triton's cache.

Triton itself describes each launch: its own code runs up to the call of the compiler, on a driver that knows nothing
but the generation, and what the compiler is called with is the job. So a job ends under the very key at which the
launch will look, whichever version of Triton is at work. Tensors need no storage: one that begins a storage counts as
aligned, as the allocators of devices have it, and a view as aligned as its offset is.

Noting replaces parts of Triton: it is for a process that launches nothing itself, as is compiling.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import torch
import triton.compiler
from torch import Tensor
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.runtime.driver import driver
from triton.runtime.jit import JITFunction

WARP = 32
_NOTING = -1  # a device that no launch has


@dataclass(frozen=True, slots=True)
class CompileJob:
    """One call of Triton's compiler, picklable: a kernel by its place, the rest as Triton says it."""

    module: str
    kernel: str
    signature: Mapping[str, Any]
    constants: Mapping[tuple[int, ...], Any]
    attributes: Mapping[tuple[int, ...], Any]
    options: Mapping[str, Any]
    capability: int

    @property
    def name(self) -> str:
        """Tells jobs apart."""
        parts = (self.signature, self.constants, self.attributes, self.options)
        return repr((self.module, self.kernel, *(sorted(part.items()) for part in parts)))

    @property
    def target(self) -> GPUTarget:
        return GPUTarget("cuda", self.capability, WARP)

    def source(self) -> ASTSource:
        """The program, as the launcher hands it to the compiler."""
        kernel = getattr(import_module(self.module), self.kernel)
        return _language(kernel)(kernel, dict(self.signature), dict(self.constants), dict(self.attributes))


@contextmanager
def noting_jobs(capability: int, note: Callable[[CompileJob], None]) -> Iterator[None]:
    """Within, launching a kernel only calls `note` with what would be compiled, once for each kernel and kind of
    arguments."""
    target = GPUTarget("cuda", capability, WARP)
    run, compiler, active = JITFunction.run, triton.compiler.compile, driver._active
    touched: dict[int, JITFunction] = {}

    def describe(self: JITFunction, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> None:
        touched[id(self)] = self
        places = {name: _place_of(value) for name, value in kwargs.items()}
        run(self, *map(_place_of, args), grid=grid, warmup=True, **places)

    def compile_noted(source: ASTSource, target: GPUTarget, options: Mapping[str, Any]) -> object:
        kernel = source.fn
        described = (source.signature, source.constants, source.attrs, dict(options))
        note(CompileJob(kernel.__module__, kernel.__name__, *described, capability))
        return note  # for Triton to remember that this launch is known

    JITFunction.run, triton.compiler.compile = describe, compile_noted
    driver.set_active(_Target(target))
    try:
        yield
    finally:
        JITFunction.run, triton.compiler.compile, driver._active = run, compiler, active
        for kernel in touched.values():
            kernel.device_caches.pop(_NOTING, None)
            kernel.compile = compiler


def compile_job(job: CompileJob) -> None:
    """Compiles into Triton's cache of files, unless the binary is there already. Raises what the compiler raises."""
    compiled = triton.compiler.compile(job.source(), target=job.target, options=dict(job.options))
    with suppress(Exception):  # what stays undone here is done at the launch
        _compile_launcher(compiled)


def _compile_launcher(compiled: Any) -> None:
    """Triton before 3.7 has a C compiler make a launcher for every signature, which it keeps in the same cache."""
    from triton.backends.nvidia import driver as nvidia

    if hasattr(nvidia, "make_launcher"):
        nvidia.CudaLauncher(compiled.src, compiled.metadata)


def _language(kernel: JITFunction) -> type[ASTSource]:
    if not kernel.is_gluon():
        return ASTSource
    from triton.experimental.gluon._runtime import GluonASTSource

    return GluonASTSource


class _Target:
    """A driver that knows for what to compile."""

    def __init__(self, target: GPUTarget) -> None:
        self._target = target

    def get_current_target(self) -> GPUTarget:
        return self._target

    def get_current_device(self) -> int:
        return _NOTING

    def get_current_stream(self, device: int) -> int:
        return 0


class _Place:
    """A tensor as launches see it: its type, and an address that is aligned as the tensor is."""

    __slots__ = ("_at", "dtype")

    def __init__(self, tensor: Tensor) -> None:
        self.dtype: torch.dtype = tensor.dtype
        self._at = int(tensor.storage_offset()) * tensor.element_size()

    def data_ptr(self) -> int:
        return self._at


def _place_of(value: Any) -> Any:
    return _Place(value) if isinstance(value, Tensor) else value
