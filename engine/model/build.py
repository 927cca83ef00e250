"""From a checkpoint, or from a config alone, to a model on its device."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch

from octavo.engine.errors import LoadError, ModelConfigError, UnsupportedModelError
from octavo.engine.load.checkpoint import Checkpoint
from octavo.engine.load.rounded_cache import RoundedCache
from octavo.engine.model.base import CausalModel
from octavo.engine.model.decoder import Decoder
from octavo.engine.model.families import plan_weights
from octavo.engine.model.fill import Progress, fill
from octavo.engine.model.formats import FormatChoice
from octavo.engine.model.mixes import MIXES, mixed_parts
from octavo.engine.model.ops import Ops, TextbookOps
from octavo.engine.model.parameters import Formats, Weights
from octavo.engine.model.rotary import cos_sin_table
from octavo.engine.model.spec import ADD_LENGTH, FAMILIES_HINT, ModelSpec, has_own_decoder

log = logging.getLogger(__name__)


def build_model(
    checkpoint: Checkpoint,
    *,
    device: torch.device | str,
    dtype: torch.dtype,
    context_length: int,
    fusion: bool,
    quantization: str = "none",
    quantize_head: bool = False,
    progress: Progress | None = None,
    rounded: RoundedCache | None = None,
    free_bytes: int | None = None,
) -> CausalModel:
    """Checks every header, allocates on the device, then streams the tensors into place one by one. `rounded` keeps
    what was rounded for the next time. What would not fit into `free_bytes` as plain numbers stays packed.

    Families without a decoder of ours run through their transformers class. Raises UnsupportedModelError or
    CheckpointError before any weight is allocated, LoadError for an unknown format.
    """
    if not has_own_decoder(checkpoint.config):
        _check_foreign(checkpoint.config, quantization)
        from octavo.engine.model.foreign import build_foreign

        return build_foreign(checkpoint, device=device, dtype=dtype, context_length=context_length, progress=progress)
    spec = ModelSpec.from_config(checkpoint.config)
    plan = plan_weights(spec, checkpoint.tensors)
    device = torch.device(device)
    ops = choose_ops(device, fusion)
    choice = FormatChoice(quantization, quantize_head, device, dtype, fusion, ops.reads_rows(spec, dtype))
    formats = choice.of_checkpoint(spec, plan, checkpoint.tensors, free_bytes)
    weights = _allocate(spec, ops, formats, device, dtype, fusion)
    with torch.inference_mode():
        settings = (quantization, quantize_head, dtype, fusion, ops.interleaved_rope)  # what the planes depend on
        fill(weights, checkpoint, plan, dtype, progress, rounded, settings)
        weights.finish()
    name = checkpoint.path.stem if checkpoint.path.is_file() else checkpoint.path.name
    model = _assemble(spec, weights, ops, name, device, dtype, context_length)
    model.notices += formats.notices
    return model


def build_random(
    config: Mapping[str, Any],
    *,
    device: torch.device | str,
    dtype: torch.dtype,
    context_length: int,
    fusion: bool,
    quantization: str = "none",
    quantize_head: bool = False,
    seed: int = 0,
) -> Decoder:
    """A model of a config's shape with N(0, 0.02) weights made on the device, for benchmarks. `quantization` may also
    name a mixture of GGUF types (mixes.py)."""
    spec = ModelSpec.from_config(config)
    device = torch.device(device)
    ops = choose_ops(device, fusion)
    formats = _random_formats(spec, ops, device, dtype, fusion, quantization, quantize_head)
    weights = _allocate(spec, ops, formats, device, dtype, fusion)
    generator = torch.Generator(device=device).manual_seed(seed)
    with torch.inference_mode():
        weights.randomize(generator)
    return _assemble(spec, weights, ops, spec.family, device, dtype, context_length)


def build_hollow(
    source: Checkpoint | Mapping[str, Any],
    *,
    device: torch.device,
    dtype: torch.dtype,
    context_length: int,
    fusion: bool,
    quantization: str = "none",
    quantize_head: bool = False,
    free_bytes: int | None = None,
) -> Decoder:
    """The model that `build_model` makes of a checkpoint, or `build_random` of a config, before anything is filled in:
    for going through its steps where tensors have no storage."""
    config = source.config if isinstance(source, Checkpoint) else source
    spec = ModelSpec.from_config(config)
    ops = choose_ops(device, fusion)
    if isinstance(source, Checkpoint):
        choice = FormatChoice(quantization, quantize_head, device, dtype, fusion, ops.reads_rows(spec, dtype))
        formats = choice.of_checkpoint(spec, plan_weights(spec, source.tensors), source.tensors, free_bytes)
    else:
        formats = _random_formats(spec, ops, device, dtype, fusion, quantization, quantize_head)
    weights = _allocate(spec, ops, formats, device, dtype, fusion)
    weights.finish()
    return _assemble(spec, weights, ops, spec.family, device, dtype, context_length)


def model_limits(config: Mapping[str, Any]) -> ModelSpec:
    """What a config says of a model's size, without its weights. Raises UnsupportedModelError."""
    return ModelSpec.from_config(config)


