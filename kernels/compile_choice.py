"""Which of many launches are worth compiling: as few as show every branch of every kernel to every compiler.

Two generations share a family if the same compiler passes make their code; a launch then becomes the same program for
both. What a launch can go wrong by are its values: of each constant and option, and the type of each argument. Chosen
are launches of a kernel until

- each value has been compiled for some family,
- of kernels that multiply matrices, whose instructions differ from family to family and whose tiles take much shared
  memory, each family has compiled each type of argument and each tile (sizes, stages and warps together) that it
  launches,
- of all others, the oldest and the newest family have compiled some launch.

What only two branches together break is not looked for here, which would take a third more launches:
`compile_all --full` compiles every combination that there is.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

from triton.runtime.jit import JITFunction

from octavo.kernels.launch_record import Launch

# By what Triton's passes distinguish: no mma of bfloat16; mma; wgmma; tcgen05; mma, but the passes of 10.0.
FAMILIES = {75: 75, 80: 80, 86: 80, 89: 80, 90: 90, 100: 100, 120: 120}
TILE = ("BLOCK", "STAGES", "SLICES", "TILES", "DIM", "V_DIM", "num_stages", "num_warps")  # how constants of it begin
TYPE = "type of "


@dataclass(frozen=True, slots=True)
class Job:
    """A launch to compile for a generation; `targets`: all of its family that launch it."""

    target: int
    launch: Launch
    targets: tuple[int, ...]


def jobs_of(recorded: dict[int, list[Launch]]) -> list[Job]:
    """All launches, each once for every family that has it."""
    where: dict[tuple[int, Launch], list[int]] = {}
    for target in sorted(recorded):
        for launch in recorded[target]:
            where.setdefault((FAMILIES[target], launch), []).append(target)
    return [Job(targets[0], launch, tuple(targets)) for (_, launch), targets in where.items()]


def choose(recorded: dict[int, list[Launch]]) -> list[Job]:
    """The fewest jobs, found greedily, that show all that is said above."""
    kernels: dict[tuple[str, str], list[Job]] = {}
    for job in jobs_of(recorded):
        kernels.setdefault((job.launch.module, job.launch.kernel), []).append(job)
    chosen = []
    for jobs in kernels.values():
        shown = _what_is_shown(jobs)
        missing = set().union(*shown.values())
        while missing:
            best = max(jobs, key=lambda job: len(shown[job] & missing))
            missing -= shown[best]
            chosen.append(best)
    return chosen


def _what_is_shown(jobs: list[Job]) -> dict[Job, set[Hashable]]:
    """What each job of one kernel would show."""
    multiplies = _multiplies(jobs[0].launch.function)
    families = [FAMILIES[job.target] for job in jobs]
    shown: dict[Job, set[Hashable]] = {}
    for job, family in zip(jobs, families, strict=True):
        values = _values(job.launch)
        tile = tuple(pair for pair in values if pair[0].startswith(TILE))
        shown[job] = set(values)
        if multiplies:
            types = (value for value in values if value[0].startswith(TYPE))
            shown[job] |= {(family, tile), *((family, value) for value in types)}
        if family in (min(families), max(families)):
            shown[job].add(family)
    return shown


def _values(launch: Launch) -> list[tuple[str, str]]:
    types = [(f"{TYPE}{name}", kind) for name, kind in launch.signature if kind != "constexpr"]
    return types + [(name, repr(value)) for name, value in launch.constants + launch.options]


def _multiplies(kernel: JITFunction) -> bool:
    """Whether a kernel, or one that it calls, multiplies matrices, or is in the language that names instructions."""
    if kernel.is_gluon() or "tl.dot" in kernel.src:
        return True
    called = (kernel.fn.__globals__.get(name) for name in kernel.fn.__code__.co_names)
    return any(isinstance(other, JITFunction) and other is not kernel and _multiplies(other) for other in called)
