"""What a model's weights would take in memory in each format: nothing is read and nothing allocated."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, get_args

if TYPE_CHECKING:
    import torch

    from octavo.engine.load.checkpoint import TensorInfo

PACKED = "packed"  # model.quantization's word for weights that stay as the checkpoint stores them


@dataclass(frozen=True, slots=True)
class Holding:
    """How weights are to be held: config.yaml's words for it, resolved. `free_bytes` is what they may take."""

    quantization: str
    quantize_head: bool
    device: torch.device
    dtype: torch.dtype
    fusion: bool
    free_bytes: int | None = None


def quantizations() -> tuple[str, ...]:
    """The values model.quantization can have, "none" first."""
    from octavo.app.config.schema import ModelSection

    names = get_args(ModelSection.model_fields["quantization"].annotation)
    return tuple(sorted(names, key=lambda name: name != "none"))


def weight_bytes(
    config: Mapping[str, Any], parameters: int, tensors: Mapping[str, TensorInfo] | None, held: Holding
) -> int:
    """Bytes of all weights on the device, as the engine counts them.

    `parameters` counts for architectures that run through their transformers class, `tensors` (None: not known) for
    checkpoints that are quantized themselves. Raises LoadError, CheckpointError or UnsupportedModelError.
    """
    from octavo.engine.errors import LoadError
    from octavo.engine.model.spec import has_own_decoder

    if has_own_decoder(config):
        return _decoder_bytes(config, tensors, held)
    if held.quantization not in ("none", PACKED):
        raise LoadError(
            f"Weights of the architecture {config.get('model_type')} cannot be held as {held.quantization!r}.",
            remedy="Set model.quantization to none.",
        )
    return parameters * held.dtype.itemsize


def count_parameters(config: Mapping[str, Any]) -> int | None:
    """How many numbers a model of Octavo's own decoder has; None for other architectures."""
    from math import prod

    from octavo.engine.model.parameters import part_shapes
    from octavo.engine.model.spec import ModelSpec, has_own_decoder

    if not has_own_decoder(config):
        return None
    return sum(prod(shape) for shape in part_shapes(ModelSpec.from_config(config)).values())


def _decoder_bytes(config: Mapping[str, Any], tensors: Mapping[str, TensorInfo] | None, held: Holding) -> int:
    import torch

    from octavo.engine.model.build import choose_ops
    from octavo.engine.model.families import plan_weights
    from octavo.engine.model.formats import FormatChoice
    from octavo.engine.model.parameters import Weights
    from octavo.engine.model.spec import ModelSpec

    spec, ops = ModelSpec.from_config(config), choose_ops(held.device, held.fusion)
    choice = FormatChoice(
        held.quantization,
        held.quantize_head,
        held.device,
        held.dtype,
        held.fusion,
        row_major=ops.reads_rows(spec, held.dtype),
    )
    if tensors is None:
        formats = choice.of_config()
    else:
        formats = choice.of_checkpoint(spec, plan_weights(spec, tensors), tensors, held.free_bytes)
    weights = Weights.allocate(
        spec,
        formats,
        device=torch.device("meta"),
        dtype=held.dtype,
        merged=held.fusion,
        float32_norms=ops.float32_norms,
    )
    return weights.size_bytes
