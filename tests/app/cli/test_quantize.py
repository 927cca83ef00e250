"""`octavo quantize` as it is typed: a whole run, what it prints, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from octavo.engine.quant.calibrate import run as runs

if TYPE_CHECKING:
    from tests.app.cli.conftest import Result

Octavo = Callable[..., "Result"]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from tests.engine.quant.calibrate.conftest import write_model

    return write_model(tmp_path_factory.mktemp("model") / "tiny")


@pytest.fixture
def book(tmp_path: Path) -> Path:
    path = tmp_path / "book.txt"
    path.write_text("The keeper climbed the stairs and lit the lamp before the fog came in. " * 30, encoding="utf-8")
    return path


def test_the_command_is_in_the_help_and_names_its_choices(octavo: Octavo) -> None:
    assert "quantize" in octavo("--help").out
    text = octavo("quantize", "--help").out
    assert all(name in text for name in ("awq", "gptq", "smoothquant", "rtn", "--calibration", "--resume", "--eval"))
    assert "a new or an empty one" in " ".join(text.split())


def test_a_run_prints_layers_as_it_goes_and_the_report_at_the_end(
    octavo: Octavo, model: Path, book: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    out = tmp_path / "out"
    flags = ("--method", "gptq", "--bits", "8", "--tokens", "1024", "--eval-tokens", "120", "--device", "cpu")
    result = octavo("quantize", str(model), str(out), "--calibration", str(book), *flags)
    assert (result.code, out.is_dir()) == (0, True)
    assert "layer 1 of 2: error" in result.err
    assert "layer 2 of 2: error" in result.err
    lines = result.out.splitlines()
    assert lines[-1] == str(out)
    assert lines[-2].startswith("perplexity on 120 tokens: ")
    assert any("worst linear" in line for line in lines)
    told = json.loads((out / "octavo-quantize.json").read_text(encoding="utf-8"))
    assert (told["method"], told["bits"], told["calibration"]["text"]) == ("gptq", 8, "book.txt")
    inspected = octavo("models", "inspect", str(out))
    assert inspected.code == 0


def test_an_interrupted_run_says_how_it_goes_on(
    octavo: Octavo, model: Path, book: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    real = runs.round_layer
    layers: list[int] = []

    def interrupted(*arguments: object) -> object:
        layers.append(len(layers))
        if len(layers) == 2:
            raise KeyboardInterrupt
        return real(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(runs, "round_layer", interrupted)
    out = tmp_path / "out"
    command = ("quantize", str(model), str(out), "--method", "rtn", "--calibration", str(book), "--device", "cpu")
    result = octavo(*command, "--eval-tokens", "0")
    assert (result.code, out.exists()) == (1, False)
    assert "octavo: Stopped. Run the same command with --resume to go on." in result.err
    again = octavo(*command, "--eval-tokens", "0")
    assert (again.code, "--resume" in again.err) == (1, True)
    assert octavo("quantize", "org/not-fetched", str(out), *command[3:]).err == again.err  # before anything is fetched
    other = octavo(*command, "--eval-tokens", "0", "--resume", "--bits", "8")
    assert (other.code, "--bits was 4 and is 8" in other.err, "--restart" in other.err) == (1, True, True)
    result = octavo(*command, "--eval-tokens", "0", "--resume")
    assert (result.code, out.is_dir()) == (0, True)
    assert "Going on after 1 of 2 layers." in result.err
    assert layers == [0, 1, 2]


@pytest.mark.parametrize("flag", ["--resume", "--restart"])
def test_a_folder_that_is_not_its_own_is_left_alone(
    flag: str, octavo: Octavo, model: Path, book: Path, tmp_path: Path
) -> None:
    mine = tmp_path / "mine.unfinished" / "sub" / "letter.txt"
    mine.parent.mkdir(parents=True)
    mine.write_text("mine", encoding="utf-8")
    result = octavo("quantize", str(model), str(tmp_path / "mine"), "--calibration", str(book), flag)
    assert (result.code, mine.read_text(encoding="utf-8")) == (1, "mine")
    assert "holds something else. Move that elsewhere, or name another OUT." in result.err


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ((), "awq needs a text to calibrate with. Add --calibration FILE"),
        (("--calibration", "{missing}"), "There is no file"),
        (("--calibration", "{model}/model.safetensors"), "text"),
        (("--calibration", "{short}"), "at least 1,024 are needed"),
        (("--calibration", "{book}", "--group-size", "128"), "Groups of 128 do not divide the 64 columns"),
        (("--calibration", "{book}", "--format", "awq", "--bits", "8"), "AWQ files hold 4 bits."),
        (("--method", "obq"), "--method is 'obq'. Use one of awq, gptq, smoothquant, rtn."),
        (("--method", "rtn", "--dtype", "int7"), "--dtype is 'int7'."),
    ],
)
def test_what_cannot_be_is_one_line_and_leaves_nothing(
    flags: tuple[str, ...], said: str, octavo: Octavo, model: Path, book: Path, tmp_path: Path
) -> None:
    short = tmp_path / "short.txt"
    short.write_text("Too little.", encoding="utf-8")
    places = {"missing": tmp_path / "none.txt", "model": model, "short": short, "book": book}
    given = [flag.format(**{name: str(path) for name, path in places.items()}) for flag in flags]
    result = octavo("quantize", str(model), str(tmp_path / "out"), *given, "--device", "cpu")
    assert result.code == 1
    assert said in result.err
    assert len(result.err.strip().splitlines()) == 1
    assert not list(tmp_path.glob("out*"))
