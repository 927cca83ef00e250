"""A checkpoint's headers in words, without its weights."""

from __future__ import annotations

from pathlib import Path

from octavo.app.config.sizes import format_size
from octavo.app.library.readiness import check_tensors
from octavo.app.library.shape import read_shape


def report(path: Path) -> str:
    """What is in the checkpoint. Raises CheckpointError or UnsupportedModelError naming everything that is wrong."""
    from octavo.engine.errors import CheckpointError
    from octavo.engine.load.checkpoint import open_checkpoint
    from octavo.engine.load.inspect import inspect_checkpoint

    found = inspect_checkpoint(path)
    if found.problems:
        raise CheckpointError(f"{path} cannot be loaded: " + "\n".join(found.problems), file=str(path))
    with open_checkpoint(path) as checkpoint:
        shape = read_shape(checkpoint.config)
        check_tensors(checkpoint)
    formats = ", ".join(f"{name} {format_size(size)}" for name, size in found.bytes_by_dtype.items())
    lines = [
        f"{'path':<13} {found.path}",
        f"{'format':<13} {found.kind}, {len(found.files)} file{'s' if len(found.files) != 1 else ''}",
        f"{'architecture':<13} {found.architecture} ({shape.family})",
        f"{'parameters':<13} {found.parameters / 1e6:,.1f} million in {len(found.tensors)} tensors",
        f"{'stored':<13} {format_size(found.total_bytes)} ({formats})",
        f"{'layers':<13} {len(shape.windows)}, {shape.q_heads} query heads, {shape.kv_heads} key-value heads of "
        f"{shape.head_size}",
        f"{'context':<13} {shape.max_positions} tokens",
        f"{'vocabulary':<13} {shape.vocab_size} tokens",
    ]
    return "\n".join([*lines, *(f"{'note':<13} {notice}" for notice in shape.notices), "Nothing is wrong with it."])
