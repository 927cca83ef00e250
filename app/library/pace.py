"""Whether a model writes to one chat quicker or slower with its weights in a format than with them in 16 bit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

from octavo.app.library.weights import PACKED, Holding

if TYPE_CHECKING:
    from octavo.engine.load.checkpoint import TensorInfo
    from octavo.engine.model.spec import ModelSpec
    from octavo.engine.quant.base import Format

Pace = Literal["same", "quicker", "slower"]


def pace(config: Mapping[str, Any], tensors: Mapping[str, TensorInfo] | None, held: Holding) -> Pace:
    """What the kernels of the device make of it; for architectures of Octavo's own decoder.

    A step for a few chats takes as long as its weights take to be read: codes that a kernel reads as they are make it
    quicker, codes that are decoded first make it slower than 16 bit.
    """
    from octavo.engine.model.build import choose_ops
    from octavo.engine.model.compiled_weights import form_of
    from octavo.engine.model.ops import TextbookOps
    from octavo.engine.model.spec import ModelSpec
    from octavo.engine.quant.base import LinearSpec, Part
    from octavo.engine.quant.products import find_fused

    if held.quantization == "none":
        return "same"
    spec, ops = ModelSpec.from_config(config), choose_ops(held.device, held.fusion)
    if spec.experts is not None or isinstance(ops, TextbookOps):
        return "slower"
    sample = LinearSpec("sample", (Part("sample", spec.hidden_size),), spec.hidden_size)
    forms = _forms(spec, tensors, held, sample)
    if held.device.type == "cpu":
        is_read = ops.reads_rows(spec, held.dtype) and all(form_of(form) is not None for form in forms)
    else:
        is_read = all(find_fused(form, sample, held.dtype, held.device) is not None for form in forms)
    return "quicker" if forms and is_read else "slower"


def _forms(spec: ModelSpec, tensors: Mapping[str, TensorInfo] | None, held: Holding, sample: Any) -> set[Format]:
    """The formats that the linears of the layers would have."""
    from octavo.engine.model.families import plan_weights
    from octavo.engine.model.formats import packed_parts
    from octavo.engine.quant import weight_format

    if held.quantization != PACKED:
        form = weight_format(held.quantization, device=held.device, dtype=held.dtype, fusion=held.fusion)
        return {form.fitted(sample)}
    return set() if tensors is None else set(packed_parts(plan_weights(spec, tensors), tensors).values())
