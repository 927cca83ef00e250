"""Launches noted as jobs for other processes: each ends where the launch itself will look for its binary."""

from __future__ import annotations

import hashlib
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
import triton
from triton import knobs
from triton._C.libtriton import get_cache_invalidating_env_vars
from triton.compiler import make_backend
from triton.runtime.cache import get_cache_key
from triton.runtime.driver import driver
from triton.runtime.jit import JITFunction

from octavo.kernels import compile_jobs
from octavo.kernels.activation import gated
from octavo.kernels.compile_cases import TARGETS
from octavo.kernels.compile_jobs import CompileJob, compile_job, noting_jobs
from octavo.kernels.device import as_device
from octavo.kernels.rows import patch


def key_of(source: Any, target: Any, options: Any) -> str:
    """Where Triton's compiler looks for a binary."""
    backend = make_backend(target)
    parsed = backend.parse_options(dict(options) | source.parse_options())
    key = get_cache_key(source, backend, parsed, get_cache_invalidating_env_vars())
    return hashlib.sha256(key.encode()).hexdigest()


@pytest.fixture(autouse=True)
def _compiler() -> None:
    from octavo.kernels.activation import _gated_kernel

    if not isinstance(_gated_kernel, JITFunction):
        pytest.skip("kernels run in the interpreter")


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The keys under which launches on a driver of one generation look for their binaries, which are never made."""
    keys: list[str] = []

    def look(source, target, options):
        keys.append(key_of(source, target, options))
        raise LookupError("not there")

    class Driver:
        def get_current_device(self):
            return "of the test"

        def get_current_stream(self, device):
            return 0

        def get_current_target(self):
            return triton.backends.compiler.GPUTarget("cuda", 90, 32)

    monkeypatch.setattr(triton.compiler, "compile", look)
    monkeypatch.setattr(driver, "_active", Driver())
    return keys


def launches(device: str) -> list[object]:
    """Launches whose arguments differ in type, alignment, and what Triton knows of whole numbers."""
    wide, table = (
        torch.empty(40, dtype=torch.int32, device=device),
        torch.empty(8, 33, dtype=torch.int32, device=device),
    )
    x = torch.empty(3, 4 * 64 + 8, dtype=torch.bfloat16, device=device)
    aligned, odd = wide[:32].view(2, 16), wide[1:33].view(2, 16)
    return [
        lambda: gated(x[:, :256], "silu"),
        lambda: gated(x[:, 1:257], "silu"),  # begins at an odd address
        lambda: gated(x[:, :256].contiguous(), "gelu"),
        lambda: gated(torch.empty(3, 64, device=device), "silu"),
        lambda: patch(table, aligned),
        lambda: patch(table, odd),
        lambda: gated(x[0, :66].as_strided((3, 64), (1, 1)), "silu"),  # a stride of one
    ]


def jobs_of(device: str) -> list[CompileJob]:
    jobs: list[CompileJob] = []
    with as_device(TARGETS[90]), noting_jobs(90, jobs.append):
        for launch in launches(device):
            launch()
    return jobs


def keys_of(jobs: list[CompileJob]) -> list[str]:
    """As another process finds them."""
    told = [pickle.loads(pickle.dumps(job)) for job in jobs]
    return [key_of(job.source(), job.target, job.options) for job in told]


def test_a_job_on_tensors_without_storage_has_the_key_of_the_launch_on_real_ones(seen):
    for launch in launches("cpu"):
        with as_device(TARGETS[90]), pytest.raises(LookupError):
            launch()
    assert len(set(seen)) == len(seen) == 7
    assert keys_of(jobs_of("meta")) == seen


def test_noting_leaves_triton_as_it_was():
    before = JITFunction.run, triton.compiler.compile, driver._active
    with pytest.raises(KeyError), noting_jobs(90, lambda job: None):
        raise KeyError
    jobs = jobs_of("meta")
    assert (JITFunction.run, triton.compiler.compile, driver._active) == before
    assert jobs_of("meta") == jobs  # and nothing of the first time was kept


def test_each_kind_of_launch_is_noted_once():
    jobs: list[CompileJob] = []
    with as_device(TARGETS[90]), noting_jobs(90, jobs.append):
        for _ in range(2):
            for rows in (3, 5):
                gated(torch.empty(rows, 64, device="meta"), "silu")
    assert len(jobs) == 1


def test_a_compiled_job_is_found_in_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(knobs.cache, "dir", str(tmp_path))
    hits: list[bool] = []
    monkeypatch.setattr(knobs.compilation, "listener", lambda **told: hits.append(told["cache_hit"]))
    job = jobs_of("meta")[-1]
    compile_job(job)
    compile_job(job)
    assert hits == [False, True]
    assert next(tmp_path.rglob("*.cubin")).stat().st_size > 0


def test_a_launcher_that_cannot_be_made_here_is_left_to_the_launch(monkeypatch: pytest.MonkeyPatch):
    made: list[object] = []
    monkeypatch.setattr(triton.compiler, "compile", lambda source, target, options: made.append(source) or "compiled")
    monkeypatch.setattr(compile_jobs, "_compile_launcher", lambda compiled: 1 / 0)
    compile_job(jobs_of("meta")[-1])
    assert len(made) == 1
