"""Compiles every kernel for every supported GPU generation, without a GPU: `python -m octavo.kernels.compile_all`.

compile_cases.py says which launches there are, on each generation with its own tiles and the very arguments of run
time; compile_choice.py leaves out those that would show nothing new: each kernel, type and branch is compiled, and each
type and tile of a product for each family of generations, but not every combination of them on every card. `--full`
compiles all, with every type and head size on every generation, seven times as much. A kernel that does not compile, or
asks for more shared memory than a block may have on a generation that launches it so, is reported and makes the exit
code 1.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass

import triton
from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.runtime.jit import JITFunction

from octavo.kernels.compile_cases import TARGETS, record
from octavo.kernels.compile_choice import Job, choose, jobs_of

SLOWEST = ("decode_kernel", "prefill_kernel", "dense_kernel")


@dataclass(frozen=True, slots=True)
class Report:
    """How one compilation went; `error` is None if the kernel can run on the targets of the job."""

    job: Job
    error: str | None
    shared_bytes: int = 0
    seconds: float = 0.0


def compile_all(targets: list[int], workers: int, full: bool = False) -> Iterator[Report]:
    """Compiles for these generations in `workers` processes, yielding reports as they come."""
    recorded = {target: record(target, full) for target in targets}
    jobs = jobs_of(recorded) if full else choose(recorded)
    jobs.sort(key=lambda job: job.launch.kernel not in SLOWEST)  # so that no process is left with one at the end
    with ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn")) as pool:
        for future in as_completed([pool.submit(_compile, job) for job in jobs]):
            yield future.result()


def _compile(job: Job) -> Report:
    launch = job.launch
    began = time.perf_counter()
    source = _language(launch.function)(
        fn=launch.function,
        signature=dict(launch.signature),
        constexprs=dict(launch.constants),
        attrs={(index,): [["tt.divisibility", 16]] for index in launch.divisible},
    )
    knobs.compilation.disable_line_info = True  # a tenth of the time, for nobody to read
    try:
        compiled = triton.compile(source, target=GPUTarget("cuda", job.target, 32), options=dict(launch.options))
    except Exception as error:  # whatever the compiler raises is the finding
        return Report(job, f"{type(error).__name__}: {str(error).strip()[-400:]}")
    shared, limit = compiled.metadata.shared, min(TARGETS[target].shared_bytes for target in job.targets)
    too_much = None if shared <= limit else f"needs {shared} bytes of shared memory, a block may have {limit}"
    return Report(job, too_much, shared, time.perf_counter() - began)


def _language(kernel: JITFunction) -> type[ASTSource]:
    """What makes a program of a kernel: Triton's own language, or the one with layouts."""
    if not kernel.is_gluon():
        return ASTSource
    from triton.experimental.gluon._runtime import GluonASTSource

    return GluonASTSource


def main(arguments: list[str] | None = None) -> int:
    """Prints one line a target and one a failure; 0 if everything compiled."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--targets", default=",".join(map(str, TARGETS)), help="compute capabilities, comma-separated")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--verbose", action="store_true", help="one line a kernel")
    parser.add_argument("--full", action="store_true", help="every type, head size and tile on every generation")
    options = parser.parse_args(arguments)
    targets = [int(target) for target in options.targets.split(",")]
    failed = 0
    counts: dict[int, set[str]] = {target: set() for target in targets}
    compiled = dict.fromkeys(targets, 0)
    for report in compile_all(targets, options.workers, options.full):
        launch, target = report.job.launch, report.job.target
        if report.error is not None:
            failed += 1
            print(f"sm_{target} {launch.kernel} {dict(launch.constants)}: {report.error}", flush=True)
        else:
            compiled[target] += 1
            counts[target].add(launch.kernel)
        if options.verbose:
            types = sorted({kind for _, kind in launch.signature if kind.startswith("*")})
            sizes = {key: value for key, value in launch.constants if key in ("DIM", "BLOCK_M", "BLOCK_N", "SPLIT")}
            note = f"{report.shared_bytes} bytes shared, {report.seconds:.2f} s"
            print(f"sm_{target} {launch.kernel} {' '.join(types)} {sizes}: {note}", flush=True)
    for target in targets:
        print(f"sm_{target}: {compiled[target]} variants of {len(counts[target])} kernels compiled")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
