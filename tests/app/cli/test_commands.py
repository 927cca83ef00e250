"""Commands and flags: what they print, and the three exit codes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from octavo.app.config.document import example_text

if TYPE_CHECKING:
    from tests.app.cli.conftest import Result

Octavo = Callable[..., "Result"]
HEAVY = (
    "torch",
    "transformers",
    "gradio",
    "fastapi",
    "uvicorn",
    "huggingface_hub",
    "pydantic",
    "ruamel.yaml",
    "psutil",
)


@pytest.mark.parametrize("argument", ["--help", "--version"])
def test_help_and_version_answer_at_once(argument: str) -> None:
    code = f"import sys; from octavo.app.cli import main; main([{argument!r}])\n"
    code += f"print([name for name in {HEAVY!r} if name in sys.modules], file=sys.stderr)"
    used = []
    for _ in range(3):  # the first time its modules may have to be compiled
        before = os.times()
        result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        after = os.times()
        assert "octavo" in result.stdout.lower()
        assert result.stderr.strip() == "[]"
        used.append(after.children_user + after.children_system - before.children_user - before.children_system)
    if sys.platform != "win32":  # there the system does not count the time of children
        assert min(used) < 0.6  # seconds of the processor's time, however busy it is otherwise


def test_every_command_is_in_the_help(octavo: Octavo) -> None:
    text = octavo("--help").out
    for name in ("app", "serve", "bench", "config", "models", "doctor", "--config", "--host", "--port", "--model"):
        assert name in text
    for name in ("--device", "--no-browser", "--log-level", "--debug", "--version"):
        assert name in text
    assert all(name in octavo("config", "--help").out for name in ("path", "show", "check", "schema"))
    assert all(name in octavo("models", "--help").out for name in ("list", "pull", "remove", "inspect", "fit"))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--prot", "1"], "No such option: --prot"),
        (["serv"], "No such command 'serv'"),
        (["app", "extra"], "unexpected extra argument"),
        (["--config"], "requires an argument"),
        (["models", "pull"], "Missing argument"),
        (["models", "fit", "x", "--context", "many"], "Invalid value for '--context'"),
        (["serve", "--port", "70000"], "--port: server.port must be a whole number from 0 to 65535, found 70000."),
        (["serve", "--port", "web"], "--port: server.port must be a whole number, found 'web'."),
        (["--device", "gpu"], "--device: model.device must be auto, cpu, cuda, cuda:N, found 'gpu'"),
        (["--log-level", "loud"], "--log-level: app.log_level must be"),
        (["--host", "0.0.0.0"], "--host: server.host '0.0.0.0' opens Octavo to the network"),
    ],
)
def test_wrong_flags_end_with_2_and_one_line(octavo: Octavo, arguments: list[str], said: str) -> None:
    result = octavo(*arguments)
    assert result.code == 2
    assert said in result.err
    assert result.err.startswith("octavo: ")
    assert result.err.count("\n") == 1
    assert result.out == ""


@pytest.mark.parametrize("group", ["config", "models"])
def test_a_group_without_a_command_shows_its_commands(octavo: Octavo, group: str) -> None:
    result = octavo(group)
    assert result.code == 2
    assert result.err.startswith(f"Usage: octavo {group}")


def test_the_trace_is_shown_with_debug_only(octavo: Octavo) -> None:
    assert "Traceback" not in octavo("models", "inspect", "starter").err
    assert "Traceback" in octavo("models", "inspect", "starter", "--debug").err
    assert octavo("models", "inspect", "starter").code == 1


def test_an_unexpected_error_is_one_line_too(octavo: Octavo, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("octavo.app.doctor.doctor", lambda config: 1 / 0)
    result = octavo("doctor")
    assert result.code == 1
    assert "internal error (ZeroDivisionError" in result.err
    assert result.err.count("\n") == 1


def test_an_interrupted_command_ends_quietly(octavo: Octavo, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(config: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr("octavo.app.doctor.doctor", interrupted)
    result = octavo("doctor")
    assert (result.code, result.out, result.err) == (130, "", "")  # 128 + the number of the signal, as shells have it


def test_config_path_is_the_users_own_or_the_named_one(octavo: Octavo, own_folders: Path) -> None:
    assert Path(octavo("config", "path").out.strip()).name == "config.yaml"
    assert str(own_folders) in octavo("config", "path").out
    named = str(own_folders / "other.yaml")
    assert octavo("config", "path", "--config", named).out.strip() == named
    assert octavo("--config", named, "config", "path").out.strip() == named


def test_config_show_prints_values_with_their_sources(
    octavo: Octavo, own_folders: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = own_folders / "c.yaml"
    file.write_text("server:\n  host: localhost\n  api_key: s3cret\n", encoding="utf-8")
    monkeypatch.setenv("OCTAVO_ENGINE__FUSION", "off")
    result = octavo("--port", "9000", "config", "show", "--config", str(file))
    rows = {line.split()[0]: line.split()[1:] for line in result.out.splitlines()[1:]}
    assert rows["server.host"] == ["localhost", "file", "(line", "2)"]
    assert rows["engine.fusion"] == ["false", "environment", "(OCTAVO_ENGINE__FUSION)"]
    assert rows["server.port"] == ["9000", "flag", "(--port)"]
    assert rows["app.theme"] == ["system", "default"]
    assert rows["server.api_key"][0] == "set"
    assert "s3cret" not in result.out
    assert not (own_folders / "xdg_config_home").exists()


def test_config_check_ends_with_0_or_2(octavo: Octavo, own_folders: Path) -> None:
    file = own_folders / "c.yaml"
    file.write_text("server: {port: 1}\n", encoding="utf-8")
    assert octavo("config", "check", "--config", str(file)).code == 0
    file.write_text("server:\n  prot: 1\n\tapp: x\n", encoding="utf-8")
    result = octavo("config", "check", "--config", str(file))
    assert (result.code, result.out) == (2, "")
    assert f"{file} line 3" in result.err
    missing = octavo("config", "check", "--config", str(own_folders / "no.yaml"))
    assert missing.code == 2
    assert "does not exist" in missing.err
    assert octavo("config", "check").code == 0


def test_config_schema_is_json(octavo: Octavo) -> None:
    assert json.loads(octavo("config", "schema").out)["properties"]["server"]


def test_models_list_names_the_way_to_get_one(octavo: Octavo) -> None:
    result = octavo("models", "list")
    assert (result.code, result.out) == (0, "")
    assert "octavo models pull starter" in result.err


def test_the_list_says_why_a_folder_of_ones_own_cannot_be_loaded(octavo: Octavo, tmp_path: Path) -> None:
    broken = tmp_path / "mine" / "broken"
    broken.mkdir(parents=True)
    (broken / "model.safetensors").write_bytes(b"\x02\0\0\0\0\0\0\0{}")
    config = tmp_path / "own.yaml"
    config.write_text(f"model:\n  folders: [{json.dumps(str(tmp_path / 'mine'))}]\n", encoding="utf-8")
    [line] = octavo("models", "list", "--config", str(config)).out.splitlines()
    assert line.startswith("broken ")
    assert "has no config.json" in line
    assert "pull it again" not in line


def test_models_commands_work_on_files(octavo: Octavo, starter_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OCTAVO_STARTER", str(starter_path))
    listed = octavo("models", "list").out.split()
    assert listed[0] == "starter"
    assert octavo("models", "pull", "starter").out.strip() == str(starter_path)
    inspected = octavo("models", "inspect", str(starter_path))
    assert (inspected.code, "Nothing is wrong with it." in inspected.out) == (0, True)
    fitted = octavo("models", "fit", "starter", "--context", "512", "--device", "cpu")
    assert fitted.code == 0
    assert "for a chat of 512 tokens" in fitted.out


@pytest.mark.parametrize(
    ("command", "model", "said"),
    [
        ("inspect", "org/nothing", "org/nothing is not on disk. Fetch it: octavo models pull org/nothing"),
        (
            "fit",
            "org/nothing:Q4_0",
            "HF_HUB_OFFLINE is set, so nothing is downloaded. org/nothing:Q4_0 is not on disk.",
        ),
        ("fit", "org/nothing", "HF_HUB_OFFLINE is set, so nothing is downloaded. org/nothing is not on disk."),
        ("fit", "./nothing", "There is no folder or file"),
        ("pull", "none", "no model is chosen"),
    ],
)
def test_a_model_that_is_not_there_ends_with_1(octavo: Octavo, command: str, model: str, said: str) -> None:
    result = octavo("models", command, model)
    assert result.code == 1
    assert said in result.err


def test_removing_asks_first(octavo: Octavo, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("typer.confirm", lambda *args, **kwargs: False)
    assert "Nothing was deleted." in octavo("models", "remove", "org/model").err
    assert "not in the Hugging Face cache" in octavo("models", "remove", "org/model", "--yes").err


def test_bench_gets_its_flags_and_a_model_that_is_found(
    octavo: Octavo, starter_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[list[str]] = []
    monkeypatch.setattr("octavo.engine.bench.main", lambda arguments: calls.append(arguments) or 0)
    monkeypatch.setenv("OCTAVO_STARTER", str(starter_path))
    assert octavo("bench", "--model", "shape:qwen-0.5b", "--compare", "fusion").code == 0
    assert octavo("bench", "--workload", "cpu-1", "--model", "starter", "--json", "x.json").code == 0
    assert octavo("bench", "--model=starter").code == 0
    assert octavo("bench", "--model=starter", "--draft-model", "starter").code == 0
    assert octavo("bench", "--draft-model=starter").code == 0
    assert octavo("bench", "--model", "--workload", "cpu-1").code == 0
    assert calls == [
        ["--model", "shape:qwen-0.5b", "--compare", "fusion"],
        ["--workload", "cpu-1", "--model", str(starter_path), "--json", "x.json"],
        ["--model", str(starter_path)],
        ["--model", str(starter_path), "--draft-model", str(starter_path)],
        ["--draft-model", str(starter_path)],
        ["--model", "--workload", "cpu-1"],  # argparse says that the model is missing
    ]
    assert octavo("bench", "--model", "./nothing").code == 1
    assert octavo("bench", "--draft-model", "./nothing").code == 1


def test_doctor_says_what_it_found_and_what_is_wrong(octavo: Octavo, own_folders: Path) -> None:
    result = octavo("doctor")
    assert result.code == 0
    for subject in ("octavo", "processor", "torch", "triton", "config", "data", "starter"):
        assert subject in result.out
    file = own_folders / "bad.yaml"
    file.write_text(example_text().replace("fusion: true", "fusion: maybe"), encoding="utf-8")
    wrong = octavo("doctor", "--config", str(file))
    assert wrong.code == 1
    assert "WRONG" in wrong.out
    assert "engine.fusion must be true or false" in wrong.out
