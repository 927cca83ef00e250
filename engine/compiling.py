"""Kernels compiled by other processes while the weights are loaded, so that a first start on a GPU does not compile one
after the other.

One process finds out what the first steps will launch (rehearsal.py), all of them compile it into Triton's cache of
files, where the engine's own launches find it. Nothing of the engine is touched: a kernel that was not foreseen, or
whatever goes wrong, only means that it is compiled when it is launched.
"""

from __future__ import annotations

import hashlib
import heapq
import json
import logging
import os
import pickle
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import psutil
import torch

from octavo.engine.config import EngineConfig
from octavo.engine.load.checkpoint import TensorInfo
from octavo.kernels.device import DeviceTraits

if TYPE_CHECKING:
    from octavo.kernels.compile_jobs import CompileJob

log = logging.getLogger(__name__)

WORKER = ("-m", "octavo.engine.compile_worker")
MOST_WORKERS = 8  # there are some dozens of kernels, and the slowest takes as long as six of the others
WORKER_BYTES = 1 << 30  # torch, Triton and a kernel in the making
PATIENCE_S = 30.0  # without news from any worker: no kernel takes so long, and the engine compiles as well
# relative times of the slowest kernels, which are begun first
COSTS = {
    "decode_kernel": 7, "dense_kernel": 7, "prefill_kernel": 5, "gguf_gemv_kernel": 5, "gguf_tile_kernel": 3,
    "tile_kernel": 2, "wide_kernel": 2,
}  # fmt: skip
# what of the engine's settings decides which kernels there are
_SETTINGS = (
    "quantization", "quantize_head", "paged_attention", "fusion", "page_size", "kv_cache_dtype", "max_running",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Recipe:
    """All that decides which kernels the first steps of a model launch; picklable. `source` is a folder, a file or a
    shape's name, `free_bytes` what was free on the device before the load."""

    source: str
    config: EngineConfig
    device: torch.device
    traits: DeviceTraits
    dtype: torch.dtype
    context_length: int
    free_bytes: int | None = None


# graphs begun when it was found, how early it is to be taken among them, its number, the job
_Open: TypeAlias = "tuple[int, int, int, CompileJob]"


class CompileAhead:
    """Worker processes that find out what a model's first steps launch and compile it, until they are through, are
    closed, or have had no news for PATIENCE_S.

    `mark` is written if they came through, also where something did not compile: what is left, the engine compiles when
    it launches it, into the same cache.
    """

    def __init__(self, recipe: Recipe, workers: int, mark: Path | None = None, command: Sequence[str] = WORKER) -> None:
        self._recipe, self._mark = recipe, mark
        self._news = threading.Condition()
        self._queue: list[_Open] = []
        self._numbers = count()
        self._open: Counter[int] = Counter()  # jobs that are not done, by graphs begun
        self._begun = 1  # of the first graphs, which one the rehearsal has come to
        self._rehearsed = self._closed = False
        self._compiled = self._failed = 0
        self._died = False
        self._started_s = self._news_s = time.monotonic()
        self._workers = [_Worker(command) for _ in range(workers)]
        self._living = workers
        self._threads = [
            threading.Thread(target=self._serve, args=(worker, at == 0), name="octavo-compile", daemon=True)
            for at, worker in enumerate(self._workers)
        ]
        for thread in self._threads:
            thread.start()

    def wait(self, graphs: int, longest_s: float = float("inf")) -> bool:
        """Returns True once all is compiled that the first so many graphs of the runner launch, or will not be; False
        if that takes longer than `longest_s`."""
        until = time.monotonic() + longest_s
        with self._news:
            while not self._over and not self._has(graphs):
                now, patience = time.monotonic(), self._news_s + PATIENCE_S
                if now >= patience:
                    log.debug("compiling ahead is given up: no news for %.0f s", PATIENCE_S)
                    self._end()
                elif now >= until:
                    return False
                else:
                    self._news.wait(min(patience, until) - now)
            return True

    @property
    def over(self) -> bool:
        """Whether nothing is left to wait for."""
        with self._news:
            return self._over

    def close(self) -> None:
        """Ends the workers, wherever they are. May be called twice, from any thread."""
        with self._news:
            self._end()
        for thread in self._threads:
            thread.join()

    @property
    def _over(self) -> bool:
        return self._closed or (self._rehearsed and not self._open.total())

    def _has(self, graphs: int) -> bool:
        found = self._rehearsed or self._begun > graphs
        return found and not any(left for begun, left in self._open.items() if begun <= graphs)

    def _end(self) -> None:
        self._closed = True
        for worker in self._workers:
            worker.kill()
        self._news.notify_all()

    def _serve(self, worker: _Worker, rehearses: bool) -> None:
        """One worker's thread."""
        job: _Open | None = None
        try:
            if rehearses:
                self._rehearse(worker)
            while (job := self._next_job()) is not None:
                self._settle(job, worker.ask(job[-1]))
        except _WorkerGone as gone:
            with self._news:
                self._rehearsed |= rehearses
                self._died = True
                self._living -= 1
                if not self._living:
                    self._end()
                self._news.notify_all()
            if job is not None:
                self._settle(job, str(gone))
        finally:
            worker.close()

    def _rehearse(self, worker: _Worker) -> None:
        answer = worker.ask(self._recipe)
        while isinstance(answer, tuple):
            job, begun = answer
            with self._news:
                self._begun, self._news_s = begun, time.monotonic()
                self._open[begun] += 1
                heapq.heappush(self._queue, (begun, -COSTS.get(job.kernel, 1), next(self._numbers), job))
                self._news.notify_all()
            answer = worker.hear()
        with self._news:
            self._rehearsed, self._news_s = True, time.monotonic()
            if answer is not None:
                log.debug("not all that will be launched is known: %s", answer)
            self._finish_if_over()
            self._news.notify_all()

    def _next_job(self) -> _Open | None:
        with self._news:
            while not self._queue and not self._closed and not self._rehearsed:
                self._news.wait()
            return None if self._closed or not self._queue else heapq.heappop(self._queue)

    def _settle(self, job: _Open, failure: str | None) -> None:
        with self._news:
            self._open[job[0]] -= 1
            self._news_s = time.monotonic()
            if failure:
                self._failed += 1
                log.debug("%s was not compiled ahead: %s", job[-1].kernel, failure)
            else:
                self._compiled += 1
            self._finish_if_over()
            self._news.notify_all()

    def _finish_if_over(self) -> None:
        if not self._over or self._closed:
            return
        took = time.monotonic() - self._started_s
        log.info("%d kernels compiled ahead in %.1f s, %d not", self._compiled, took, self._failed)
        if self._mark is not None and not self._died:
            with suppress(OSError):
                self._mark.parent.mkdir(parents=True, exist_ok=True)
                self._mark.touch()


class _WorkerGone(Exception):
    """A worker process has ended."""


class _Worker:
    """A process that answers what it is told, one thing after the other; see compile_worker.py."""

    def __init__(self, command: Sequence[str]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-P", *command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=_environment(),
            creationflags=getattr(subprocess, "CREATE_NO_WINDOW", 0)
            | getattr(subprocess, "BELOW_NORMAL_PRIORITY_CLASS", 0),
        )

    def ask(self, task: object) -> Any:
        """Its first answer: None once the task is done, or a sentence if something went wrong. Raises _WorkerGone."""
        try:
            assert self._process.stdin is not None
            pickle.dump(task, self._process.stdin)
            self._process.stdin.flush()
        except (OSError, ValueError) as error:
            raise _WorkerGone(f"a worker has ended ({error})") from None
        return self.hear()

    def hear(self) -> Any:
        """Its next answer. Raises _WorkerGone."""
        try:
            assert self._process.stdout is not None
            return pickle.load(self._process.stdout)
        except (OSError, ValueError, EOFError, pickle.UnpicklingError) as error:
            raise _WorkerGone(f"a worker has ended ({type(error).__name__})") from None

    def kill(self) -> None:
        with suppress(OSError):
            self._process.kill()

    def close(self) -> None:
        """Lets it end, and waits for that."""
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                with suppress(OSError):
                    stream.close()
        self._process.wait()


def _environment() -> dict[str, str]:
    """That of this process, but that the workers see no GPU, on which each would take memory."""
    from triton import knobs

    return os.environ | {"CUDA_VISIBLE_DEVICES": "-1", "TRITON_CACHE_DIR": knobs.cache.dir, "OMP_NUM_THREADS": "1"}


def compile_ahead(recipe: Recipe, model: Mapping[str, Any], tensors: Mapping[str, TensorInfo]) -> CompileAhead | None:
    """Starts compiling unless that was done before on this machine, or would not help; never raises. `model` is the
    config and `tensors` those of the checkpoint, by which the model is known again."""
    try:
        workers = num_workers()
        if not usable() or workers < 2:
            return None
        mark = mark_of(recipe, model, tensors)
        return None if mark.exists() else CompileAhead(recipe, workers, mark)
    except Exception as error:  # kernels are compiled when they are launched
        log.debug("kernels are not compiled ahead: %s", error)
        return None


def usable() -> bool:
    """Whether there is a Triton that compiles, and a Python to be started."""
    if os.environ.get("TRITON_INTERPRET") == "1" or getattr(sys, "frozen", False) or not sys.executable:
        return False
    try:
        import octavo.kernels.compile_jobs  # noqa: F401
    except ImportError:
        return False
    return True


def num_workers() -> int:
    """One a core that this process may use, as long as there is memory."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(MOST_WORKERS, cores, psutil.virtual_memory().available // (2 * WORKER_BYTES))


def mark_of(recipe: Recipe, model: Mapping[str, Any], tensors: Mapping[str, TensorInfo]) -> Path:
    """The file that says that these kernels were compiled. It lies in the cache that it speaks of, and goes with it."""
    import triton
    from triton import knobs

    kinds = sorted((name, info.dtype, list(info.shape)) for name, info in tensors.items())
    settings = {name: value for name, value in asdict(recipe.config).items() if name in _SETTINGS}
    versions = (torch.__version__, triton.__version__, sources_digest())
    facts = (model, kinds, settings, recipe.traits, recipe.dtype, versions)
    digest = hashlib.sha256(json.dumps(facts, sort_keys=True, default=str).encode()).hexdigest()
    return Path(knobs.cache.dir) / f"octavo-{digest[:32]}"


def sources_digest() -> str:
    """Of the code that launches."""
    digest = hashlib.sha256()
    engine = Path(__file__).parent
    for folder in (engine.parent / "kernels", engine):
        for path in sorted(folder.rglob("*.py")):
            digest.update(path.read_bytes())
    return digest.hexdigest()
