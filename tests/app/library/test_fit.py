"""The estimate of what a model needs."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch
from safetensors.torch import save_file

from octavo.app.library import LibraryError, ModelNotFoundError
from octavo.app.library.fit import Fit, estimate_fit, estimate_repository, kv_bytes, longest_context
from octavo.app.library.inspect import report
from octavo.app.library.shape import read_shape
from octavo.engine.errors import CheckpointError, UnsupportedModelError
from octavo.engine.quant.cpu import BlockedFormat

if TYPE_CHECKING:
    from tests.app.library.conftest import FakeHub

LLAMA = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 1000,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
}


def test_keys_and_values_are_counted_by_layer_head_and_token() -> None:
    shape = read_shape(LLAMA)
    assert kv_bytes(shape, 2, 100) == 3 * 2 * (2 * 16) * 2 * 100


def test_a_window_bounds_what_a_layer_keeps() -> None:
    shape = read_shape({**LLAMA, "model_type": "mistral", "sliding_window": 64})
    assert kv_bytes(shape, 2, 500) == kv_bytes(shape, 2, 64)


def test_an_architecture_of_transformers_own_is_judged_too() -> None:
    config = {"model_type": "gpt_neox", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    shape = read_shape({**config, "vocab_size": 99, "max_position_embeddings": 256})
    assert (shape.kv_heads, shape.head_size, len(shape.windows), shape.max_positions) == (4, 16, 2, 256)
    assert shape.notices
    with pytest.raises(UnsupportedModelError, match="mamba"):
        read_shape({"model_type": "mamba"})


def test_the_longest_chat_is_exactly_what_fits() -> None:
    shape = read_shape(LLAMA)
    budget = kv_bytes(shape, 2, 300)
    assert longest_context(shape, 2, budget) == 300
    assert longest_context(shape, 2, budget - 1) == 299
    assert longest_context(shape, 2, 10**12) == 512
    assert longest_context(shape, 2, -5) == 0


def test_the_sentence_says_what_to_do() -> None:
    fit = Fit("m", "cpu", 4096, 4096, 2**30, 2**28, 2**26, 2**31)
    assert fit.sentence() == "m needs about 1.3 GiB on cpu for a chat of 4096 tokens; 2.0 GiB are free. It fits."
    assert "model.context_length: 900" in replace(fit, free_bytes=2**30, longest_context=900).sentence()
    assert "Choose a smaller model" in replace(fit, free_bytes=2**20, longest_context=0).sentence()


def test_a_model_of_the_hub_is_judged_before_it_is_fetched(fake_hub: FakeHub) -> None:
    files = {"config.json": json.dumps({**LLAMA, "dtype": "float32"}).encode(), "tokenizer.json": b"{}"}
    fake_hub.repositories["org/model"] = {**files, "model.safetensors": b"w" * 40_000}
    fake_hub.repositories["org/gguf"] = {"m-Q8_0.gguf": b"8"}
    fit = estimate_repository("org/model", device="cpu", dtype="bfloat16", context_length=100)
    assert fit.weight_bytes == 20_000
    assert fit.kv_bytes == 3 * 2 * (2 * 16) * 2 * 100
    assert not any("model.safetensors" in request for request in fake_hub.requests)
    with pytest.raises(LibraryError, match="octavo models pull org/gguf"):
        estimate_repository("org/gguf", device="cpu")
    with pytest.raises(ModelNotFoundError, match="There is no model org/none"):
        estimate_repository("org/none", device="cpu")


def test_a_tied_head_counts_twice_where_the_cpu_reorders_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def weight_bytes(**wanted: object) -> int:
        return estimate_fit(tmp_path, device="cpu", **wanted).weight_bytes  # type: ignore[arg-type]

    tensors = {"model.embed_tokens.weight": torch.zeros(1000, 64, dtype=torch.bfloat16)}
    save_file(tensors, tmp_path / "model.safetensors")
    for tied, times in ((True, 2), (False, 1)):
        (tmp_path / "config.json").write_text(json.dumps({**LLAMA, "tie_word_embeddings": tied}), encoding="utf-8")
        monkeypatch.setattr(BlockedFormat, "available", staticmethod(lambda dtype: dtype == torch.bfloat16))
        assert weight_bytes(dtype="bfloat16") == times * 1000 * 64 * 2
        assert weight_bytes(dtype="bfloat16", fusion=False) == 1000 * 64 * 2
        assert weight_bytes(dtype="float32") == 1000 * 64 * 4
        monkeypatch.setattr(BlockedFormat, "available", staticmethod(lambda dtype: False))
        assert weight_bytes(dtype="bfloat16") == 1000 * 64 * 2


def test_the_starter_needs_what_its_size_says(starter_path: Path) -> None:
    fit = estimate_fit(starter_path, device="cpu", dtype="bfloat16", context_length=1000)
    head = 49152 * 576 if BlockedFormat.available(torch.bfloat16) else 0
    assert fit.weight_bytes == pytest.approx((134.5e6 + head) * 2, rel=0.01)
    assert fit.kv_bytes == 30 * 2 * 3 * 64 * 2 * 1000
    assert fit.context_length == 1000
    assert fit.fits is (fit.total_bytes <= fit.free_bytes)
    assert estimate_fit(starter_path, device="cpu", context_length=10**6).context_length == 8192


def test_inspecting_reads_the_headers(starter_path: Path, tmp_path: Path) -> None:
    text = report(starter_path)
    assert "LlamaForCausalLM" in text
    assert "134.5 million in 272 tensors" in text
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(starter_path.read_bytes()[:1_000_000])
    with pytest.raises(CheckpointError, match=r"cut\.gguf cannot be loaded"):
        report(cut)
