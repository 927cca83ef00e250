"""What a model's weights would take in memory in each format, from its configuration alone: nothing is allocated."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, get_args

if TYPE_CHECKING:
    import torch

    from octavo.engine.model.spec import ModelSpec


def quantizations() -> tuple[str, ...]:
    """The values model.quantization can have, "none" first."""
    from octavo.app.config.schema import ModelSection

    names = get_args(ModelSection.model_fields["quantization"].annotation)
    return tuple(sorted(names, key=lambda name: name != "none"))


def weight_bytes(
    config: Mapping[str, Any],
    parameters: int,
    *,
    quantization: str,
    device: torch.device,
    dtype: torch.dtype,
    fusion: bool,
) -> int:
    """Bytes of all weights on the device.

    `parameters` counts for architectures that run through their transformers class; Octavo's own decoder is measured
    part by part. Raises LoadError or UnsupportedModelError for what cannot be.
    """
    from octavo.engine.errors import LoadError
    from octavo.engine.model.spec import ModelSpec, has_own_decoder

    if has_own_decoder(config):
        return _decoder_bytes(ModelSpec.from_config(config), quantization, device, dtype, fusion)
    if quantization != "none":
        raise LoadError(
            f"Weights of the architecture {config.get('model_type')} cannot be held as {quantization!r}.",
            remedy="Set model.quantization to none.",
        )
    return parameters * dtype.itemsize


def count_parameters(config: Mapping[str, Any]) -> int | None:
    """How many numbers a model of Octavo's own decoder has; None for other architectures."""
    from math import prod

    from octavo.engine.model.parameters import part_shapes
    from octavo.engine.model.spec import ModelSpec, has_own_decoder

    if not has_own_decoder(config):
        return None
    return sum(prod(shape) for shape in part_shapes(ModelSpec.from_config(config)).values())


def _decoder_bytes(spec: ModelSpec, quantization: str, device: torch.device, dtype: torch.dtype, fusion: bool) -> int:
    """Matrices by their format; the embedding, norms, routers and biases in the compute dtype. The head is quantized
    only on request, so it is counted as it is stored without."""
    from octavo.engine.model.parameters import part_shapes
    from octavo.engine.quant import weight_format
    from octavo.engine.quant.base import LinearSpec, Part

    linears = weight_format(quantization, device=device, dtype=dtype, fusion=fusion)
    plain = weight_format("none", device=device, dtype=dtype, fusion=fusion)
    shapes, total = part_shapes(spec), 0

    def linear(name: str, shape: tuple[int, ...]) -> LinearSpec:
        experts = shape[0] if len(shape) == 3 else None
        return LinearSpec(name, (Part(name, shape[-2]),), shape[-1], experts=experts)

    for name, shape in shapes.items():
        base = name.rpartition(".")[0]
        if base == "embed" or len(shape) == 1 or base.endswith("router"):
            count = 1
            for size in shape:
                count *= size
            total += count * dtype.itemsize
        else:
            total += (plain if base == "head" else linears).bytes(linear(base, shape), dtype)
    if spec.tied and not plain.shares_embedding:
        total += plain.bytes(linear("head", shapes["embed.weight"]), dtype)
    return total
