"""Every kernel compiles for every supported GPU generation, without a GPU, in a process of its own."""

import os
import re
import subprocess
import sys
from collections import Counter
from dataclasses import replace

import pytest

from octavo.kernels import compile_all
from octavo.kernels.compile_cases import TARGETS, record
from octavo.kernels.compile_choice import FAMILIES, Job, choose, jobs_of

PRODUCTS = {"decode_kernel", "prefill_kernel", "prefix_kernel", "dense_kernel", "tile_kernel"}


@pytest.fixture(scope="module")
def recorded():
    return {target: record(target) for target in TARGETS}


def values_of(job):
    launch = job.launch
    return {(launch.kernel, pair) for part in (launch.signature, launch.constants, launch.options) for pair in part}


@pytest.mark.timeout(900)  # some minutes of an idle core
def test_every_kernel_compiles_for_every_generation(tmp_path, recorded):
    environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    environment["TRITON_CACHE_DIR"] = str(tmp_path)  # a warm cache would hide a compiler error
    workers = "1" if "PYTEST_XDIST_WORKER" in os.environ else "2"  # the other core has tests of its own
    command = [sys.executable, "-m", "octavo.kernels.compile_all", "--workers", workers]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, encoding="utf-8", check=False)
    print(done.stdout[-6000:], done.stderr[-2000:])
    assert done.returncode == 0
    assert "FP_FUSION" not in done.stderr  # Triton warns where products and sums may come apart in its next version
    found = re.findall(r"sm_(\d+): (\d+) variants of \d+ kernels compiled", done.stdout)
    assert {int(target): int(variants) for target, variants in found} == Counter(job.target for job in choose(recorded))


def test_each_kernel_has_each_of_its_types_and_constants_compiled(recorded):
    every, chosen = jobs_of(recorded), choose(recorded)
    assert {value for job in every for value in values_of(job)} == {value for job in chosen for value in values_of(job)}
    assert len(chosen) < 0.75 * len(every)
    names = {job.launch.kernel for job in every}
    assert PRODUCTS | {"_rope_write_kernel", "_row_kernel", "gguf_gemv_kernel", "quant_tile_kernel"} <= names


@pytest.mark.parametrize("family", sorted(set(FAMILIES.values())))
def test_each_family_compiles_each_type_and_tile_of_the_products_that_it_launches(recorded, family):
    every, chosen = (
        [job.launch for job in jobs if FAMILIES[job.target] == family and job.launch.kernel in PRODUCTS]
        for jobs in (jobs_of(recorded), choose(recorded))
    )
    assert every

    def types(launches):
        pointers = ((launch, pair) for launch in launches for pair in launch.signature if pair[1].startswith("*"))
        return {(launch.kernel, pair) for launch, pair in pointers}

    def tiles(launches):
        names = ("DIM", "BLOCK_M", "BLOCK_N", "BLOCK_T", "BLOCK_K", "STAGES", "num_stages", "num_warps")
        values = ((launch, dict(launch.constants) | dict(launch.options)) for launch in launches)
        return {(launch.kernel, *map(found.get, names)) for launch, found in values}

    assert types(every) == types(chosen)
    assert tiles(every) == tiles(chosen)


def test_generations_launch_what_they_have_the_units_for(recorded):
    names = {target: {launch.kernel for launch in launches} for target, launches in recorded.items()}
    assert set(names) == {75, 80, 86, 89, 90, 100, 120}
    assert names[75] >= {"decode_kernel", "_rope_write_kernel", "_row_kernel"}  # longer pieces go to torch there
    assert names[80] - names[75] >= {"prefill_kernel", "prefix_kernel"}
    assert names[90] - names[89] >= {"dense_kernel"}  # needs the tensor memory accelerator


def test_a_launch_that_one_generation_of_a_family_has_no_shared_memory_for_is_an_error(recorded, tmp_path, monkeypatch):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    launch = next(launch for launch in recorded[80] if launch.kernel == "_block_kernel")
    job = Job(80, launch, (80, 86))
    fits = compile_all._compile(job)
    assert fits.error is None
    assert 0 < fits.shared_bytes <= 1024
    monkeypatch.setitem(TARGETS, 86, replace(TARGETS[86], shared_bytes=fits.shared_bytes - 1))
    assert "shared memory" in compile_all._compile(job).error
