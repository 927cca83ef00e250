"""Processes that compile ahead: in which order, what waits for what, and that nothing they do can harm."""

from __future__ import annotations

import hashlib
import io
import pickle
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from octavo.engine import assemble as assembling
from octavo.engine import compiling
from octavo.engine.compiling import CompileAhead, Recipe, compile_ahead, mark_of
from octavo.engine.config import EngineConfig
from octavo.engine.errors import LoadError
from octavo.engine.load.checkpoint import TensorInfo
from octavo.engine.run.runner import EVERYTHING
from octavo.kernels.device import DeviceTraits

RECIPE = Recipe("shape:tiny", EngineConfig(), torch.device("cuda:0"), DeviceTraits(90, 132, 232448), torch.bfloat16, 64)

# A worker without Triton. Each job notes that it was begun, then waits for a file of its name with the answer.
WORKER = """
import os, pickle, sys, time
from pathlib import Path
from types import SimpleNamespace
folder, script = Path(sys.argv[1]), sys.argv[2:]

def send(message):
    pickle.dump(message, sys.stdout.buffer)
    sys.stdout.buffer.flush()

def told(name):
    while True:
        try:
            return (folder / name).read_text()
        except FileNotFoundError:
            time.sleep(0.01)

while True:
    try:
        task = pickle.load(sys.stdin.buffer)
    except EOFError:
        break
    if isinstance(task, tuple):
        for line in script:
            if line == "die":
                os._exit(1)
            if line.startswith("fail"):
                send(line)
                break
            if line.startswith("after"):
                told(line)
                continue
            kernel, begun = line.split(":")
            send((SimpleNamespace(kernel=kernel), int(begun)))
        else:
            send(None)
    else:
        (folder / f"{task.kernel}.begun").touch()
        answer = told(task.kernel)
        if answer == "die":
            os._exit(1)
        send(answer or None)
"""


