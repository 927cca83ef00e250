"""From a checkpoint's tensors to the planes of allocated weights, one tensor at a time.

What a format rounds comes as exact as the checkpoint has it, everything else in the compute dtype. Rounded planes can
come from an earlier load instead. On the way to a CUDA device three things happen at once: files are read into
page-locked memory, copies from there wait in the device's queue, and the device puts what has arrived into its place.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator

import torch

from octavo.engine.errors import CheckpointError
from octavo.engine.load.checkpoint import Checkpoint
from octavo.engine.load.rounded_cache import RoundedCache
from octavo.engine.model.families import Source, WeightPlan
from octavo.engine.model.parameters import Weights, part_shapes
from octavo.engine.sending import QUEUED_BYTES, Backlog, settle

log = logging.getLogger(__name__)

Progress = Callable[[str, int, int], None]  # stage, bytes done, bytes in all


def fill(
    weights: Weights,
    checkpoint: Checkpoint,
    plan: WeightPlan,
    dtype: torch.dtype,
    progress: Progress | None = None,
    rounded: RoundedCache | None = None,
    settings: tuple[object, ...] = (),
) -> None:
    """Fills every part. With `rounded`, planes are taken from there or left there; `settings` tell them apart."""
    began = time.perf_counter()
    try:
        _fill(weights, checkpoint, plan, dtype, progress, rounded, settings)
    finally:
        settle(weights.device)
    size, seconds = weights.size_bytes / (1 << 30), time.perf_counter() - began
    log.info("%.2f GiB of weights were loaded in %.2f s, %.2f GiB/s", size, seconds, size / seconds)


def _fill(
    weights: Weights,
    checkpoint: Checkpoint,
    plan: WeightPlan,
    dtype: torch.dtype,
    progress: Progress | None,
    rounded: RoundedCache | None,
    settings: tuple[object, ...],
) -> None:
    entries = weights.rounded_entries() if rounded is not None else {}
    if rounded is None or not entries:
        _stream(weights, checkpoint, plan.sources, dtype, progress)
        return
    files = {checkpoint.tensors[name].file for name in plan.sources}
    path = rounded.path(files, *settings)
    planes = rounded.read(path, entries, pinned=weights.device.type == "cuda")
    if planes is not None:
        rest = {name: s for name, s in plan.sources.items() if not all(weights.only_rounded(p) for p in s.parts)}
        try:
            weights.restore(planes)
        except (CheckpointError, OSError) as error:
            log.warning("Rounded weights are made again: %s", error)
        else:
            log.info("rounded weights taken from %s", path)
            _stream(weights, checkpoint, rest, dtype, progress)
            return
    _stream(weights, checkpoint, plan.sources, dtype, progress)
    rounded.write(path, entries, weights.rounded_planes())


def _stream(
    weights: Weights,
    checkpoint: Checkpoint,
    sources: dict[str, Source],
    dtype: torch.dtype,
    progress: Progress | None,
) -> None:
    pinned = weights.device.type == "cuda"
    backlog = Backlog(weights.device, QUEUED_BYTES)
    total, done = sum(checkpoint.tensors[name].size_bytes for name in sources), 0
    held = {name for name, source in sources.items() if weights.holds(source.parts[0])}
    exact = {
        name
        for name, source in sources.items()
        if weights.is_vector(source.parts[0]) or any(weights.rounds(part) for part in source.parts)
    } - held

    def report(name: str) -> None:
        nonlocal done
        done += checkpoint.tensors[name].size_bytes
        backlog.add(checkpoint.tensors[name].size_bytes)
        if progress is not None:
            progress("weights", done, total)

    for name, planes in checkpoint.stream_planes(held, pinned=pinned) if held else ():
        source = sources[name]
        for part, first, rows in _by_part(weights, source):
            mine = {plane: t if t.ndim == 1 else t.narrow(-2, first, rows) for plane, t in planes.items()}
            weights.fill_planes(part, mine if len(source.parts) > 1 else planes, source.expert)
        report(name)
    for names, cast in ((exact, None), (sources.keys() - exact - held, dtype)):
        for name, tensor in checkpoint.stream(names, cast, pinned=pinned) if names else ():
            source = sources[name]
            for part, first, rows in _by_part(weights, source):
                axis = -2 if part.endswith(".weight") else 0
                own = tensor.narrow(axis, first, rows) if len(source.parts) > 1 else tensor
                weights.fill(part, own, source.expert)
            report(name)


def _by_part(weights: Weights, source: Source) -> Iterator[tuple[str, int, int]]:
    """The parts that a tensor holds: (part, first row, rows)."""
    shapes = part_shapes(weights.spec)
    row = 0
    for part in source.parts:
        rows = shapes[part][-2 if part.endswith(".weight") else 0] if len(source.parts) > 1 else 0
        yield part, row, rows
        row += rows
