"""Perplexity of known texts: what it counts, what it leaves out, and how it is asked for."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from octavo.engine import perplexity as module
from octavo.engine.config import EngineConfig
from octavo.engine.engine import Engine
from octavo.engine.errors import RequestError
from octavo.engine.perplexity import perplexity, shipped_text


@pytest.fixture(scope="module")
def engine(starter_path: Path) -> Engine:
    config = EngineConfig(device="cpu", dtype="float32", context_length=64, kv_memory_bytes=64 << 20)
    return Engine.load(starter_path, config)


def test_it_is_the_mean_over_windows_that_do_not_see_each_other(engine: Engine) -> None:
    ids = engine.tokenizer.encode("The keeper walked up the stairs and lit the lamp before the fog came in.")
    whole = perplexity(engine, ids, window=len(ids))
    assert 1 < whole.value < 1000
    assert whole.tokens == len(ids) - 1
    seen: list[tuple[int, int]] = []
    apart = perplexity(engine, ids, window=8, progress=lambda *at: seen.append(at))
    assert apart.value > whole.value
    assert seen[-1] == (len(seen), len(seen))
    assert apart.tokens == len(ids) - len(seen)
    shuffled = perplexity(engine, ids[::-1], window=len(ids))
    assert shuffled.value > 3 * whole.value


def test_less_than_two_tokens_predict_nothing(engine: Engine) -> None:
    with pytest.raises(RequestError, match="fewer than two"):
        perplexity(engine, [5])


def test_the_shipped_text_is_long_english_prose() -> None:
    text = shipped_text()
    assert len(text) > 300_000
    assert text.count(" the ") > 3000


def test_the_command_reports_one_line(starter_path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = tmp_path / "text.txt"
    text.write_text("The lamp is lit. " * 8, encoding="utf-8")
    flags = ["--model", str(starter_path), "--device", "cpu", "--quantization", "int8", "--tokens", "32"]
    assert module.main([*flags, "--kv-cache-dtype", "fp8", "--text", str(text)]) == 0
    row = json.loads(capsys.readouterr().out)
    assert (row["quantization"], row["kv_cache_dtype"], row["tokens"]) == ("int8", "fp8", 31)
    assert 1 < row["perplexity"] < 20
    assert module.main([*flags, "--text", str(tmp_path / "missing.txt")]) == 1
    assert "missing.txt" in capsys.readouterr().err
