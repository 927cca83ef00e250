"""Starting a kernel while the one before it still runs, and reading weights into L2 meanwhile.

From compute capability 9.0 on, a kernel launched with `launch_pdl=True` may begin as soon as every program of the
kernel before it has called `gdc_launch_dependents` or ended; `gdc_wait` then waits until all that kernel's writes can
be seen (CUDA C++ Programming Guide, "Programmatic Dependent Launch"). What a kernel reads before it waits must be
written by no kernel of the step: weights. Every kernel launched so must wait, or a later one could overtake it.
"""

# mypy: disallow-untyped-defs=False, check-untyped-defs=False, allow-untyped-calls=True

from __future__ import annotations

import torch
import triton
import triton.language as tl

from octavo.kernels.device import device_traits


def launches_early(device: torch.device) -> bool:
    """Whether kernels may be launched with `launch_pdl=True` on this device (never under the interpreter)."""
    return device.type != "cpu" and device_traits(device).capability >= 90


@triton.jit
def prefetch_lines(pointers):
    """Asks for the cache line of each pointer to be brought into L2."""
    tl.inline_asm_elementwise(
        "prefetch.global.L2 [$1]; mov.u32 $0, 0;", "=r,l", [pointers], dtype=tl.int32, is_pure=False, pack=1
    )


@triton.jit
def once_there(value, EARLY: tl.constexpr):
    """An int32, given when `gdc_wait` would return: what is loaded from an address made of it is loaded after that.

    For loops whose loads go ahead, where `gdc_wait` itself inside would keep loads from doing so, and before the loop
    would hold up those of weights as well.
    """
    if not EARLY:
        return value
    return tl.inline_asm_elementwise(
        "griddepcontrol.wait; mov.b32 $0, $1;", "=r,r", [value], dtype=tl.int32, is_pure=True, pack=1
    )
