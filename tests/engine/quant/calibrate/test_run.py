"""Whole runs over a tiny model: what they write, who can read it, and that an interruption changes nothing."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from octavo.engine.errors import MemoryExhaustedError, UnsupportedModelError
from octavo.engine.load.checkpoint import open_checkpoint
from octavo.engine.model.build import build_model
from octavo.engine.quant.calibrate import run as runs
from octavo.engine.quant.calibrate.errors import QuantizeError
from octavo.engine.quant.calibrate.methods import LayerResult
from octavo.engine.quant.calibrate.run import Job, quantize
from octavo.engine.quant.dynamic import DynamicInt8Format

MakeJob = Callable[..., Job]

CASES: list[tuple[str, dict[str, Any]]] = [
    ("rtn", {"group": 32, "symmetric": True}),
    ("awq", {}),
    ("awq", {"file_format": "awq", "group": 32}),
    ("gptq", {"group": 32, "act_order": False}),
    ("gptq", {"bits": 8}),
    ("smoothquant", {}),
]


def silent(line: str) -> None:
    del line


@pytest.fixture
def results(monkeypatch: pytest.MonkeyPatch) -> dict[str, Tensor]:
    """What each linear's codes stand for, filled while a run goes on."""
    kept: dict[str, Tensor] = {}
    real = runs.round_layer

    def spy(*arguments: Any) -> LayerResult:
        result = real(*arguments)
        kept.update({name: rounded.decode() for name, rounded in result.rounded.items()})
        return result

    monkeypatch.setattr(runs, "round_layer", spy)
    return kept


def tokens() -> Tensor:
    return torch.randint(2, 250, (40,), generator=torch.Generator().manual_seed(9))


@pytest.mark.parametrize(("method", "settings"), CASES)
def test_octavo_reads_to_the_bit_what_was_written(
    method: str, settings: dict[str, Any], job: MakeJob, results: dict[str, Tensor]
) -> None:
    wish = job(method, **settings)
    report = quantize(wish, silent)
    with open_checkpoint(wish.out) as checkpoint:
        assert len(results) == 14
        for name, meant in results.items():
            assert torch.equal(checkpoint.read(f"{name}.weight"), meant), name
        model = build_model(
            checkpoint, device="cpu", dtype=torch.float32, context_length=64, fusion=True, quantization="packed"
        )
        tokenizer = checkpoint.load_tokenizer()
    assert tokenizer.apply_chat_template([{"role": "user", "content": "as told"}], tokenize=False) == "as told"
    for layer in model.weights.layers:
        assert layer.down.format.name != "none"
        assert isinstance(layer.down.format, DynamicInt8Format) == (method == "smoothquant")
    assert report.bytes_after < report.bytes_before / 2
    told = json.loads((wish.out / "octavo-quantize.json").read_text(encoding="utf-8"))
    assert told == report.as_json()
    assert (told["method"], told["calibration"]["tokens"], len(told["layers"])) == (method, 2048, 2)
    worst = max(value for row in told["layers"] for value in row["linears"].values())
    assert 0 < worst < (0.03 if told["bits"] == 8 else 0.25)
    assert not (wish.out.parent / "out.unfinished").exists()


@pytest.mark.parametrize(("method", "settings"), [case for case in CASES if "file_format" not in case[1]])
def test_transformers_gives_the_same_scores_as_octavo(
    method: str, settings: dict[str, Any], job: MakeJob, paged: Callable[..., Any]
) -> None:
    pytest.importorskip("compressed_tensors")
    import transformers

    wish = job(method, **settings)
    quantize(wish, silent)
    options: dict[str, Any] = {}
    if method != "smoothquant" and not settings.get("symmetric", settings.get("bits") == 8):
        # transformers 5.24 has no room for packed zero points, unless it decodes them while it loads
        options["quantization_config"] = transformers.CompressedTensorsConfig(dequantize=True)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(wish.out, dtype=torch.float32, **options).eval()
    ids = tokens()
    with torch.inference_mode():
        wanted = theirs(ids[None]).logits[0].float()
    found = paged(wish.out).forward({0: ids.tolist()})
    # they round a token's activations by a scale of their own, and decoded weights to bfloat16
    close = 0.04 if method == "smoothquant" else 0.01 if options else 2e-3
    assert float((found - wanted).norm() / wanted.norm()) < close
    if options:
        with open_checkpoint(wish.out) as checkpoint:
            for name, weight in theirs.named_parameters():
                assert torch.equal(weight.bfloat16(), checkpoint.read(name, torch.bfloat16)), name