class Bench:
    """A folder in which jobs are seen to begin and told to end."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.mark = folder / "cache" / "mark"
        self._made: list[CompileAhead] = []

    def start(self, *script: str, workers: int = 2) -> CompileAhead:
        recipe: Any = ("a recipe",)  # which these workers do not read
        ahead = CompileAhead(recipe, workers, self.mark, ("-c", WORKER, str(self.folder), *script))
        self._made.append(ahead)
        return ahead

    def end(self, kernel: str, answer: str = "") -> None:
        """Lets a job end, with a sentence if it fails."""
        made = self.folder / f"{kernel}.new"
        made.write_text(answer)
        made.rename(self.folder / kernel)

    def until(self, reached: Callable[[], bool]) -> None:
        while not reached():
            time.sleep(0.005)

    def has_begun(self, kernel: str) -> bool:
        return (self.folder / f"{kernel}.begun").exists()

    def close(self) -> None:
        for ahead in self._made:
            ahead.close()


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(tmp_path)
    yield made
    made.close()


class Waiting:
    """Somebody who waits in a thread."""

    def __init__(self, ahead: CompileAhead, graphs: int) -> None:
        self.said: list[bool] = []
        self.thread = threading.Thread(target=lambda: self.said.append(ahead.wait(graphs)))
        self.thread.start()


def test_a_graph_waits_for_what_it_launches_and_not_for_later_ones(bench: Bench) -> None:
    ahead = bench.start("a:1", "b:1", "c:2")
    bench.until(lambda: bench.has_begun("a") and bench.has_begun("b"))
    waiting = Waiting(ahead, 1)
    bench.end("a")
    bench.until(lambda: bench.has_begun("c"))
    assert not waiting.said
    bench.end("b")
    waiting.thread.join()
    assert waiting.said == [True]
    assert not ahead.over  # c is still to come
    assert not ahead.wait(2, 0.01)
    assert not bench.mark.exists()
    bench.end("c")
    assert ahead.wait(EVERYTHING)
    assert ahead.over
    assert bench.mark.exists()


def test_a_graph_waits_until_all_that_it_launches_is_known(bench: Bench) -> None:
    ahead = bench.start("a:1", "after-a", "b:1", "after-b", "c:2")
    bench.end("a")
    bench.until(lambda: bench.has_begun("a"))
    waiting = Waiting(ahead, 1)
    bench.end("after-a")
    bench.until(lambda: bench.has_begun("b"))
    bench.end("b")
    bench.end("c")
    assert not waiting.said  # there may be more until the next graph begins
    bench.end("after-b")
    waiting.thread.join()
    assert ahead.wait(EVERYTHING)


def test_what_takes_longest_is_begun_first(bench: Bench) -> None:
    ahead = bench.start("x:1", "y:1", "decode_kernel:1", "z:1", workers=1)
    bench.until(lambda: bench.has_begun("decode_kernel"))
    assert not any(map(bench.has_begun, "xyz"))
    for kernel in ("decode_kernel", "x", "y", "z"):
        bench.end(kernel)
    assert ahead.wait(EVERYTHING)


def test_a_kernel_that_does_not_compile_is_left_to_the_launch(bench: Bench) -> None:
    ahead = bench.start("a:1", "b:1")
    bench.end("a", "CompilationError: no")
    bench.end("b")
    assert ahead.wait(EVERYTHING)
    assert bench.mark.exists()  # by the next start, the engine has launched and thereby compiled it


@pytest.mark.parametrize("script", [("fail: no such model",), ("die",), ("a:1", "fail: a step"), ("a:1", "die")])
def test_a_rehearsal_that_breaks_off_costs_only_what_it_did_not_find(bench: Bench, script: tuple[str, ...]) -> None:
    bench.end("a")
    ahead = bench.start(*script)
    assert ahead.wait(1)
    assert bench.has_begun("a") == ("a:1" in script)
    assert bench.mark.exists() == ("die" not in script)


def test_others_go_on_where_a_worker_dies(bench: Bench) -> None:
    ahead = bench.start("a:1", "b:1")
    bench.end("a", "die")
    bench.until(lambda: bench.has_begun("a"))
    bench.end("b")
    assert ahead.wait(EVERYTHING)
    assert bench.has_begun("b")
    assert not bench.mark.exists()


def test_nobody_waits_for_the_dead(bench: Bench) -> None:
    ahead = bench.start("a:1", "b:1", "c:2")
    bench.end("a", "die")
    bench.end("b", "die")
    bench.end("c", "die")
    assert ahead.wait(EVERYTHING)


def test_closing_ends_the_workers_and_whoever_waits(bench: Bench) -> None:
    ahead = bench.start("a:1", "b:1")
    bench.until(lambda: bench.has_begun("a") and bench.has_begun("b"))
    waiting = Waiting(ahead, 1)
    ahead.close()
    ahead.close()
    waiting.thread.join()
    assert waiting.said == [True]
    assert all(worker._process.returncode is not None for worker in ahead._workers)
    assert not bench.mark.exists()


def test_without_news_for_long_it_is_given_up(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    ahead = bench.start("a:1")
    bench.until(lambda: bench.has_begun("a"))
    monkeypatch.setattr(compiling, "PATIENCE_S", 0.05)
    assert ahead.wait(1)


# -- whether it is worth it ------------------------------------------------------------------------------------------


@pytest.fixture
def started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many workers were started each time."""
    knobs = pytest.importorskip("triton.knobs", reason="Triton is not installed")
    found: list[int] = []
    monkeypatch.setattr(compiling, "CompileAhead", lambda recipe, workers, mark: found.append(workers))
    monkeypatch.setattr(compiling, "num_workers", lambda: 3)
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    monkeypatch.setattr(knobs.cache, "dir", str(tmp_path))
    return found


def test_a_model_is_compiled_once(started: list[int]) -> None:
    compile_ahead(RECIPE, {"hidden_size": 8}, {})
    mark_of(RECIPE, {"hidden_size": 8}, {}).touch()
    compile_ahead(RECIPE, {"hidden_size": 8}, {})
    compile_ahead(replace(RECIPE, context_length=32, source="elsewhere"), {"hidden_size": 8}, {})
    assert started == [3]


