"""Which kernels multiply by a weight: tables that kernels enter and weights look into when a model is loaded.

An entry is keyed by the layout of the weight (see `layout_of`), how many rows it is made for and what the hardware must
have. Where no entry fits, `Format.linear` runs: the reference in torch. A product with what stands around it (norm
before, bias, gated activation, residual after) is one kernel in every combination of these, so that there is no entry a
combination but one for the weight: `Fused` gives it in the form that kernels/skinny_linear.py takes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import torch

from octavo.engine.quant.base import ROW_BUCKETS, Format, LinearSpec, Packed
from octavo.engine.quant.blocks import BlockFormat
from octavo.engine.quant.grouped import GroupedFormat
from octavo.engine.quant.joined import JoinedFormat
from octavo.kernels.quant_weight import CodedWeight

Run = Callable[..., Any]
Fits = Callable[[Format, LinearSpec, torch.dtype], bool]


@dataclass(frozen=True, slots=True)
class Product:
    """One kernel: `run(x, packed)` does what Format.linear does."""

    run: Run
    layout: str
    device: str  # cpu or cuda
    rows: tuple[int, int | None] = (1, None)  # fewest and most, None: any number
    capability: tuple[int, int] = (0, 0)  # the least that a CUDA device must have
    fits: Fits = lambda form, spec, dtype: True

    def serves(self, bucket: int) -> bool:
        """Whether it takes all row counts of a bucket."""
        least = ROW_BUCKETS[bucket - 1] + 1 if bucket else 1
        most = ROW_BUCKETS[bucket] if bucket < len(ROW_BUCKETS) else None
        return self.rows[0] <= least and (self.rows[1] is None or (most is not None and most <= self.rows[1]))


@dataclass(frozen=True, slots=True)
class Fused:
    """Weights that the kernels for few rows read as they are, with what stands around a product in the same launch."""

    view: Callable[[Format, Packed], CodedWeight]
    layout: str
    device: str
    fits: Fits = lambda form, spec, dtype: True


_TABLE: list[Product] = []
_FUSED: list[Fused] = []
# modules that enter their kernels when they are imported
_KERNELS = {
    "cpu": ("octavo.engine.quant.cpu_int",),
    "cuda": (
        "octavo.engine.quant.gpu_codes",
        "octavo.engine.quant.gpu_tables",
        "octavo.engine.quant.gpu_blocks",  # without this line, GGUF blocks are decoded for every product
    ),
}


def register(entry: Product | Fused) -> None:
    """Enters a kernel; of several that fit, the one entered last is taken."""
    if isinstance(entry, Fused):
        _FUSED.append(entry)
    else:
        _TABLE.append(entry)


def layout_of(form: Format) -> str:
    """What kernels tell weights apart by: the code of grouped formats, the type of GGUF blocks, else the name."""
    if isinstance(form, GroupedFormat):
        return form.code.name
    return f"gguf-{form.kind}" if isinstance(form, BlockFormat) else form.name


def find(form: Format, spec: LinearSpec, dtype: torch.dtype, device: torch.device, bucket: int) -> Product | None:
    """The kernel for a weight and a bucket of rows, if there is one."""
    _enter(device)
    layout = layout_of(form)
    able = torch.cuda.get_device_capability(device) if device.type == "cuda" else (0, 0)
    for product in reversed(_TABLE):
        if (product.layout, product.device) != (layout, device.type):
            continue
        if product.capability <= able and product.serves(bucket) and product.fits(form, spec, dtype):
            return product
    return None


def find_all(form: Format, spec: LinearSpec, dtype: torch.dtype, device: torch.device) -> tuple[Run | None, ...]:
    """The plain product for every bucket of rows; nothing at all if there is none for any."""
    found = [find(form, spec, dtype, device, bucket) for bucket in range(len(ROW_BUCKETS) + 1)]
    return tuple(one.run if one else None for one in found) if any(found) else ()


def find_fused(form: Format, spec: LinearSpec, dtype: torch.dtype, device: torch.device) -> Fused | None:
    """How kernels with what stands around a product read such a weight, if they do."""
    _enter(device)
    layout = layout_of(form)
    for entry in reversed(_FUSED):
        if (entry.layout, entry.device) == (layout, device.type) and entry.fits(form, spec, dtype):
            return entry
    return None


def choose(form: Format, packed: Packed, spec: LinearSpec, device: torch.device) -> None:
    """Gives a filled linear, or each of its pieces, the kernels for its rows."""
    if isinstance(form, JoinedFormat):
        for piece, held, one in zip(form.pieces, packed.pieces, form.specs(spec)):
            choose(piece, held, one, device)
    elif spec.experts is None:
        fused = find_fused(form, spec, packed.dtype, device)
        packed.fused = None if fused is None else fused.view(form, packed)
        packed.products = find_all(form, spec, packed.dtype, device)


def _enter(device: torch.device) -> None:
    for module in _KERNELS.get(device.type, ()):
        import_module(module)
