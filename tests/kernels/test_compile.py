"""Every kernel compiles for every supported GPU generation, without a GPU, in a process of its own."""

import os
import re
import subprocess
import sys

import pytest

from octavo.kernels import compile_all


@pytest.mark.timeout(900)  # a minute on two idle cores
def test_every_kernel_compiles_for_every_generation(tmp_path):
    environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    environment["TRITON_CACHE_DIR"] = str(tmp_path)  # a warm cache would hide a compiler error
    workers = "1" if "PYTEST_XDIST_WORKER" in os.environ else "2"  # the other core has tests of its own
    command = [sys.executable, "-m", "octavo.kernels.compile_all", "--workers", workers]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, encoding="utf-8", check=False)
    print(done.stdout[-6000:], done.stderr[-2000:])
    assert done.returncode == 0
    counts = {
        int(target): (int(variants), int(kernels))
        for target, variants, kernels in re.findall(r"sm_(\d+): (\d+) variants of (\d+) kernels compiled", done.stdout)
    }
    launches = {target: compile_all.record(target) for target in compile_all.TARGETS}
    recorded = {target: {launch.kernel for launch in own} for target, own in launches.items()}
    jobs = compile_all.spread(launches)
    assert counts == {
        target: (len(own), len({launch.kernel for launch in own}))
        for target in launches
        for own in [[launch for on, launch in jobs if on == target]]
    }
    assert set(counts) == {75, 80, 86, 89, 90, 100, 120}
    assert {launch for _, launch in jobs} == {launch for own in launches.values() for launch in own}
    products = {"decode_kernel", "prefill_kernel", "prefix_kernel", "dense_kernel", "tile_kernel"}
    for target in (90, 100):  # their products have instructions of their own
        alike = {launch for launch in launches[target] if launch.kernel in products}
        assert alike <= {launch for on, launch in jobs if on == target}
    assert recorded[75] >= {"decode_kernel", "_rope_write_kernel", "_row_kernel"}  # longer pieces go to torch there
    assert recorded[80] - recorded[75] >= {"prefill_kernel", "prefix_kernel"}
    assert recorded[90] - recorded[89] >= {"dense_kernel"}  # needs the tensor memory accelerator