def longest_context(config: Mapping[str, Any]) -> int:
    """Tokens a config's model was made for, rope scaling included, whichever way it runs. Raises
    UnsupportedModelError."""
    if has_own_decoder(config):
        return ModelSpec.from_config(config).max_positions
    _check_foreign(config, "none")
    text = config.get("text_config")
    for part in (text, config) if isinstance(text, Mapping) else (config,):
        for key in ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length"):
            if isinstance(part.get(key), int) and part[key] > 0:
                return int(part[key])
    raise ModelConfigError(
        f"The config of {config.get('model_type')!r} does not say how long its context is.", remedy=ADD_LENGTH
    )


def _check_foreign(config: Mapping[str, Any], quantization: str) -> None:
    from octavo.engine.model.foreign import why_not_foreign

    if not config.get("model_type"):
        raise UnsupportedModelError("The config names no model_type.", remedy=FAMILIES_HINT)
    reason = why_not_foreign(config)
    if reason is not None:
        raise UnsupportedModelError(reason, remedy=FAMILIES_HINT)
    if quantization != "none":
        raise LoadError(
            f"Weights of the architecture {config['model_type']} cannot be held as {quantization!r}.",
            remedy="Set model.quantization to none.",
        )


def check_checkpoint(checkpoint: Checkpoint) -> ModelSpec:
    """All that `build_model` checks before it loads: config, tensor names, shapes, nothing missing, nothing unknown."""
    spec = ModelSpec.from_config(checkpoint.config)
    plan_weights(spec, checkpoint.tensors)
    return spec


def choose_ops(device: torch.device, fusion: bool) -> Ops:
    """The textbook operations, or the fused ones of the device."""
    if not fusion:
        return TextbookOps()
    if device.type == "cuda":
        try:
            from octavo.engine.model.ops_triton import TritonOps
        except ImportError as error:
            log.warning("Triton is not usable, so the operations between matrix products stay unfused: %s", error)
            return TextbookOps()
        return TritonOps()
    from octavo.engine.model.ops_cpu import CpuOps

    return CpuOps()


def _random_formats(
    spec: ModelSpec,
    ops: Ops,
    device: torch.device,
    dtype: torch.dtype,
    fusion: bool,
    quantization: str,
    quantize_head: bool,
) -> Formats:
    mix = mixed_parts(quantization, spec) if quantization in MIXES else {}
    asked = "none" if mix else quantization
    formats = FormatChoice(asked, quantize_head, device, dtype, fusion, ops.reads_rows(spec, dtype)).of_config()
    return replace(formats, held=mix) if mix else formats


def _allocate(
    spec: ModelSpec, ops: Ops, formats: Formats, device: torch.device, dtype: torch.dtype, fusion: bool
) -> Weights:
    return Weights.allocate(
        spec,
        formats,
        device=device,
        dtype=dtype,
        merged=fusion,
        float32_norms=ops.float32_norms,
        interleaved_rope=ops.interleaved_rope,
    )


def _assemble(
    spec: ModelSpec,
    weights: Weights,
    ops: Ops,
    name: str,
    device: torch.device,
    dtype: torch.dtype,
    context_length: int,
) -> Decoder:
    return Decoder(
        spec,
        weights,
        ops,
        [cos_sin_table(rope, context_length, device) for rope in spec.ropes],
        name=name,
        device=device,
        dtype=dtype,
        context_length=context_length,
    )
