"""Runs the tests of interpreted/ in a process of their own, where every kernel is interpreted on the CPU."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = sorted((Path(__file__).parent / "interpreted").glob("test_*.py"))


@pytest.mark.timeout(900)  # a minute or two on an idle core
@pytest.mark.parametrize("part", ["attention", "others"])  # halves that two processes can share
def test_kernels_equal_their_references_under_the_interpreter(part):
    environment = {key: value for key, value in os.environ.items() if not key.startswith("PYTEST_")}
    environment |= {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    tests = [str(path) for path in TESTS if ("attention" in path.name) == (part == "attention")]
    command = [sys.executable, "-m", "pytest", *tests, "-p", "no:cacheprovider", "--durations=5"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, encoding="utf-8", check=False)
    print(done.stdout[-6000:], done.stderr[-2000:])
    assert done.returncode == 0
    passed = re.search(r"(\d+) passed", done.stdout)
    assert passed is not None
    assert int(passed[1]) > 50
