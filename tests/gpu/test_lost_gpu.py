"""A GPU whose context is broken for good is told apart from one that works and from one that is merely full."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest

pytest.importorskip("psutil", reason="the app's libraries are not installed")
pytest.importorskip("pynvml", reason="the app's libraries are not installed")

pytest.importorskip("octavo.app.gpu_watch", reason="the app is not installed")

# In a process of its own: what breaks the context breaks it for every test after it.
SCRIPT = """
import torch
from octavo.app.gpu_watch import gpu_answers
from octavo.app.monitor.gpu import GpuMeter

assert gpu_answers("cuda:0")
reading = GpuMeter().read("cuda:0")
assert 0 < reading.used_bytes <= reading.total_bytes
assert 0 <= reading.load <= 1
assert reading.name == torch.cuda.get_device_name(0)

table = torch.zeros(4, device="cuda")
try:
    table[torch.tensor([1 << 30], device="cuda")].sum().item()  # a device-side assertion
except RuntimeError:
    pass
assert not gpu_answers("cuda:0")
"""


def test_a_broken_context_is_noticed() -> None:
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(SCRIPT)], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
