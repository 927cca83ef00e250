"""A look at a checkpoint without loading it: what it holds, and everything that is wrong with it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from octavo.engine.errors import CheckpointError, LoadError
from octavo.engine.load.checkpoint import Checkpoint, TensorInfo, open_checkpoint
from octavo.engine.load.safetensors_checkpoint import find_weights
from octavo.engine.load.safetensors_header import read_header

_LAYER = re.compile(r"(?:^|\.)layers\.(\d+)\.")


@dataclass(frozen=True, slots=True)
class CheckpointReport:
    """What `inspect_checkpoint` found. `problems` is empty for a checkpoint whose headers are whole and consistent."""

    path: Path
    kind: str | None = None  # "safetensors", "gguf"; None if it could not be opened
    architecture: str | None = None
    files: tuple[Path, ...] = ()
    tensors: tuple[TensorInfo, ...] = ()
    total_bytes: int = 0  # of the tensors, as stored
    parameters: int = 0
    bytes_by_dtype: Mapping[str, int] = field(default_factory=dict)
    config: Mapping[str, Any] = field(default_factory=dict)
    problems: tuple[str, ...] = ()


def inspect_checkpoint(path: Path | str) -> CheckpointReport:
    """Reads headers, names and shapes only. Never raises for what is wrong with the checkpoint: it is in `problems`."""
    path = Path(path)
    try:
        checkpoint = open_checkpoint(path)
    except LoadError as error:
        return CheckpointReport(path, problems=tuple(_all_problems(path, error)))
    with checkpoint:
        return _report(checkpoint)


def _report(checkpoint: Checkpoint) -> CheckpointReport:
    tensors = tuple(checkpoint.tensors.values())
    by_dtype: Counter[str] = Counter()
    parameters = 0
    for tensor in tensors:
        by_dtype[tensor.dtype] += tensor.size_bytes
        count = 1
        for dim in tensor.shape:
            count *= dim
        parameters += count
    names = checkpoint.config.get("architectures") or [checkpoint.config.get("model_type")]
    return CheckpointReport(
        path=checkpoint.path,
        kind=checkpoint.kind,
        architecture=str(names[0]) if names[0] else None,
        files=tuple(dict.fromkeys(tensor.file for tensor in tensors)),
        tensors=tensors,
        total_bytes=sum(tensor.size_bytes for tensor in tensors),
        parameters=parameters,
        bytes_by_dtype=dict(by_dtype.most_common()),
        config=checkpoint.config,
        problems=tuple(_inconsistencies(checkpoint)),
    )


def _inconsistencies(checkpoint: Checkpoint) -> list[str]:
    """What headers and configuration contradict each other in."""
    config = checkpoint.config.get("text_config") or checkpoint.config
    problems = []
    try:
        checkpoint.check()
    except CheckpointError as error:
        problems.append(str(error))
    if not checkpoint.tensors:
        problems.append("There is no tensor in it.")
    layers = config.get("num_hidden_layers")
    found = {int(match[1]) for name in checkpoint.tensors if (match := _LAYER.search(name)) and "vision" not in name}
    if isinstance(layers, int) and found and (missing := sorted(set(range(layers)) - found)):
        shown = ", ".join(map(str, missing[:8])) + (", ..." if len(missing) > 8 else "")
        problems.append(f"The configuration has {layers} layers; no tensor belongs to layer {shown}.")
    embedding = next((t for n, t in checkpoint.tensors.items() if n.endswith("embed_tokens.weight")), None)
    expected = (config.get("vocab_size"), config.get("hidden_size"))
    if embedding is not None and None not in expected and embedding.shape != expected:
        problems.append(f"{embedding.name} is {list(embedding.shape)}, the configuration says {list(expected)}.")
    return problems


def _all_problems(path: Path, first: LoadError) -> list[str]:
    """The error that stopped opening; for a sharded folder the error of every bad shard, not only of the first."""
    problems = [str(first)]
    if path.is_dir():
        try:
            files, _ = find_weights(path)
        except CheckpointError:
            return problems
        for file in files:
            try:
                read_header(file)
            except CheckpointError as error:
                problems.append(str(error))
    return list(dict.fromkeys(problems))
