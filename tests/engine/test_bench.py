"""The benchmark's arithmetic on made-up arrivals, and its refusals."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import transformers
from tokenizers import Tokenizer, models

from octavo.engine import bench
from octavo.engine.config import EngineConfig
from octavo.engine.engine import Engine
from octavo.engine.errors import RequestError
from octavo.engine.quant import FORMATS


def test_figures_follow_their_definitions() -> None:
    workload = bench.Workload("w", requests=2, prompt_tokens=10, shared_prefix=0, new_tokens=3)
    readings = [bench._Reading([(1.0, 1), (2.0, 1), (3.0, 1)]), bench._Reading([(1.5, 1), (3.5, 2)])]
    row = bench._figures(workload, readings)
    assert row["s"] == 3.5
    assert row["out_tok_s"] == pytest.approx(6 / 3.5)
    assert row["prompt_tok_s"] == pytest.approx(20 / 3.5)
    assert row["decode_tok_s"] == pytest.approx(4 / 2.0)
    assert row["ttft_p50_ms"] == pytest.approx(1250)
    assert row["itl_p50_ms"] == pytest.approx(1000)


def test_a_reply_that_ended_early_is_not_measured() -> None:
    workload = bench.Workload("w", requests=1, prompt_tokens=10, shared_prefix=0, new_tokens=3)
    with pytest.raises(RequestError, match="ended before 3"):
        bench._figures(workload, [bench._Reading([(1.0, 1)])])


def test_the_help_names_the_workloads_and_what_is_measured_without_flags(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        bench.main(["--help"])
    text = " ".join(capsys.readouterr().out.split()).replace("- ", "-")
    for entry in bench.benchmark_data()["workloads"]:
        assert entry["name"] in text
    assert "default: shape:qwen-0.5b" in text
    assert "default: single-stream" in text


def test_an_unknown_workload_names_the_known_ones(capsys: pytest.CaptureFixture[str]) -> None:
    assert bench.main(["--workload", "cpu-9"]) == 2
    assert "cpu-1" in capsys.readouterr().err


def test_an_unknown_shape_names_the_known_ones(capsys: pytest.CaptureFixture[str]) -> None:
    assert bench.main(["--model", "shape:none", "--workload", "cpu-1"]) == 1
    assert "llama-8b" in capsys.readouterr().err


def test_an_unknown_comparison_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert bench.main(["--compare", "speed"]) == 2
    assert "fusion" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--workload", ""], "No workload is named"),
        (["--speculation", "draft"], "--draft-model"),
        (["--json", "no/such/folder/x.json"], "cannot be written"),
    ],
)
def test_what_cannot_be_measured_is_refused_before_a_model_is_loaded(
    flags: list[str], said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(Engine, "load", lambda *_: pytest.fail("a model was loaded"))
    assert bench.main(["--model", "shape:qwen-0.5b", "--workload", "cpu-1", *flags]) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flag", "values"),
    [
        ("--draft-tokens", ["0", "-1", "two"]),
        ("--repetitions", ["0"]),
        ("--forced-acceptance", ["-0.1", "1.5", "nan", "much"]),
    ],
)
def test_numbers_out_of_range_are_wrong_flags(flag: str, values: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    for value in values:
        with pytest.raises(SystemExit) as ended:
            bench.main([f"{flag}={value}"])
        assert ended.value.code == 2
        assert flag in capsys.readouterr().err.splitlines()[-1]


@pytest.mark.parametrize(
    ("asked", "draft_model", "ran", "said"),
    [
        ("draft", "nothing", "off", "Tokens are computed one at a time: There is no model at "),
        ("auto", "nothing", "ngram", "Only copies are guessed ahead: There is no model at "),
        ("draft", ".", "draft", None),
        ("auto", ".", "auto", None),
        ("self", None, "self", None),
        ("ngram", None, "ngram", None),
    ],
)
def test_a_row_names_what_guessed_and_not_what_was_asked_for(
    asked: str,
    draft_model: str | None,
    ran: str,
    said: str | None,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(bench, "copy_bandwidth", lambda _: 1e9)
    _save_tiny(tmp_path)
    workload = bench.Workload("w", requests=1, prompt_tokens=8, shared_prefix=0, new_tokens=8)
    path = None if draft_model is None else str(tmp_path / draft_model)
    config = EngineConfig(device="cpu", fusion=False, speculation=asked, draft_model=path)
    result = bench.bench(str(tmp_path), [workload], config, repetitions=1)
    assert [row["speculation"] for row in result["rows"]] == [ran]
    told = capsys.readouterr().err
    assert f"octavo bench: {said}" in told if said else " guessed ahead" not in told and "one at a time" not in told


def test_a_shape_is_not_said_to_be_guessed_for_by_a_model_that_its_ids_mean_nothing_to(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench, "copy_bandwidth", lambda _: 1e9)
    tiny = {"model_type": "llama", "vocab_size": 128, "hidden_size": 32, "intermediate_size": 64}
    tiny |= {"num_hidden_layers": 2, "num_attention_heads": 2, "max_position_embeddings": 64}
    monkeypatch.setattr("octavo.engine.assemble.shape_config", lambda _: tiny)
    workload = bench.Workload("w", requests=1, prompt_tokens=8, shared_prefix=0, new_tokens=8)
    config = EngineConfig(device="cpu", fusion=False, speculation="draft", draft_model=str(tmp_path))
    result = bench.bench("shape:tiny", [workload], config, repetitions=1)
    assert [row["speculation"] for row in result["rows"]] == ["off"]
    assert "A shape has no tokenizer, so no other model can guess for it." in capsys.readouterr().err


def test_cuda_without_a_gpu_is_a_wrong_flag(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert bench.main(["--device", "cuda", "--workload", "cpu-1"]) == 2
    assert "cuda was asked for" in capsys.readouterr().err


def test_the_weight_formats_to_choose_from_are_those_of_the_engine(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(FORMATS, "newest", FORMATS["none"])
    with pytest.raises(SystemExit):
        bench.main(["--quantization", "other"])
    said = capsys.readouterr().err
    assert all(name in said for name in FORMATS)
    assert "newest" in said


def _save_tiny(folder: Path) -> None:
    """A random llama and its tokenizer."""
    torch.manual_seed(0)
    shape = {"hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 2, "num_key_value_heads": 1}
    config = transformers.LlamaConfig(vocab_size=128, num_hidden_layers=2, **shape)
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    words = Tokenizer(models.WordLevel({f"w{i}": i for i in range(128)}, unk_token="w0"))
    transformers.PreTrainedTokenizerFast(tokenizer_object=words).save_pretrained(folder)


def test_forced_guesses_are_right_as_often_as_was_asked_for(tmp_path: Path) -> None:
    _save_tiny(tmp_path)
    workload = bench.Workload("w", requests=1, prompt_tokens=8, shared_prefix=0, new_tokens=96)
    engine = Engine.load(tmp_path, EngineConfig(device="cpu", dtype="bfloat16", context_length=128, fusion=False))
    try:
        all_right = bench.run_workload(engine, workload, 1, forced=(1.0, 4))
        all_wrong = bench.run_workload(engine, workload, 1, forced=(0.0, 4))
    finally:
        engine.close()
    assert all_right["accepted_tokens"] == all_right["draft_tokens"] > 48
    assert all_right["steps"] < 60
    assert all_wrong["accepted_tokens"] == 0 < all_wrong["draft_tokens"]
    assert all_right["plain_out_tok_s"] > 0
