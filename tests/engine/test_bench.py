"""The benchmark's arithmetic on made-up arrivals, and its refusals."""

from __future__ import annotations

import pytest

from octavo.engine import bench
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


def test_an_unknown_workload_names_the_known_ones(capsys: pytest.CaptureFixture[str]) -> None:
    assert bench.main(["--workload", "cpu-9"]) == 2
    assert "cpu-1" in capsys.readouterr().err


def test_an_unknown_shape_names_the_known_ones(capsys: pytest.CaptureFixture[str]) -> None:
    assert bench.main(["--model", "shape:none", "--workload", "cpu-1"]) == 1
    assert "llama-8b" in capsys.readouterr().err


def test_an_unknown_comparison_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert bench.main(["--compare", "speed"]) == 2
    assert "fusion" in capsys.readouterr().err


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
