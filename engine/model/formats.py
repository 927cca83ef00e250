"""Where `quantization` becomes a format for every part of a model, and why.

"none" does not mean that packed weights are always expanded: where every product with them has a kernel they stay as
the checkpoint stores them, and also where they would not fit otherwise. "packed" keeps them in any case.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

import torch

from octavo.engine.load.checkpoint import TensorInfo
from octavo.engine.model.compiled_weights import form_of
from octavo.engine.model.families import WeightPlan, parameter_count
from octavo.engine.model.parameters import Formats, part_shapes
from octavo.engine.model.spec import ModelSpec
from octavo.engine.quant import PACKED, weight_format
from octavo.engine.quant.base import Format, LinearSpec, Part
from octavo.engine.quant.plain import PlainFormat
from octavo.engine.quant.products import find_all

log = logging.getLogger(__name__)

_SHARE_FOR_WEIGHTS = 0.85  # of the memory that is free; the rest is for keys, values and activations


@dataclass(frozen=True, slots=True)
class FormatChoice:
    """What was asked for, and on what it is to run."""

    quantization: str
    quantize_head: bool
    device: torch.device
    dtype: torch.dtype
    fusion: bool
    row_major: bool = False  # plain weights are wanted in rows

    def of_config(self) -> Formats:
        """For weights that come from no checkpoint. Raises LoadError for an unknown format."""
        plain = self._plain()
        if self.quantization in ("none", PACKED):
            return Formats(plain, plain)
        linears = weight_format(self.quantization, device=self.device, dtype=self.dtype, fusion=self.fusion)
        return Formats(linears, linears if self.quantize_head else plain, notices=self._warnings(linears))

    def _warnings(self, form: Format) -> tuple[str, ...]:
        """What a user should know who chose a format for its speed."""
        sample = LinearSpec("sample", (Part("sample", 1024),), 1024)
        if not form.decodes(self.device) or (self.fusion and self._served(form.fitted(sample), sample)):
            return ()
        if self.row_major and form_of(form.fitted(sample)) is not None:  # by the kernels that also want plain rows
            return ()
        place = "the CPU" if self.device.type == "cpu" else "this GPU"
        return (
            f"Weights in {self.quantization} save memory but are slow on {place}: no kernel multiplies by them there, "
            "so every step decodes them.",
        )

    def _plain(self) -> Format:
        if self.row_major:
            return PlainFormat()
        return weight_format("none", device=self.device, dtype=self.dtype, fusion=self.fusion)

    def of_checkpoint(
        self, spec: ModelSpec, plan: WeightPlan, tensors: Mapping[str, TensorInfo], free_bytes: int | None = None
    ) -> Formats:
        """For a checkpoint's weights; raises as `of_config`."""
        formats = self.of_config()
        if self.quantization not in ("none", PACKED):
            return formats
        held = packed_parts(plan, tensors)
        if not held:
            return formats
        kinds = ", ".join(sorted({form.name for form in held.values()}))
        if self.quantization == PACKED:
            return Formats(formats.linears, formats.head, held)
        if self.fusion and self._has_kernels(spec, held):
            log.info("weights stay packed (%s): their products have kernels", kinds)
            return Formats(formats.linears, formats.head, held)
        needed = parameter_count(spec) * self.dtype.itemsize
        if free_bytes is None or needed <= free_bytes * _SHARE_FOR_WEIGHTS:
            log.info("weights (%s) are expanded to %s", kinds, self.dtype)
            return formats
        notice = (
            f"The weights stay packed ({kinds}): as {str(self.dtype).removeprefix('torch.')} they would take "
            f"{needed / 2**30:.1f} GiB of the {free_bytes / 2**30:.1f} GiB that are free. This is slower."
        )
        log.warning("%s", notice)
        return Formats(formats.linears, formats.head, held, (notice,))

    def _has_kernels(self, spec: ModelSpec, held: Mapping[str, Format]) -> bool:
        """Whether each packed part is multiplied by a kernel at every number of rows."""
        shapes = part_shapes(spec)
        for part, form in held.items():
            shape = shapes[f"{part}.weight"]
            experts = shape[0] if len(shape) == 3 else None
            linear = LinearSpec(part, (Part(part, shape[-2]),), shape[-1], experts=experts)
            if experts is not None or not self._served(form, linear):
                return False
        return True

    def _served(self, form: Format, linear: LinearSpec) -> bool:
        found = find_all(form, linear, self.dtype, self.device)
        return bool(found) and None not in found


def packed_parts(plan: WeightPlan, tensors: Mapping[str, TensorInfo]) -> dict[str, Format]:
    """The parts (without ".weight") that can stay as they are stored; of a stack of experts, only all or none."""
    held: dict[str, Format] = {}
    plain: set[str] = set()
    for name, source in plan.sources.items():
        form = tensors[name].held
        for part in source.parts:
            base = part.removesuffix(".weight")
            if not part.endswith(".weight") or base.endswith(".router"):
                continue
            if form is None or held.setdefault(base, form) != form:
                plain.add(base)
    together = [{part.removesuffix(".weight") for part in source.parts} for source in plan.sources.values()]
    for parts in together:  # a tensor is streamed as a whole, one way or the other
        if parts & plain:
            plain |= parts
    return {part: form for part, form in held.items() if part not in plain}


def weight_bytes(formats: Formats, spec: ModelSpec, dtype: torch.dtype) -> int:
    """Memory that weights in these formats take, norms and biases left out; what an estimate needs before loading."""
    total = 0
    for part, shape in part_shapes(spec).items():
        if len(shape) < 2 or part.endswith("router.weight"):
            continue
        base = part.removesuffix(".weight")
        experts = shape[0] if len(shape) == 3 else None
        linear = LinearSpec(base, (Part(base, shape[-2]),), shape[-1], experts=experts)
        if base == "embed" and "embed" not in formats.held:
            total += prod(shape) * dtype.itemsize
            if spec.tied and formats.head.name != "none":
                total += formats.head.fitted(linear).bytes(linear, dtype)
            continue
        form = formats.held.get(base, formats.head if base == "head" else formats.linears)
        total += form.fitted(linear).bytes(linear, dtype)
    return total
