"""Inspection reads headers only and lists every problem instead of stopping at the first."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from octavo.engine.load.inspect import inspect_checkpoint


def test_a_whole_gguf_file_is_described_without_problems(
    write_gguf: Callable[..., Path], llama_metadata: dict[str, Any], llama_tensors: dict[str, np.ndarray]
) -> None:
    path = write_gguf("llama", llama_metadata, llama_tensors)
    report = inspect_checkpoint(path)
    assert report.problems == ()
    assert (report.kind, report.architecture, report.files) == ("gguf", "LlamaForCausalLM", (path,))
    assert report.parameters == sum(tensor.size for tensor in llama_tensors.values())
    assert report.total_bytes == 4 * report.parameters
    assert report.bytes_by_dtype == {"F32": report.total_bytes}
    assert len(report.tensors) == len(llama_tensors)


def test_mixed_types_are_added_up_by_type(write_safetensors: Callable[..., Path]) -> None:
    folder = write_safetensors([{"a": torch.zeros(4), "b": torch.zeros(4, dtype=torch.bfloat16)}])
    report = inspect_checkpoint(folder)
    assert report.bytes_by_dtype == {"F32": 16, "BF16": 8}
    assert report.problems == ()


def test_a_type_that_is_not_read_is_a_problem(write_safetensors: Callable[..., Path]) -> None:
    folder = write_safetensors([{"a": torch.zeros(4), "q": torch.zeros(4, dtype=torch.uint16)}])
    (problem,) = inspect_checkpoint(folder).problems
    assert "q as U16" in problem


def test_every_bad_shard_is_named(write_safetensors: Callable[..., Path]) -> None:
    folder = write_safetensors([{f"w{i}": torch.zeros(64)} for i in range(3)])
    for number in (1, 3):
        shard = folder / f"model-0000{number}-of-00003.safetensors"
        shard.write_bytes(shard.read_bytes()[:-4])
    problems = inspect_checkpoint(folder).problems
    assert len(problems) == 2
    assert "model-00001-of-00003.safetensors is cut off" in problems[0]
    assert "model-00003-of-00003.safetensors is cut off" in problems[1]


def test_layers_without_tensors_and_sizes_that_disagree_are_problems(write_safetensors: Callable[..., Path]) -> None:
    tensors = {"model.layers.0.w": torch.zeros(2), "model.embed_tokens.weight": torch.zeros(10, 4)}
    config = {"architectures": ["X"], "num_hidden_layers": 3, "vocab_size": 12, "hidden_size": 4}
    problems = inspect_checkpoint(write_safetensors([tensors], config)).problems
    assert problems == (
        "The configuration has 3 layers; no tensor belongs to layer 1, 2.",
        "model.embed_tokens.weight is [10, 4], the configuration says [12, 4].",
    )


def test_what_is_no_model_is_a_problem_and_not_an_exception(tmp_path: Path) -> None:
    assert "holds no model weights" in inspect_checkpoint(tmp_path).problems[0]
    assert "There is no model at" in inspect_checkpoint(tmp_path / "nowhere").problems[0]
    (tmp_path / "m.gguf").write_bytes(b"GGUF")
    assert "is cut off" in inspect_checkpoint(tmp_path / "m.gguf").problems[0]
