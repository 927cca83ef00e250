"""Whether a model fits into the memory that is free now, how long a chat then may be, and what else would fit."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from octavo.app.config.sizes import format_size
from octavo.app.library import hub
from octavo.app.library.errors import LibraryError
from octavo.app.library.pace import Pace, pace
from octavo.app.library.repository import needed_files
from octavo.app.library.shape import Shape, read_shape
from octavo.app.library.weights import PACKED, Holding, count_parameters, quantizations, weight_bytes
from octavo.app.logs import supposing

if TYPE_CHECKING:
    import torch

    from octavo.engine.attention.base import CacheGroup
    from octavo.engine.load.checkpoint import Checkpoint, TensorInfo

SHORTEST_USEFUL = 64  # tokens; the engine refuses to begin with less

Verdict = Literal["fits", "shorter", "no"]


@dataclass(frozen=True, slots=True)
class Fit:
    """An estimate, in bytes. `longest_context` is the longest chat, in tokens, that would still fit; 0: none.

    `held_bytes` is what the model that is loaded now would give back. `pace` compares the format with 16 bit.
    """

    name: str
    device: str
    context_length: int
    longest_context: int
    weight_bytes: int
    kv_bytes: int
    workspace_bytes: int
    free_bytes: int
    held_bytes: int = 0
    quantization: str = "none"
    pace: Pace = "same"

    @property
    def total_bytes(self) -> int:
        return self.weight_bytes + self.kv_bytes + self.workspace_bytes

    @property
    def available_bytes(self) -> int:
        return self.free_bytes + self.held_bytes

    @property
    def fits(self) -> bool:
        return self.context_length <= self.longest_context

    @property
    def verdict(self) -> Verdict:
        """Whether it fits as asked, with a shorter context, or not at all."""
        if self.fits:
            return "fits"
        return "shorter" if self.longest_context >= SHORTEST_USEFUL else "no"

    def table(self) -> str:
        """The parts of the estimate, a line each."""
        rows = {"weights": self.weight_bytes, "keys and values": self.kv_bytes, "workspace": self.workspace_bytes}
        lines = [f"{name:<16} {format_size(size):>10}" for name, size in {**rows, "free": self.free_bytes}.items()]
        return "\n".join([*lines, f"{'longest chat':<16} {self.longest_context:>10} tokens"])

    def sentence(self) -> str:
        """What happened, why, what to do now."""
        need = f"{self.name} needs about {format_size(self.total_bytes)} on {self.device} for a chat of "
        need += f"{self.context_length} tokens; {format_size(self.available_bytes)} are free."
        if self.fits:
            return f"{need} It fits."
        if self.verdict == "shorter":
            return f"{need} With model.context_length: {self.longest_context} it fits."
        return f"{need} Choose a smaller model, or close programs that use the memory."


@dataclass(frozen=True, slots=True)
class Wish:
    """How a model is to be loaded: the part of config.yaml that its memory depends on. None: the model's own length."""

    context_length: int | None = None
    device: str = "auto"
    dtype: str = "auto"
    fusion: bool = True
    quantization: str = "none"
    quantize_head: bool = False
    kv_memory_bytes: int | None = None
    kv_memory_share: float | None = None
    paged_attention: bool = True
    kv_cache_dtype: str = "auto"


@dataclass(frozen=True, slots=True)
class Sketch:
    """What an estimate needs to know of a model. `tensors` is None for one whose headers were not read; then
    `stored_bytes`, the size of its files, stands for them if it is quantized itself."""

    name: str
    config: Mapping[str, Any]
    parameters: int
    tensors: Mapping[str, TensorInfo] | None = None
    stored_bytes: int = 0


def sketch_path(path: Path) -> Sketch:
    """From a checkpoint's headers. Raises CheckpointError or UnsupportedModelError for what cannot be loaded."""
    from octavo.engine.load.checkpoint import open_checkpoint

    with open_checkpoint(path) as checkpoint:
        return _sketch(path.name, checkpoint)


