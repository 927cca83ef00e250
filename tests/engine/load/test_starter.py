"""The starter model, whole: its configuration, its weights against the gguf package, and how long it takes."""

from __future__ import annotations

import time
from pathlib import Path

import gguf
import numpy as np
import torch

from octavo.engine.load.checkpoint import Checkpoint, open_checkpoint
from octavo.engine.load.gguf_file import read_gguf
from octavo.engine.load.inspect import inspect_checkpoint


def test_configuration_names_and_sizes(starter_path: Path) -> None:
    with open_checkpoint(starter_path) as checkpoint:
        config = checkpoint.config
        assert (config["model_type"], config["num_hidden_layers"], config["head_dim"]) == ("llama", 30, 64)
        assert (config["num_attention_heads"], config["num_key_value_heads"]) == (9, 3)
        assert config["rope_parameters"] == {"rope_type": "default", "rope_theta": 100000.0}
        assert config["tie_word_embeddings"] is True
        assert config["rms_norm_eps"] == 1e-5
        assert len(checkpoint.tensors) == 272
        assert checkpoint.tensors["model.embed_tokens.weight"].shape == (49152, 576)
    report = inspect_checkpoint(starter_path)
    assert report.problems == ()
    assert report.parameters == 134_515_008


def test_weights_equal_the_gguf_package_with_query_and_key_rows_put_back(starter_path: Path) -> None:
    stored = read_gguf(starter_path).tensors

    def reference(name: str) -> np.ndarray:
        tensor = stored[name]
        raw = np.fromfile(starter_path, np.uint8, count=tensor.size_bytes, offset=tensor.offset)
        values = gguf.quants.dequantize(raw, gguf.GGMLQuantizationType(tensor.type.number))
        return values.reshape(tensor.shape)

    with open_checkpoint(starter_path) as checkpoint:
        for ours, theirs in (
            ("model.layers.7.mlp.down_proj.weight", "blk.7.ffn_down.weight"),
            ("model.layers.29.self_attn.v_proj.weight", "blk.29.attn_v.weight"),
            ("model.norm.weight", "output_norm.weight"),
            ("model.embed_tokens.weight", "token_embd.weight"),
        ):
            assert np.array_equal(checkpoint.read(ours).numpy(), reference(theirs))
        for part, heads in (("q", 9), ("k", 3)):
            got = checkpoint.read(f"model.layers.3.self_attn.{part}_proj.weight").numpy()
            interleaved = got.reshape(heads, 2, 32, 576).swapaxes(1, 2).reshape(-1, 576)
            assert np.array_equal(interleaved, reference(f"blk.3.attn_{part}.weight"))


def test_all_weights_are_decoded_within_two_seconds_of_processor_time(starter_path: Path) -> None:
    """Processor time and the best of three: other programs may be at work, and they slow a shared core."""

    def decode(checkpoint: Checkpoint) -> float:
        began = time.process_time()
        assert sum(tensor.numel() for _, tensor in checkpoint.stream(dtype=torch.bfloat16)) == 134_515_008
        return time.process_time() - began

    with open_checkpoint(starter_path) as checkpoint:
        assert any(decode(checkpoint) < 2.0 for _ in range(3))
