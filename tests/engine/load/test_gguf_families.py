"""Each family survives the way to GGUF and back: the same names, the same values, the same logits.

The files are written by the rules of llama.cpp's converter, with names from the gguf package's own table, so that the
maps here are checked against something they were not made from.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gguf
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM

from octavo.engine.errors import CheckpointError, UnsupportedModelError
from octavo.engine.load.checkpoint import open_checkpoint
from octavo.engine.load.gguf_config import llama3_factors
from octavo.engine.load.gguf_names import FAMILIES
from octavo.engine.model.build import check_checkpoint

_SIZES = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 80,
    "max_position_embeddings": 512,
    "tie_word_embeddings": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
_LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500000.0,
    "factor": 32.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
_LONG = [1.0 + i for i in range(8)]
_SHORT = [1.0 + i / 8 for i in range(8)]


@dataclass(frozen=True)
class Case:
    """A tiny model: its class's settings beyond `_SIZES`, and the metadata its GGUF file has beyond the common keys."""

    arch: str
    model_type: str
    settings: dict[str, Any] = field(default_factory=dict)
    metadata: dict[str, Any] = field(default_factory=dict)
    extra: dict[str, list[float]] = field(default_factory=dict)  # setting tensors
    model_type_read: str | None = None  # where a GGUF file cannot tell two types apart

    @property
    def head_dim(self) -> int:
        return self.settings.get("head_dim", 16)


_TIED = {"tie_word_embeddings": True}
_EXPERTS = {".expert_count": 4, ".expert_used_count": 2}
CASES = {
    "llama": Case("llama", "llama"),
    "llama tied": Case("llama", "llama", _TIED),
    "llama biases": Case("llama", "llama", {"attention_bias": True, "mlp_bias": True}),
    "llama head size": Case("llama", "llama", {"head_dim": 32}),
    "llama multi-query": Case("llama", "llama", {"num_key_value_heads": 1}),
    "llama 3.2": Case(
        "llama",
        "llama",
        {"rope_parameters": _LLAMA3, "max_position_embeddings": 16384},
        {".rope.freq_base": 500000.0},
        {"rope_freqs.weight": llama3_factors(500000.0, 16, 32.0, 1.0, 4.0, 8192)},
    ),
    "llama linear": Case(
        "llama",
        "llama",
        {"rope_parameters": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0}},
        {".rope.scaling.type": "linear", ".rope.scaling.factor": 4.0},
    ),
    "mistral": Case("llama", "mistral", {"sliding_window": 8}, {".attention.sliding_window": 8}),
    "mistral whole": Case("llama", "mistral", {"sliding_window": None}, model_type_read="llama"),
    "mixtral": Case("llama", "mixtral", {"num_local_experts": 4, "num_experts_per_tok": 2}, _EXPERTS),
    "smollm3": Case("smollm3", "smollm3", _TIED),
    "granite": Case(
        "granite",
        "granite",
        {
            "attention_multiplier": 0.125,
            "embedding_multiplier": 12.0,
            "residual_multiplier": 0.25,
            "logits_scaling": 8.0,
        },
        {".attention.scale": 0.125, ".embedding_scale": 12.0, ".residual_scale": 0.25, ".logit_scale": 8.0},
    ),
    "qwen2": Case("qwen2", "qwen2", _TIED),
    "qwen2 yarn": Case(
        "qwen2",
        "qwen2",
        {
            "rope_parameters": {
                "rope_type": "yarn",
                "rope_theta": 10000.0,
                "factor": 4.0,
                "original_max_position_embeddings": 128,
            }
        },
        {".rope.scaling.type": "yarn", ".rope.scaling.factor": 4.0, ".rope.scaling.original_context_length": 128},
    ),
    "qwen3": Case("qwen3", "qwen3", {"head_dim": 32}),
    "qwen3moe": Case(
        "qwen3moe",
        "qwen3_moe",
        {
            "num_experts": 4,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 32,
            "norm_topk_prob": True,
            "head_dim": 32,
        },
        {**_EXPERTS, ".expert_feed_forward_length": 32},
    ),
    "gemma2": Case(
        "gemma2",
        "gemma2",
        {**_TIED, "head_dim": 32, "query_pre_attn_scalar": 32, "sliding_window": 8},
        {".attention.sliding_window": 8, ".attn_logit_softcapping": 50.0, ".final_logit_softcapping": 30.0},
    ),
    "gemma3": Case(
        "gemma3",
        "gemma3_text",
        {**_TIED, "head_dim": 32, "query_pre_attn_scalar": 32, "sliding_window": 8, "num_hidden_layers": 7},
        {".attention.sliding_window": 8, ".rope.freq_base": 1_000_000.0},
    ),
    "phi3": Case("phi3", "phi3", {"sliding_window": 64}, {".attention.sliding_window": 64}),
    "phi3 longrope": Case(
        "phi3",
        "phi3",
        {
            "original_max_position_embeddings": 64,
            "rope_parameters": {
                "rope_type": "longrope",
                "rope_theta": 10000.0,
                "long_factor": _LONG,
                "short_factor": _SHORT,
                "original_max_position_embeddings": 64,
            },
        },
        {".rope.scaling.original_context_length": 64, ".attention.sliding_window": 0},
        {"rope_factors_long.weight": _LONG, "rope_factors_short.weight": _SHORT},
    ),
    "olmo2": Case("olmo2", "olmo2"),
}