def sketch_repository(repo_id: str, variant: str | None = None, revision: str = "main") -> Sketch:
    """From a hub repository's config.json, or from the header of its GGUF file, without fetching the weights.

    Raises LibraryError's kinds.
    """
    found = hub.look_up(repo_id, revision)
    files = needed_files(repo_id, found.files, variant)
    weights = [file for file in files if file.name.endswith(".safetensors")]
    if not weights:
        from octavo.app.library.remote_header import read_remote_checkpoint

        with read_remote_checkpoint(repo_id, found.commit, files) as checkpoint:
            return _sketch(f"{repo_id}:{variant}" if variant else repo_id, checkpoint)
    try:
        config = json.loads(hub.fetch_file(repo_id, "config.json", found.commit).read_text(encoding="utf-8"))
    except ValueError as error:
        raise LibraryError(
            f"The config.json of {repo_id} is not valid JSON ({error}).", remedy="Choose another model."
        ) from error
    if not isinstance(config, dict):
        raise LibraryError(f"The config.json of {repo_id} holds no settings.", remedy="Choose another model.")
    stored = str(config.get("dtype") or config.get("torch_dtype") or "bfloat16").removeprefix("torch.")
    size = sum(file.size for file in weights)
    parameters = sum(found.parameters.values()) or count_parameters(config) or size // (4 if stored == "float32" else 2)
    return Sketch(repo_id, config, parameters, stored_bytes=size)


def _sketch(name: str, checkpoint: Checkpoint) -> Sketch:
    parameters = sum(prod(tensor.shape) for tensor in checkpoint.tensors.values())
    return Sketch(name, checkpoint.config, parameters, dict(checkpoint.tensors))


@supposing()
def estimate(sketch: Sketch, wish: Wish, held_bytes: int = 0) -> Fit:
    """Compares with the memory free now; `held_bytes` of it are the loaded model's.

    Raises UnsupportedModelError, LoadError for a format the model cannot have, DeviceError for a missing device.
    """
    from octavo.engine.run.resolve import free_memory, resolve_device, resolve_dtype, resolve_kv_dtype

    device, _ = resolve_device(wish.device)
    dtype = resolve_dtype(wish.dtype, device)
    shape = read_shape(sketch.config)
    kv_dtype = resolve_kv_dtype(wish.kv_cache_dtype, dtype)
    workspace = workspace_bytes(shape, dtype.itemsize, device.type)
    free = free_memory(device)
    holding = Holding(wish.quantization, wish.quantize_head, device, dtype, wish.fusion, free + held_bytes)
    if sketch.tensors is None and sketch.config.get("quantization_config"):
        weights = _already_quantized(sketch, wish)
    else:
        weights = weight_bytes(sketch.config, sketch.parameters, sketch.tensors, holding)
    context = min(wish.context_length or shape.max_positions, shape.max_positions)
    left = free + held_bytes - weights - (0 if device.type == "cuda" else workspace)
    return Fit(
        name=sketch.name,
        device=str(device),
        context_length=context,
        longest_context=longest_context(shape, kv_dtype, left, device, wish),
        weight_bytes=weights,
        kv_bytes=kv_bytes(shape, kv_dtype, context),
        workspace_bytes=workspace,
        free_bytes=free,
        held_bytes=held_bytes,
        quantization=wish.quantization,
        pace=pace(sketch.config, sketch.tensors, holding),
    )


def _already_quantized(sketch: Sketch, wish: Wish) -> int:
    from octavo.engine.errors import LoadError

    if wish.quantization not in ("none", PACKED):
        raise LoadError(f"{sketch.name} is quantized already.", remedy="Set model.quantization to none.")
    return sketch.stored_bytes


