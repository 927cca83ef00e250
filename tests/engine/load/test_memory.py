"""Streaming holds a few tensors, not a shard and not the model."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

_MIB = 1 << 20

# Runs alone, so that the peak is its own; prints the growth of the peak over what was resident before.
_MEASURE = """
import json, sys
import psutil, torch
from octavo.engine.load import safetensors_checkpoint
from octavo.engine.load.checkpoint import open_checkpoint

safetensors_checkpoint.AHEAD_BYTES = 16 << 20

def peak():
    info = psutil.Process().memory_info()
    if hasattr(info, "peak_wset"):
        return info.peak_wset
    import resource
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

total = 0
with open_checkpoint(sys.argv[1]) as checkpoint:
    for _ in checkpoint.stream([min(checkpoint.tensors)]):  # threads and code paged in
        pass
    before = peak()
    for name, tensor in checkpoint.stream(dtype=getattr(torch, sys.argv[2])):
        total += tensor.numel()
    print(json.dumps({"growth": peak() - before, "total": total}))
"""


def _measure(path: Path, dtype: str) -> dict[str, int]:
    ran = subprocess.run([sys.executable, "-c", _MEASURE, str(path), dtype], capture_output=True, text=True, check=True)
    return json.loads(ran.stdout)


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_a_sharded_folder_streams_within_what_is_read_ahead(write_safetensors: Callable[..., Path], dtype: str) -> None:
    shard = {f"{i}": torch.zeros(4 * _MIB, dtype=torch.bfloat16) for i in range(6)}  # 8 MiB each, 48 MiB a shard
    folder = write_safetensors([{f"{number}.{name}": t for name, t in shard.items()} for number in range(4)])
    measured = _measure(folder, dtype)
    assert measured["total"] == 24 * 4 * _MIB
    # A tensor or two read ahead, the one in use and the one before it, pieces under conversion, threads' own heaps.
    assert measured["growth"] < 0.5 * measured["total"] * getattr(torch, dtype).itemsize


def test_a_gguf_file_streams_within_a_tensor_of_memory(write_gguf: Callable[..., Path], llama_metadata: dict) -> None:
    tensors = {"token_embd.weight": np.zeros((64 * 1024, 64), np.float32)}  # 16 MiB
    for layer in range(2):
        tensors |= {
            f"blk.{layer}.ffn_{part}.weight": np.zeros((64 * 1024, 64), np.float32) for part in ("gate", "up", "down")
        }
    measured = _measure(write_gguf("llama", llama_metadata, tensors), "bfloat16")
    assert measured["total"] == 7 * 4 * _MIB
    assert measured["growth"] < 40 * _MIB
