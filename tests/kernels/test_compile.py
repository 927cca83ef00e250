"""Every kernel compiles for every supported GPU generation, without a GPU, in a process of its own."""

import os
import re
import subprocess
import sys

import pytest


@pytest.mark.timeout(900)  # a minute on two idle cores
def test_every_kernel_compiles_for_every_generation(tmp_path):
    environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    environment["TRITON_CACHE_DIR"] = str(tmp_path)  # a warm cache would hide a compiler error
    command = [sys.executable, "-m", "octavo.kernels.compile_all", "--workers", "2"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, encoding="utf-8", check=False)
    print(done.stdout[-6000:], done.stderr[-2000:])
    assert done.returncode == 0
    counts = {
        int(target): (int(variants), int(kernels))
        for target, variants, kernels in re.findall(r"sm_(\d+): (\d+) variants of (\d+) kernels compiled", done.stdout)
    }
    assert set(counts) == {75, 80, 86, 89, 90, 100, 120}
    assert counts.pop(75)[1] == 8  # all but prefill attention, which goes to torch there
    assert {kernels for _, kernels in counts.values()} == {9}