def _permuted(rows: Tensor, heads: int) -> Tensor:
    """As llama.cpp's converter reorders query and key rows."""
    return rows.reshape(heads, 2, rows.shape[0] // heads // 2, *rows.shape[1:]).swapaxes(1, 2).reshape(rows.shape)


def _converted(case: Case, tensors: dict[str, Tensor], sizes: dict[str, Any]) -> dict[str, Any]:
    arch = next(number for number, name in gguf.MODEL_ARCH_NAMES.items() if name == case.arch)
    table = gguf.get_tensor_name_map(arch, sizes["num_hidden_layers"])
    stacks: dict[str, dict[int, Tensor]] = {}
    out: dict[str, Any] = {}
    for name, tensor in tensors.items():
        if case.arch in ("llama", "granite", "smollm3"):
            if ".q_proj." in name:
                tensor = _permuted(tensor, sizes["num_attention_heads"])
            elif ".k_proj." in name:
                tensor = _permuted(tensor, sizes["num_key_value_heads"])
        if case.arch.startswith("gemma") and name.endswith("norm.weight"):
            tensor = tensor + 1
        if expert := re.search(r"\.experts\.(\d+)\.", name):
            merged = name.replace(expert[0], ".experts.")
            merged = re.sub(r"model\.layers\.(\d+)\.block_sparse_moe", r"layers.\1.feed_forward", merged)
            stacks.setdefault(merged, {})[int(expert[1])] = tensor
            continue
        out[table.get_name(name, (".weight", ".bias"))] = tensor
    for merged, experts in stacks.items():
        out[table.get_name(merged, (".weight",))] = torch.stack([experts[i] for i in range(len(experts))])
    assert None not in out
    return out | {name: torch.tensor(values) for name, values in case.extra.items()}


def _theta(rope: dict[str, Any]) -> float:
    return float(rope.get("full_attention", rope)["rope_theta"])


@pytest.fixture(params=sorted(CASES))
def pair(request: pytest.FixtureRequest, tmp_path: Path, write_gguf: Callable[..., Path]) -> tuple[Case, Path, Path]:
    """A tiny random model as a safetensors folder and as the GGUF file it converts to."""
    case = CASES[request.param]
    sizes = _SIZES | case.settings
    torch.manual_seed(5)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(case.model_type, **sizes), dtype=torch.float32)
    with torch.no_grad():
        for parameter in model.parameters():  # norms of one and biases of zero would hide mistakes
            parameter.copy_(torch.randn_like(parameter) * 0.2)
    folder = tmp_path / "folder"
    model.save_pretrained(folder)
    with open_checkpoint(folder) as checkpoint:
        tensors = dict(checkpoint.stream())
    metadata = {
        ".context_length": sizes["max_position_embeddings"],
        ".embedding_length": sizes["hidden_size"],
        ".block_count": sizes["num_hidden_layers"],
        ".feed_forward_length": sizes["intermediate_size"],
        ".attention.head_count": sizes["num_attention_heads"],
        ".attention.head_count_kv": sizes["num_key_value_heads"],
        ".attention.layer_norm_rms_epsilon": model.config.rms_norm_eps,
        ".attention.key_length": case.head_dim,
        ".attention.value_length": case.head_dim,
        ".rope.dimension_count": case.head_dim,
        ".rope.freq_base": _theta(model.config.rope_parameters),
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.padding_token_id": 0,
    }
    path = write_gguf(case.arch, metadata | case.metadata, _converted(case, tensors, sizes))
    return case, folder, path