@pytest.mark.parametrize("change", ["config", "held", "quantization", "card", "dtype", "sources"])
def test_what_changes_kernels_has_them_compiled_again(
    started: list[int], change: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model: dict[str, Any] = {"hidden_size": 8}
    tensors = {"w": TensorInfo("w", "Q4_K", (8, 8), Path("a"), 36)}
    mark_of(RECIPE, model, tensors).touch()
    told = RECIPE
    if change == "config":
        model = {"hidden_size": 16}
    elif change == "held":
        tensors = {"w": replace(tensors["w"], dtype="Q6_K")}
    elif change == "quantization":
        told = replace(RECIPE, config=EngineConfig(quantization="int4"))
    elif change == "card":
        told = replace(RECIPE, traits=DeviceTraits(90, 78, 232448))
    elif change == "dtype":
        told = replace(RECIPE, dtype=torch.float16)
    else:
        monkeypatch.setattr(compiling, "sources_digest", lambda: "others")
    compile_ahead(told, model, tensors)
    assert started == [3]


@pytest.mark.parametrize("reason", ["one core", "interpreter", "frozen", "broken"])
def test_where_it_would_not_help_nothing_is_started(
    started: list[int], reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if reason == "one core":
        monkeypatch.setattr(compiling, "num_workers", lambda: 1)
    elif reason == "interpreter":
        monkeypatch.setenv("TRITON_INTERPRET", "1")
    elif reason == "frozen":
        monkeypatch.setattr(sys, "frozen", True, raising=False)
    else:
        monkeypatch.setattr(compiling, "mark_of", lambda *told: 1 / 0)
    assert compile_ahead(RECIPE, {}, {}) is None
    assert not started


def test_workers_are_bound_by_cores_and_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiling.os, "cpu_count", lambda: 64)
    monkeypatch.setattr(compiling.os, "sched_getaffinity", lambda pid: set(range(64)), raising=False)
    free = {"bytes": 1 << 40}
    monkeypatch.setattr(compiling.psutil, "virtual_memory", lambda: SimpleNamespace(available=free["bytes"]))
    assert compiling.num_workers() == compiling.MOST_WORKERS
    free["bytes"] = 7 << 30
    assert compiling.num_workers() == 3
    free["bytes"] = 1 << 30
    assert compiling.num_workers() == 0


def test_a_load_that_fails_ends_what_it_started(monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[str] = []

    def start(recipe: Recipe, model: object, tensors: object, undo: Any) -> None:
        undo.callback(lambda: closed.append("closed"))

    def fail(*told: object, **settings: object) -> None:
        raise LoadError("no", remedy="none")

    monkeypatch.setattr(assembling, "_compile_meanwhile", start)
    monkeypatch.setattr(assembling, "build_random", fail)
    with pytest.raises(LoadError):
        assembling.assemble("shape:qwen-0.5b", EngineConfig(device="cpu"), lambda told: None)
    assert closed == ["closed"]


def test_a_worker_compiles_what_it_is_told_and_ends_with_its_input(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    knobs = pytest.importorskip("triton.knobs", reason="Triton is not installed")
    from octavo.kernels.compile_jobs import noting_jobs
    from octavo.kernels.rows import patch

    jobs: list[Any] = []
    with noting_jobs(90, jobs.append):
        patch(torch.empty(4, 8, dtype=torch.int32, device="meta"), torch.empty(2, 8, dtype=torch.int32, device="meta"))
    broken = replace(jobs[0], signature=jobs[0].signature | {"table_ptr": "nothing"})
    told = b"".join(pickle.dumps(task) for task in (jobs[0], broken, "no recipe"))
    monkeypatch.setattr(knobs.cache, "dir", str(tmp_path))
    done = subprocess.run(
        [sys.executable, "-P", *compiling.WORKER],
        input=told,
        env=compiling._environment(),
        capture_output=True,
        check=True,
    )
    assert next(tmp_path.rglob("*.cubin")).parent.name == _folder_of(jobs[0])
    answers = _all_of(done.stdout)
    assert answers[0] is None
    assert len(answers) == 3
    assert all(isinstance(answer, str) and ":" in answer for answer in answers[1:])


def _folder_of(job: Any) -> str:
    """Of Triton's cache, in which this process would look for the job's binary."""
    import triton
    from triton.runtime.cache import get_cache_manager

    backend, source = triton.compiler.make_backend(job.target), job.source()
    options = backend.parse_options(dict(job.options) | source.parse_options())
    variables = triton._C.libtriton.get_cache_invalidating_env_vars()
    key = triton.runtime.cache.get_cache_key(source, backend, options, variables)
    return Path(get_cache_manager(hashlib.sha256(key.encode()).hexdigest()).cache_dir).name


def _all_of(data: bytes) -> list[object]:
    stream, found = io.BytesIO(data), []
    while stream.tell() < len(data):
        found.append(pickle.load(stream))
    return found
