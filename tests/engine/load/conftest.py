"""Small checkpoints made on the spot: safetensors folders by transformers, GGUF files by the gguf package's writer."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from torch import Tensor

from octavo.engine.load.checkpoint import Checkpoint, open_checkpoint

MakeFolder = Callable[..., Path]
WriteGGUF = Callable[..., Path]


@pytest.fixture
def write_gguf(tmp_path: Path) -> WriteGGUF:
    """write_gguf(arch, metadata, tensors, name="model.gguf") with metadata keys beginning "." being the architecture's.

    A tensor is an array, or (bytes as uint8 rows, gguf type).
    """

    def write(
        arch: str, metadata: Mapping[str, Any], tensors: Mapping[str, Any], name: str = "model.gguf", **options: Any
    ) -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        writer = gguf.GGUFWriter(path, arch, **options)
        for key, value in metadata.items():
            _add(writer, arch + key if key.startswith(".") else key, value)
        for tensor_name, value in tensors.items():
            data, kind = value if isinstance(value, tuple) else (value, None)
            if isinstance(data, Tensor):
                data = data.detach().float().numpy()
            writer.add_tensor(tensor_name, np.ascontiguousarray(data), raw_dtype=kind)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return path

    return write


def _add(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
    if isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    elif isinstance(value, str):
        writer.add_string(key, value)
    else:
        writer.add_array(key, value)


LLAMA_METADATA: dict[str, Any] = {
    ".context_length": 256,
    ".embedding_length": 64,
    ".block_count": 2,
    ".feed_forward_length": 96,
    ".attention.head_count": 4,
    ".attention.head_count_kv": 2,
    ".attention.layer_norm_rms_epsilon": 1e-5,
    ".rope.dimension_count": 16,
    ".rope.freq_base": 10000.0,
}


@pytest.fixture
def llama_metadata() -> dict[str, Any]:
    """Metadata of a two-layer llama: hidden 64, 4 heads, 2 KV heads, head size 16."""
    return dict(LLAMA_METADATA)


@pytest.fixture
def llama_tensors() -> dict[str, np.ndarray]:
    """Random tensors to go with `llama_metadata`, under GGUF names, tied head."""
    rng = np.random.default_rng(7)
    shapes = {"token_embd.weight": (48, 64), "output_norm.weight": (64,)}
    for layer in range(2):
        block = f"blk.{layer}."
        shapes |= {
            block + "attn_norm.weight": (64,),
            block + "attn_q.weight": (64, 64),
            block + "attn_k.weight": (32, 64),
            block + "attn_v.weight": (32, 64),
            block + "attn_output.weight": (64, 64),
            block + "ffn_norm.weight": (64,),
            block + "ffn_gate.weight": (96, 64),
            block + "ffn_up.weight": (96, 64),
            block + "ffn_down.weight": (64, 96),
        }
    return {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}


@pytest.fixture
def write_safetensors(tmp_path: Path) -> Callable[..., Path]:
    """write_safetensors(shards, config=..., folder="model"): one file, or numbered shards with their index."""

    def write(shards: list[dict[str, Tensor]], config: Mapping[str, Any] | None = None, folder: str = "model") -> Path:
        from safetensors.torch import save_file

        path = tmp_path / folder
        path.mkdir(parents=True, exist_ok=True)
        (path / "config.json").write_text(json.dumps(dict(config or {"model_type": "llama"})), encoding="utf-8")
        if len(shards) == 1:
            save_file(shards[0], path / "model.safetensors")
            return path
        weight_map = {}
        for number, tensors in enumerate(shards, 1):
            name = f"model-{number:05}-of-{len(shards):05}.safetensors"
            save_file(tensors, path / name)
            weight_map |= dict.fromkeys(tensors, name)
        index = {"metadata": {}, "weight_map": weight_map}
        (path / "model.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")
        return path

    return write


@pytest.fixture
def contents() -> Callable[[Path], dict[str, Tensor]]:
    """All tensors of a checkpoint at once."""

    def read(path: Path, dtype: torch.dtype | None = None) -> dict[str, Tensor]:
        checkpoint: Checkpoint
        with open_checkpoint(path) as checkpoint:
            return dict(checkpoint.stream(dtype=dtype))

    return read
