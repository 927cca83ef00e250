"""Rounding at load takes the memory of the result and of one layer, never that of the whole model in full."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

_MIB = 1 << 20
CONFIG = {
    "model_type": "llama",
    "vocab_size": 64,
    "hidden_size": 512,
    "intermediate_size": 2048,
    "num_hidden_layers": 6,
    "num_attention_heads": 8,
    "num_key_value_heads": 8,
    "max_position_embeddings": 64,
}

# Runs alone, so that the peak is its own; prints the growth of the peak while the model is built.
_MEASURE = """
import json, sys
import psutil, torch
from octavo.engine.load.checkpoint import open_checkpoint
from octavo.engine.model.build import build_model

def peak():
    info = psutil.Process().memory_info()
    if hasattr(info, "peak_wset"):
        return info.peak_wset
    import resource
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

options = {"device": "cpu", "dtype": torch.bfloat16, "context_length": 64, "fusion": False}
with open_checkpoint(sys.argv[1]) as checkpoint:
    build_model(checkpoint, **options, quantization=sys.argv[3])  # threads and code paged in
with open_checkpoint(sys.argv[2]) as checkpoint:
    before = peak()
    model = build_model(checkpoint, **options, quantization=sys.argv[3])
    print(json.dumps({"growth": peak() - before, "result": model.weight_bytes}))
"""


def saved(folder: Path, layers: int) -> Path:
    import transformers

    folder.mkdir()
    config = CONFIG | {"num_hidden_layers": layers}
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(transformers.AutoConfig.for_model(**config))
    save_file({name: t.clone() for name, t in model.state_dict().items()}, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return folder


@pytest.mark.parametrize("quantization", ["int4", "nf4"])
def test_the_peak_is_the_result_and_one_layer(tmp_path: Path, quantization: str) -> None:
    small, large = saved(tmp_path / "small", 1), saved(tmp_path / "large", 6)
    flags = [str(small), str(large), quantization]
    ran = subprocess.run([sys.executable, "-c", _MEASURE, *flags], capture_output=True, text=True, check=True)
    measured = json.loads(ran.stdout)
    full, layer = 96 * _MIB, 16 * _MIB  # in float32, as the file holds it
    assert measured["result"] < full / 3
    assert measured["growth"] < measured["result"] + 2 * layer
