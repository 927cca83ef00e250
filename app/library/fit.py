"""Whether a model fits into the memory that is free now, and how long a chat then may be."""

from __future__ import annotations

import json
from dataclasses import dataclass
from math import prod
from pathlib import Path

from octavo.app.config.sizes import format_size
from octavo.app.library import hub
from octavo.app.library.errors import LibraryError
from octavo.app.library.repository import needed_files
from octavo.app.library.shape import Shape, read_shape


@dataclass(frozen=True, slots=True)
class Fit:
    """An estimate, in bytes. `longest_context` is the longest chat, in tokens, that would still fit; 0: none."""

    name: str
    device: str
    context_length: int
    longest_context: int
    weight_bytes: int
    kv_bytes: int
    workspace_bytes: int
    free_bytes: int

    @property
    def total_bytes(self) -> int:
        return self.weight_bytes + self.kv_bytes + self.workspace_bytes

    @property
    def fits(self) -> bool:
        return self.total_bytes <= self.free_bytes

    def table(self) -> str:
        """The parts of the estimate, a line each."""
        rows = {"weights": self.weight_bytes, "keys and values": self.kv_bytes, "workspace": self.workspace_bytes}
        lines = [f"{name:<16} {format_size(size):>10}" for name, size in {**rows, "free": self.free_bytes}.items()]
        return "\n".join([*lines, f"{'longest chat':<16} {self.longest_context:>10} tokens"])

    def sentence(self) -> str:
        """What happened, why, what to do now."""
        need = f"{self.name} needs about {format_size(self.total_bytes)} on {self.device} for a chat of "
        need += f"{self.context_length} tokens; {format_size(self.free_bytes)} are free."
        if self.fits:
            return f"{need} It fits."
        if self.longest_context >= 64:
            return f"{need} With model.context_length: {self.longest_context} it fits."
        return f"{need} Choose a smaller model, or close programs that use the memory."


def estimate_fit(
    path: Path,
    *,
    context_length: int | None = None,
    device: str = "auto",
    dtype: str = "auto",
    fusion: bool = True,
) -> Fit:
    """Reads the checkpoint's headers (no weights) and compares with the memory free now.

    Raises CheckpointError or UnsupportedModelError for what cannot be loaded, DeviceError for a missing device.
    """
    from octavo.engine.load.checkpoint import open_checkpoint

    with open_checkpoint(path) as checkpoint:
        shape = read_shape(checkpoint.config)
        parameters = sum(prod(tensor.shape) for tensor in checkpoint.tensors.values())
    return _estimate(path.name, shape, parameters, context_length, device, dtype, fusion)


def estimate_repository(
    repo_id: str,
    *,
    revision: str = "main",
    context_length: int | None = None,
    device: str = "auto",
    dtype: str = "auto",
    fusion: bool = True,
) -> Fit:
    """The same for a model of the hub that is not on disk, from its config.json and the sizes of its files.

    Raises LibraryError's kinds; also for a GGUF repository, whose figures are in the file itself.
    """

    hub.probe(f"{repo_id} is not on disk.")
    found = hub.look_up(repo_id, revision)
    commit, files = found.commit, found.files
    weights = [file for file in needed_files(repo_id, files) if file.name.endswith(".safetensors")]
    if not weights:
        raise LibraryError(
            f"What {repo_id} needs is written inside its GGUF file.",
            remedy=f"Fetch it first: octavo models pull {repo_id}",
        )
    config = json.loads(hub.fetch_file(repo_id, "config.json", commit).read_text(encoding="utf-8"))
    stored = str(config.get("dtype") or config.get("torch_dtype") or "bfloat16").removeprefix("torch.")
    parameters = sum(file.size for file in weights) // (4 if stored == "float32" else 2)
    return _estimate(repo_id, read_shape(config), parameters, context_length, device, dtype, fusion)


def _estimate(
    name: str, shape: Shape, parameters: int, context_length: int | None, device: str, dtype: str, fusion: bool
) -> Fit:
    from octavo.engine.quant import weight_format
    from octavo.engine.run.resolve import free_memory, resolve_device, resolve_dtype

    place, _ = resolve_device(device)
    kind = resolve_dtype(dtype, place)
    itemsize = kind.itemsize
    context = min(context_length or shape.max_positions, shape.max_positions)
    weights, workspace = parameters * itemsize, workspace_bytes(shape, itemsize, place.type)
    if shape.tied and not weight_format("none", device=place, dtype=kind, fusion=fusion).shares_embedding:
        weights += shape.vocab_size * shape.hidden_size * itemsize  # the head is stored a second time
    free = free_memory(place)
    longest = longest_context(shape, itemsize, free - weights - workspace)
    return Fit(name, str(place), context, longest, weights, kv_bytes(shape, itemsize, context), workspace, free)


def kv_bytes(shape: Shape, itemsize: int, context_length: int) -> int:
    """Keys and values of one chat: 2 x heads x head size for each token a layer keeps (all, or its window)."""
    tokens = sum(min(context_length, window or context_length) for window in shape.windows)
    return 2 * shape.kv_heads * shape.head_size * itemsize * tokens


def longest_context(shape: Shape, itemsize: int, budget_bytes: int) -> int:
    """The most tokens, at most the model's own length, whose keys and values fit into `budget_bytes`."""
    low, high = 0, shape.max_positions
    while low < high:
        middle = (low + high + 1) // 2
        if kv_bytes(shape, itemsize, middle) <= budget_bytes:
            low = middle
        else:
            high = middle - 1
    return low


def workspace_bytes(shape: Shape, itemsize: int, device_type: str) -> int:
    """Activations of one prompt chunk and the scores of a full step; on CUDA the reserve the engine keeps free."""
    if device_type == "cuda":
        from octavo.engine.run.resolve import CUDA_RESERVE_BYTES

        return CUDA_RESERVE_BYTES
    chunk, rows = 512, 64  # the engine's defaults on the CPU
    activations = chunk * (2 * shape.intermediate_size + 4 * shape.hidden_size) * itemsize
    return activations + 2 * rows * shape.vocab_size * 4