def alternatives(sketch: Sketch, wish: Wish, held_bytes: int = 0) -> list[Fit]:
    """The same model in every format it can be converted to at load, the largest first."""
    from octavo.engine.errors import OctavoError

    found = []
    for name in quantizations():
        try:
            found.append(estimate(sketch, replace(wish, quantization=name), held_bytes))
        except OctavoError:  # not on this device, or not of this architecture
            continue
    plain = next((fit.weight_bytes for fit in found if fit.quantization == "none"), None)
    found = [fit for fit in found if fit.quantization != PACKED or fit.weight_bytes != plain]
    return sorted(found, key=lambda fit: -fit.weight_bytes)


def best_fitting(fits: list[Fit]) -> Fit | None:
    """The most exact of `alternatives` that fits as asked, else the one that leaves room for the longest chat."""
    whole = next((fit for fit in fits if fit.fits), None)
    return whole or max(
        (fit for fit in fits if fit.verdict == "shorter"), key=lambda fit: fit.longest_context, default=None
    )


def kv_bytes(shape: Shape, kv_dtype: torch.dtype, context_length: int) -> int:
    """Keys and values of one chat: 2 x heads x a head's bytes for each token a layer keeps (all, or its window)."""
    from octavo.kernels.kv_format import head_bytes

    tokens = sum(min(context_length, window or context_length) for window in shape.windows)
    return 2 * shape.kv_heads * head_bytes(shape.head_size, kv_dtype) * tokens


def longest_context(shape: Shape, kv_dtype: torch.dtype, left_bytes: int, device: torch.device, wish: Wish) -> int:
    """The longest chat the engine would begin with if `left_bytes` are free beside the weights, in tokens."""
    from octavo.engine.config import EngineConfig
    from octavo.engine.errors import MemoryExhaustedError
    from octavo.engine.run.resolve import kv_budget, longest_chat

    config = EngineConfig(kv_memory_bytes=wish.kv_memory_bytes, kv_memory_share=wish.kv_memory_share)
    if left_bytes <= 0:
        return 0
    try:
        budget = kv_budget(config, left_bytes, device)
    except MemoryExhaustedError:
        return 0
    page_size = config.page_size
    return min(shape.max_positions, longest_chat(_cache_groups(shape), budget, kv_dtype, page_size))


def _cache_groups(shape: Shape) -> list[CacheGroup]:
    from octavo.engine.attention.base import CacheGroup, Plane

    planes = (Plane("k", shape.kv_heads, shape.head_size), Plane("v", shape.kv_heads, shape.head_size))
    groups = []
    for window in dict.fromkeys(shape.windows):
        layers = tuple(index for index, own in enumerate(shape.windows) if own == window)
        groups.append(CacheGroup(str(window), layers, planes, window))
    return groups


def workspace_bytes(shape: Shape, itemsize: int, device_type: str) -> int:
    """Activations of one prompt chunk and the scores of a full step; on CUDA the reserve the engine keeps free."""
    if device_type == "cuda":
        from octavo.engine.run.resolve import CUDA_RESERVE_BYTES

        return CUDA_RESERVE_BYTES
    chunk, rows = 512, 64  # the engine's defaults on the CPU
    activations = chunk * (2 * shape.intermediate_size + 4 * shape.hidden_size) * itemsize
    return activations + 2 * rows * shape.vocab_size * 4


def wish_of(values: Any) -> Wish:
    """What a configuration (`Settings.values`) asks for."""
    model, engine = values.model, values.engine
    return Wish(
        context_length=None if model.context_length == "auto" else model.context_length,
        device=model.device,
        dtype=model.dtype,
        fusion=engine.fusion,
        quantization=model.quantization,
        quantize_head=model.quantize_head,
        kv_memory_bytes=engine.kv_memory.size_bytes,
        kv_memory_share=engine.kv_memory.share,
        paged_attention=engine.paged_attention,
        kv_cache_dtype=engine.kv_cache_dtype,
    )