def test_an_awq_file_means_what_autoawq_says_of_its_layout(
    job: MakeJob, make_model: Callable[..., Path], paged: Callable[..., Any]
) -> None:
    import transformers
    from safetensors.torch import load_file

    wish = job("awq", file_format="awq", group=32)
    quantize(wish, silent)
    stored: dict[str, Tensor] = {}
    for file in sorted(wish.out.glob("*.safetensors")):
        stored |= load_file(file)
    model = transformers.AutoModelForCausalLM.from_pretrained(make_model()).float().eval()
    state = {
        name: tensor.float() for name, tensor in stored.items() if not name.endswith(("qweight", "qzeros", "scales"))
    }
    for name in [name for name in stored if name.endswith(".qweight")]:
        module = name.removesuffix(".qweight")
        codes, zeros = (by_column(stored[f"{module}.{role}"]) for role in ("qweight", "qzeros"))
        scales = stored[f"{module}.scales"].float()
        weight = (codes - zeros.repeat_interleave(32, 0)) * scales.repeat_interleave(32, 0)
        state[f"{module}.weight"] = weight.T
    model.load_state_dict(state)
    ids = tokens()
    with torch.inference_mode():
        wanted = model(ids[None]).logits[0]
    found = paged(wish.out).forward({0: ids.tolist()})
    assert float((found - wanted).norm() / wanted.norm()) < 1e-4


def by_column(words: Tensor) -> Tensor:
    """int32 [rows, n / 8] to float [rows, n]: nibble i of a word, counted from the lowest, holds column
    (0, 2, 4, 6, 1, 3, 5, 7)[i] of the word's eight."""
    out = torch.empty(words.shape[0], words.shape[1] * 8)
    for nibble, column in enumerate((0, 2, 4, 6, 1, 3, 5, 7)):
        out[:, column::8] = ((words >> (4 * nibble)) & 15).float()
    return out


@pytest.mark.parametrize("method", ["awq", "gptq"])
def test_calibration_lowers_the_error_of_every_layer_with_loud_channels(method: str, job: MakeJob) -> None:
    plain = quantize(job("rtn", out="plain", group=32), silent)
    better = quantize(job(method, group=32), silent)
    for one, other in zip(plain.layers, better.layers):
        assert other["error"] < 0.8 * one["error"]
        for name, error in one["linears"].items():
            assert other["linears"][name] < 1.02 * error, name


def test_smoothing_lowers_the_error_of_rounded_activations(job: MakeJob) -> None:
    smooth = quantize(job("smoothquant", out="half"), silent)
    hardly = quantize(job("smoothquant", alpha=0.02), silent)  # the loudness of activations stays where it is
    assert all(a["error"] < 0.8 * b["error"] for a, b in zip(smooth.layers, hardly.layers))


def test_a_resumed_run_writes_the_same_bytes(job: MakeJob) -> None:
    whole = job("gptq", out="whole", eval_tokens=200)
    quantize(whole, silent)
    broken = job("gptq", out="broken", eval_tokens=200)
    for stop in ("layer 1 of 2", "perplexity after"):  # the second time it stops later

        def stopping(line: str, stop: str = stop) -> None:
            if stop in line:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            quantize(broken, stopping)
        assert not broken.out.exists()
        broken = replace(broken, resume=False)
        with pytest.raises(QuantizeError, match=r"holds an unfinished run.*--resume"):
            quantize(broken, silent)
        broken = replace(broken, resume=True)
    said: list[str] = []
    quantize(broken, said.append)
    assert said[0] == "Going on after 2 of 2 layers."
    assert not any(line.startswith("layer") for line in said)
    names = sorted(file.name for file in whole.out.iterdir())
    assert names == sorted(file.name for file in broken.out.iterdir())
    for name in names:
        assert (whole.out / name).read_bytes() == (broken.out / name).read_bytes(), name


def test_perplexity_is_measured_on_text_that_was_held_back(job: MakeJob) -> None:
    report = quantize(job("rtn", bits=8, eval_tokens=150), silent)
    before, after = report.perplexity["before"], report.perplexity["after"]
    assert report.perplexity["tokens"] == 150
    assert before != after
    assert after == pytest.approx(before, rel=0.05)
    own = quantize(job("rtn", bits=8, out="own", evaluate="Fog. " * 30, eval_tokens=100), silent)
    assert own.perplexity["before"] != before