def _logits(folder: Path) -> Tensor:
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    ids = torch.arange(60).remainder(79).view(1, -1) + 1
    with torch.no_grad():
        return model(ids).logits


def test_names_values_and_logits_come_back(pair: tuple[Case, Path, Path], tmp_path: Path) -> None:
    case, folder, path = pair
    with open_checkpoint(folder) as original, open_checkpoint(path) as read:
        assert read.config["model_type"] == (case.model_type_read or case.model_type)
        # The decoder finds every weight it wants and no other.
        assert check_checkpoint(original).head_size == check_checkpoint(read).head_size == case.head_dim
        expected, got = dict(original.stream()), dict(read.stream())
        assert {n: t.shape for n, t in got.items()} == {n: t.shape for n, t in expected.items()}
        assert {n: i.shape for n, i in read.tensors.items()} == {n: tuple(t.shape) for n, t in expected.items()}
        exact = not case.arch.startswith("gemma")  # (w + 1) - 1 in float32 is not always w
        for name, tensor in expected.items():
            torch.testing.assert_close(got[name], tensor, rtol=0, atol=0 if exact else 1e-6, msg=name)
        again = tmp_path / "again"
        again.mkdir()
        save_file(got, again / "model.safetensors", metadata={"format": "pt"})
        (again / "config.json").write_text(json.dumps(read.config), encoding="utf-8")
    torch.testing.assert_close(_logits(again), _logits(folder), rtol=1e-4, atol=1e-4)


def test_the_case_list_covers_every_family() -> None:
    assert {case.arch for case in CASES.values()} == set(FAMILIES)


def test_an_unknown_architecture_names_itself_and_the_known_ones(
    write_gguf: Callable[..., Path], llama_metadata: dict[str, Any], llama_tensors: dict[str, Any]
) -> None:
    with pytest.raises(UnsupportedModelError, match="architecture 'foo'") as caught:
        open_checkpoint(write_gguf("foo", llama_metadata, llama_tensors))
    assert all(name in str(caught.value) for name in FAMILIES)


@pytest.mark.parametrize("name", ["blk.0.attn_sinks.weight", "blk.2.attn_q.weight", "blk.0.attn_q_norm.weight", "odd"])
def test_a_tensor_the_architecture_does_not_have_is_refused_by_name(
    name: str, write_gguf: Callable[..., Path], llama_metadata: dict[str, Any], llama_tensors: dict[str, Any]
) -> None:
    path = write_gguf("llama", llama_metadata, llama_tensors | {name: torch.zeros(4)})
    with pytest.raises(CheckpointError, match="not a part of this architecture") as caught:
        open_checkpoint(path)
    assert caught.value.tensor == name


def test_a_rotary_table_of_an_old_file_is_skipped(
    write_gguf: Callable[..., Path], llama_metadata: dict[str, Any], llama_tensors: dict[str, Any]
) -> None:
    path = write_gguf("llama", llama_metadata, llama_tensors | {"blk.0.attn_rot_embd.weight": torch.zeros(8)})
    with open_checkpoint(path) as checkpoint:
        assert len(checkpoint.tensors) == len(llama_tensors)


def test_experts_stored_one_by_one_are_found_too(
    write_gguf: Callable[..., Path], llama_metadata: dict[str, Any], llama_tensors: dict[str, Any]
) -> None:
    for layer in range(2):
        for part in ("gate", "up", "down"):
            whole = llama_tensors.pop(f"blk.{layer}.ffn_{part}.weight")
            llama_tensors |= {f"blk.{layer}.ffn_{part}.{expert}.weight": whole + expert for expert in range(2)}
        llama_tensors[f"blk.{layer}.ffn_gate_inp.weight"] = torch.zeros(2, 64)
    path = write_gguf("llama", llama_metadata | {".expert_count": 2, ".expert_used_count": 1}, llama_tensors)
    with open_checkpoint(path) as checkpoint:
        assert checkpoint.config["model_type"] == "mixtral"
        got = checkpoint.read("model.layers.1.block_sparse_moe.experts.1.w3.weight")
        assert torch.equal(got, torch.from_numpy(llama_tensors["blk.1.ffn_up.1.weight"]))
