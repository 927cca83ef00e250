"""The estimate of what a model needs."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from hosting import settings
from safetensors.torch import load_file, save_file
from transformers import GPTNeoXConfig, GPTNeoXForCausalLM

from octavo.app.config import ConfigError, engine_config, load_settings
from octavo.app.library import ModelNotFoundError
from octavo.app.library.fit import (
    Fit,
    Sketch,
    Wish,
    alternatives,
    best_fitting,
    estimate,
    kv_bytes,
    longest_context,
    sketch_path,
    sketch_repository,
    wish_of,
)
from octavo.app.library.fit_report import fit_report
from octavo.app.library.inspect import report
from octavo.app.library.readiness import require_loadable
from octavo.app.library.shape import read_shape
from octavo.app.library.weights import quantizations
from octavo.app.logs import set_up_logging
from octavo.engine.config import EngineConfig
from octavo.engine.engine import Engine
from octavo.engine.errors import CheckpointError, MemoryExhaustedError, OctavoError, UnsupportedModelError
from octavo.engine.quant.cpu import BlockedFormat
from octavo.engine.run import resolve

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


def estimate_fit(path: Path, **wanted: Any) -> Fit:
    return estimate(sketch_path(path), Wish(**wanted))


def estimate_repository(repo_id: str, *, variant: str | None = None, **wanted: Any) -> Fit:
    return estimate(sketch_repository(repo_id, variant), Wish(**wanted))


def test_keys_and_values_are_counted_by_layer_head_and_token() -> None:
    shape = read_shape(LLAMA)
    assert kv_bytes(shape, torch.bfloat16, 100) == 3 * 2 * (2 * 16) * 2 * 100


def test_8_bit_keys_and_values_take_a_byte_each_and_a_scale_for_every_head_and_token() -> None:
    shape = read_shape(LLAMA)
    for kv_dtype in (torch.int8, torch.float8_e4m3fn):
        assert kv_bytes(shape, kv_dtype, 100) == 3 * 2 * 2 * (16 + 4) * 100


def test_a_window_bounds_what_a_layer_keeps() -> None:
    shape = read_shape({**LLAMA, "model_type": "mistral", "sliding_window": 64})
    assert kv_bytes(shape, torch.bfloat16, 500) == kv_bytes(shape, torch.bfloat16, 64)


def test_an_architecture_of_transformers_own_is_judged_too() -> None:
    config = {"model_type": "gpt_neox", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    shape = read_shape({**config, "vocab_size": 99, "max_position_embeddings": 256})
    assert (shape.kv_heads, shape.head_size, len(shape.windows), shape.max_positions) == (4, 16, 2, 256)
    assert shape.notices
    with pytest.raises(UnsupportedModelError, match="mamba"):
        read_shape({"model_type": "mamba"})


def test_the_longest_chat_is_what_the_engine_would_begin_with() -> None:
    shape = read_shape(LLAMA)
    page = kv_bytes(shape, torch.bfloat16, 16)

    def longest(left_bytes: int, **wished: int) -> int:
        return longest_context(shape, torch.bfloat16, left_bytes, torch.device("cpu"), Wish(**wished))

    # A quarter of what is free on the CPU, in pages of 16 tokens, two of them kept back.
    assert longest(4 * 12 * page) == 160
    assert longest(4 * 12 * page - 4) == 144
    assert longest(10**12) == 512
    assert longest(-5) == 0
    assert longest(10**9, kv_memory_bytes=5 * page) == 48
    assert longest(4 * page, kv_memory_bytes=5 * page) == 0


def test_the_estimate_is_what_the_engine_then_does(starter_path: Path) -> None:
    config = EngineConfig(device="cpu", kv_memory_bytes=64 << 20, kv_cache_dtype="bfloat16")
    engine = Engine.load(starter_path, config)
    try:
        wish = Wish(device="cpu", kv_memory_bytes=64 << 20, kv_cache_dtype="bfloat16")
        fit = estimate(sketch_path(starter_path), wish)
        assert (fit.verdict, fit.longest_context) == ("shorter", engine.context_length)
        assert fit.weight_bytes == pytest.approx(engine.info.weight_bytes, rel=1e-3)
    finally:
        engine.close()


def test_what_the_loaded_model_holds_counts_as_available(starter_path: Path) -> None:
    wish = Wish(device="cpu", context_length=1000)
    alone = estimate(sketch_path(starter_path), wish)
    switching = estimate(sketch_path(starter_path), wish, held_bytes=1 << 40)
    assert switching.available_bytes - alone.available_bytes == pytest.approx(1 << 40, rel=0.01)
    assert switching.weight_bytes == alone.weight_bytes


def test_formats_that_would_fit_are_named_from_the_most_exact_on(starter_path: Path) -> None:
    fits = alternatives(sketch_path(starter_path), Wish(device="cpu", context_length=1000))
    assert fits[0].quantization == "none"
    assert [fit.weight_bytes for fit in fits] == sorted((fit.weight_bytes for fit in fits), reverse=True)
    assert best_fitting(fits) is fits[0]
    tight = [replace(fit, longest_context=0 if fit.quantization == "none" else 500) for fit in fits]
    best = best_fitting(tight)
    assert best is (tight[1] if len(tight) > 1 else None)
    assert best_fitting([replace(fit, longest_context=0) for fit in fits]) is None


def test_weights_that_cannot_fit_are_refused_before_they_are_read(
    starter_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = settings(tmp_path, model__device="cpu").values
    require_loadable(starter_path, config)
    monkeypatch.setattr(resolve, "free_memory", lambda device: 50 << 20)
    with pytest.raises(MemoryExhaustedError, match=r"need .* on cpu; 50 MiB are free\.") as caught:
        require_loadable(starter_path, config)
    assert caught.value.remedy
    require_loadable(starter_path, config, held_bytes=1 << 30)


def test_the_sentence_says_what_to_do() -> None:
    fit = Fit("m", "cpu", 4096, 4096, 2**30, 2**28, 2**26, 2**31)
    assert fit.sentence() == "m needs about 1.3 GiB on cpu for a chat of 4096 tokens; 2.0 GiB are free. It fits."
    assert "model.context_length: 900" in replace(fit, free_bytes=2**30, longest_context=900).sentence()
    assert "Choose a smaller model" in replace(fit, free_bytes=2**20, longest_context=0).sentence()


def test_a_model_of_the_hub_is_judged_before_it_is_fetched(fake_hub: FakeHub) -> None:
    files = {"config.json": json.dumps({**LLAMA, "dtype": "float32"}).encode(), "tokenizer.json": b"{}"}
    fake_hub.repositories["org/model"] = {**files, "model.safetensors": b"w" * 40_000}
    fit = estimate_repository("org/model", device="cpu", dtype="bfloat16", context_length=100)
    layer = 64 * (64 + 32 + 32) + 64 * 64 + 3 * 64 * 128 + 2 * 64
    assert fit.weight_bytes == (2 * 1000 * 64 + 3 * layer + 64) * 2 + (3 * 2 + 1) * 64 * 2  # norms in float32
    assert fit.kv_bytes == 3 * 2 * (2 * 16) * 2 * 100
    assert not any("model.safetensors" in request for request in fake_hub.requests)
    with pytest.raises(ModelNotFoundError, match="There is no model org/none"):
        estimate_repository("org/none", device="cpu")


def test_a_gguf_file_of_the_hub_is_judged_by_its_first_bytes(fake_hub: FakeHub, starter_path: Path) -> None:
    whole = starter_path.read_bytes()
    fake_hub.repositories["org/gguf"] = {"m-Q4_1.gguf": whole, "m-Q8_0.gguf": whole}
    wish = {"device": "cpu", "dtype": "bfloat16", "context_length": 1000}
    fit = estimate_repository("org/gguf", variant="Q4_1", **wish)
    assert replace(fit, free_bytes=0, longest_context=0, name="") == replace(
        estimate_fit(starter_path, **wish), free_bytes=0, longest_context=0, name=""
    )
    asked = [int(wanted.rpartition("-")[2]) for wanted in fake_hub.ranges]
    assert max(asked) < 8 << 20
    with pytest.raises(ModelNotFoundError, match="several GGUF files: Q4_1, Q8_0"):
        estimate_repository("org/gguf")
    fake_hub.has_ranges = False
    assert estimate_repository("org/gguf", variant="Q4_1", **wish).kv_bytes == fit.kv_bytes


def test_a_quantized_checkpoint_of_the_hub_takes_what_its_files_take(fake_hub: FakeHub) -> None:
    config = {**LLAMA, "quantization_config": {"quant_method": "awq", "bits": 4, "group_size": 128}}
    files = {"config.json": json.dumps(config).encode(), "tokenizer.json": b"{}"}
    fake_hub.repositories["org/awq"] = {**files, "model.safetensors": b"w" * 90_000}
    sketch = sketch_repository("org/awq")
    assert estimate(sketch, Wish(device="cpu")).weight_bytes == 90_000
    assert {fit.quantization for fit in alternatives(sketch, Wish(device="cpu"))} == {"none"}


@pytest.mark.parametrize("lie", [b"<!doctype html>" + bytes(4000), b"GGUF" + bytes(4000)])
def test_a_gguf_file_of_the_hub_that_is_none_is_refused(fake_hub: FakeHub, lie: bytes) -> None:
    fake_hub.repositories["org/gguf"] = {"m.gguf": lie}
    with pytest.raises(OctavoError, match=r"m\.gguf"):
        estimate_repository("org/gguf", device="cpu")


def test_a_tied_head_counts_twice_where_the_cpu_reorders_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def weight_bytes(tied: bool, **wanted: Any) -> int:
        sketch = Sketch("m", {**LLAMA, "tie_word_embeddings": tied}, 0)
        return estimate(sketch, Wish(device="cpu", **wanted)).weight_bytes

    head = 1000 * 64 * 2
    apart, textbook = weight_bytes(False, dtype="bfloat16"), weight_bytes(False, dtype="bfloat16", fusion=False)
    monkeypatch.setattr(BlockedFormat, "available", staticmethod(lambda dtype: dtype == torch.bfloat16))
    assert weight_bytes(True, dtype="bfloat16") in (apart, apart - head)
    assert weight_bytes(True, dtype="bfloat16", fusion=False) == textbook - head
    assert weight_bytes(True, dtype="float32") == pytest.approx(2 * (apart - head), rel=0.01)
    monkeypatch.setattr(BlockedFormat, "available", staticmethod(lambda dtype: False))
    assert weight_bytes(True, dtype="bfloat16") == apart - head


def test_the_starter_needs_what_its_size_says(starter_path: Path) -> None:
    wish = {"device": "cpu", "dtype": "bfloat16", "context_length": 1000, "quantization": "packed"}
    packed = estimate_fit(starter_path, **wish)
    assert packed.weight_bytes == pytest.approx(starter_path.stat().st_size, rel=0.05)
    expanded = estimate_fit(starter_path, **{**wish, "quantization": "none"})
    assert expanded.weight_bytes in (pytest.approx(134.5e6 * 2, rel=0.01), pytest.approx(162.8e6 * 2, rel=0.01))
    assert packed.kv_bytes == expanded.kv_bytes == 30 * 2 * 3 * 64 * 2 * 1000
    assert packed.context_length == 1000
    assert estimate_fit(starter_path, device="cpu", context_length=10**6).context_length == 8192


def test_inspecting_reads_the_headers(starter_path: Path, tmp_path: Path) -> None:
    text = report(starter_path)
    assert "LlamaForCausalLM" in text
    assert "134.5 million in 272 tensors" in text
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(starter_path.read_bytes()[:1_000_000])
    with pytest.raises(CheckpointError, match=r"cut\.gguf cannot be loaded"):
        report(cut)


def test_a_checkpoint_of_transformers_own_classes_is_inspected_too(tmp_path: Path) -> None:
    config = GPTNeoXConfig(
        vocab_size=99, hidden_size=64, num_hidden_layers=2, num_attention_heads=4, intermediate_size=128
    )
    GPTNeoXForCausalLM(config).save_pretrained(tmp_path)
    text = report(tmp_path)
    assert "GPTNeoXForCausalLM (gpt_neox)" in text
    assert "runs through its transformers class" in text
    assert text.endswith("Nothing is wrong with it.")
    tensors = load_file(tmp_path / "model.safetensors")
    tensors["gpt_neox.layers.0.attention.dense.weight"] = torch.zeros(3, 3)
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"dense\.weight of model\.safetensors has the shape \[3, 3\]"):
        report(tmp_path)


def test_the_report_names_every_format(starter_path: Path, tmp_path: Path) -> None:
    values = settings(tmp_path, model__device="cpu").values
    text = fit_report(str(starter_path), values, 1000)
    assert "for a chat of 1000 tokens" in text
    for name in quantizations()[1:]:
        assert f"\n{name} " in text


@pytest.mark.parametrize("tokens", [str(10**400), "1073741825"])
def test_a_context_length_beyond_any_model_is_refused_by_its_line(tmp_path: Path, tokens: str) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(f"model:\n  context_length: {tokens}\n", encoding="utf-8")
    with pytest.raises(
        ConfigError, match=r"line 2: model\.context_length must be a whole number from 16 to 1073741824"
    ):
        load_settings(file, environment={})


def test_a_context_length_beyond_the_models_own_is_cut_with_a_notice(starter_path: Path, tmp_path: Path) -> None:
    values = settings(tmp_path, model__device="cpu", model__context_length=1 << 30).values
    fit = estimate(sketch_path(starter_path), wish_of(values))
    assert (fit.context_length, fit.fits) == (8192, True)
    require_loadable(starter_path, values)
    engine = Engine.load(starter_path, engine_config(values))
    try:
        assert engine.context_length == 8192
        assert any("cut to the model's own 8192" in notice for notice in engine.info.notices)
        assert engine.info.chat_bytes == fit.kv_bytes  # the same figure before and after
        assert engine.info.kv_bytes > engine.info.chat_bytes
    finally:
        engine.close()


def test_what_an_estimate_chooses_is_no_news_in_the_log(
    tmp_path: Path, restored_logging: None, capsys: pytest.CaptureFixture[str]
) -> None:
    set_up_logging("info", tmp_path)
    estimate(Sketch("x", LLAMA, 1000), Wish(device="cpu"))
    assert capsys.readouterr().err == ""
    resolve.resolve_dtype("auto", torch.device("cpu"))  # a load's own choice
    assert "dtype" in capsys.readouterr().err