def test_a_model_that_cannot_be_loaded_whole_is_written_without_its_perplexity(
    job: MakeJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    def too_large(*arguments: Any, **options: Any) -> float:
        raise MemoryExhaustedError("The model does not fit.")

    monkeypatch.setattr(runs, "measure", too_large)
    said: list[str] = []
    wish = job("rtn", eval_tokens=100)
    report = quantize(wish, said.append)
    assert said[-1] == "The perplexity could not be measured: The model does not fit."
    assert (report.perplexity, report.as_json()["perplexity"], wish.out.is_dir()) == ({}, None, True)


def test_a_tied_head_and_biases_are_kept(job: MakeJob, make_model: Callable[..., Path]) -> None:
    folder = make_model("qwen2", tie_word_embeddings=True)
    wish = job("awq", model=folder)
    quantize(wish, silent)
    with open_checkpoint(wish.out) as checkpoint, open_checkpoint(folder) as before:
        assert set(checkpoint.tensors) == set(before.tensors)
        name = "model.layers.1.self_attn.k_proj.bias"  # nothing is folded into keys
        assert torch.equal(checkpoint.read(name), before.read(name).bfloat16())
        name = "model.layers.1.self_attn.v_proj.bias"
        assert not torch.equal(checkpoint.read(name), before.read(name).bfloat16())


def test_the_starter_file_becomes_a_folder_with_its_tokenizer(
    starter_path: Path, tmp_path: Path, job: MakeJob, text: str
) -> None:
    short = first_layer(starter_path, tmp_path / "short.gguf")
    wish = job("rtn", model=short, bits=8)
    wish = replace(wish, text=text * 2, tokens=1024)
    quantize(wish, silent)
    import transformers

    config = transformers.AutoConfig.from_pretrained(wish.out)
    assert (config.model_type, config.num_hidden_layers, config.dtype) == ("llama", 1, torch.bfloat16)
    theirs = transformers.AutoTokenizer.from_pretrained(wish.out)
    with open_checkpoint(short) as before, open_checkpoint(wish.out) as after:
        mine = before.load_tokenizer()
        assert after.load_tokenizer().encode("The lamp’s 12 wicks\n\tburn.") == mine.encode(
            "The lamp’s 12 wicks\n\tburn."
        )
        assert after.generation_config == before.generation_config
    chat = [{"role": "user", "content": "Hello"}]
    told = mine.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
    assert theirs.apply_chat_template(chat, tokenize=False, add_generation_prompt=True) == told


def first_layer(source: Path, target: Path) -> Path:
    """A GGUF file with only the first layer of another."""
    import gguf

    reader = gguf.GGUFReader(source)
    writer = gguf.GGUFWriter(target, "llama")
    for field in reader.fields.values():
        if field.name.startswith("GGUF.") or field.name == "general.architecture":
            continue
        value = 1 if field.name == "llama.block_count" else field.contents()
        kind = field.types[0]
        writer.add_key_value(field.name, value, kind, field.types[-1] if len(field.types) > 1 else None)
    for tensor in reader.tensors:
        if not tensor.name.startswith("blk.") or tensor.name.startswith("blk.0."):
            writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return target


@pytest.mark.parametrize(
    ("family", "config", "message"),
    [
        ("gpt2", {"n_positions": 64}, "transformers class"),
        ("mixtral", {"num_local_experts": 2, "num_experts_per_tok": 1}, "mixture of experts.*model.quantization"),
    ],
)
def test_models_that_cannot_be_rounded_layer_by_layer_are_refused(
    family: str, config: dict[str, Any], message: str, job: MakeJob, make_model: Callable[..., Path]
) -> None:
    wish = job("rtn", model=make_model(family, **config))
    with pytest.raises(UnsupportedModelError, match=message):
        quantize(wish, silent)
    assert not list(wish.out.parent.glob("out*"))


def test_a_full_disk_is_told_before_anything_is_written(job: MakeJob, monkeypatch: pytest.MonkeyPatch) -> None:
    real = runs.shutil.disk_usage

    def full(path: Path) -> Any:
        return real(path)._replace(free=1 << 20)

    monkeypatch.setattr(runs.shutil, "disk_usage", full)
    wish = job("rtn")
    with pytest.raises(QuantizeError, match=r"need 0\.1 GiB.*has 0\.0 GiB.*Make room"):
        quantize(wish, silent)
    assert not list(wish.out.parent.glob("out*"))


def test_numbers_that_16_bits_cannot_hold_are_told_with_what_helps(
    job: MakeJob, tmp_path: Path, make_model: Callable[..., Path]
) -> None:
    import shutil

    from safetensors.torch import load_file, save_file

    folder = tmp_path / "loud"
    shutil.copytree(make_model(), folder)
    tensors = load_file(folder / "model.safetensors")
    tensors["model.layers.1.mlp.up_proj.weight"] *= 1e30
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(QuantizeError, match=r"beyond what float16 can hold.*--dtype float32"):
        quantize(job("awq", model=folder, dtype="float16"), silent)
    with pytest.raises(QuantizeError, match="unfinished"):
        quantize(job("awq", model=folder), silent)
