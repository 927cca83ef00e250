"""The folder of an unfinished run: what may be gone on with, what is never removed, and who may write to it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from octavo.engine.quant.calibrate.errors import QuantizeError
from octavo.engine.quant.calibrate.lock import FolderLock
from octavo.engine.quant.calibrate.run import Job, quantize

MakeJob = Callable[..., Job]
OTHER_TEXT = "The keeper climbed the stairs and lit the lamp before the fog came in. " * 60


def silent(line: str) -> None:
    del line


def stopping(line: str) -> None:
    raise KeyboardInterrupt


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture
def unfinished(job: MakeJob) -> Path:
    """The folder of a run job("gptq") that was stopped after its first layer."""
    wish = job("gptq")
    with pytest.raises(KeyboardInterrupt):
        quantize(wish, stopping)
    return wish.out.with_name("out.unfinished")


@pytest.fixture
def neighbour() -> Iterator[int]:
    """The number of another process that is alive."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        yield process.pid
        process.communicate(b"\n")


@pytest.mark.parametrize("name", ["sub/mine.txt", "state.json", "model/config.json"])
@pytest.mark.parametrize("flags", [{}, {"resume": True}, {"restart": True}])
def test_a_folder_of_somebody_else_is_refused_and_left_as_it_is(
    name: str, flags: dict[str, bool], job: MakeJob, tmp_path: Path
) -> None:
    mine = tmp_path / "out.unfinished" / name
    mine.parent.mkdir(parents=True)
    mine.write_text('{"mine": 1}', encoding="utf-8")
    with pytest.raises(QuantizeError, match=r"out\.unfinished.*holds something else\. Move that elsewhere"):
        quantize(job("rtn", **flags), silent)
    assert files(tmp_path / "out.unfinished") == {str(Path(name)): b'{"mine": 1}'}


@pytest.mark.parametrize("restart", [False, True])
def test_foreign_files_in_the_folder_of_a_run_outlive_it(unfinished: Path, restart: bool, job: MakeJob) -> None:
    (unfinished / "mine.txt").write_text("mine", encoding="utf-8")
    (unfinished / "hidden-1.txt").mkdir()
    quantize(job("gptq", resume=not restart, restart=restart), silent)
    assert sorted(path.name for path in unfinished.iterdir()) == ["hidden-1.txt", "mine.txt"]
    assert (unfinished.parent / "out" / "config.json").is_file()


@pytest.mark.parametrize("left", [(), ("state.json.part", "running-1234567890")])
def test_a_run_begins_in_what_one_left_that_was_killed_at_once(left: tuple[str, ...], job: MakeJob) -> None:
    wish = job("rtn")
    folder = wish.out.with_name("out.unfinished")
    folder.mkdir()
    for name in left:
        (folder / name).write_text("{", encoding="utf-8")
    quantize(wish, silent)
    assert (wish.out.is_dir(), folder.exists()) == (True, False)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"method": "rtn"}, ["--method was gptq and is rtn"]),
        ({"bits": 8}, ["--bits was 4 and is 8", "--group-size was 64 and is 0", "--symmetric was off and is on"]),
        ({"act_order": False}, ["--act-order was on and is off"]),
        ({"tokens": 1024}, ["--tokens was 2,048 and is 1,024"]),
        ({"dtype": "bfloat16"}, ["--dtype was float32 and is bfloat16"]),
        ({"evaluate": "Fog. " * 30}, ["--eval was a part held back and is a text of its own"]),
        ({"text": OTHER_TEXT}, ["what --calibration (the text) holds has changed"]),
        ({"text": OTHER_TEXT, "text_name": "b.txt"}, ["--calibration was the text and is b.txt"]),
    ],
)
def test_going_on_with_another_setting_is_refused_with_both_values(
    change: dict[str, Any], said: list[str], unfinished: Path, job: MakeJob
) -> None:
    before = files(unfinished)
    read = {name: value for name, value in change.items() if name in ("text", "text_name")}
    asked = {name: value for name, value in change.items() if name not in read}
    wish = job(**{"method": "gptq", **asked}, resume=True)
    with pytest.raises(QuantizeError) as refused:
        quantize(replace(wish, **read), silent)
    message = str(refused.value)
    assert f"asked for something else: {'; '.join(said)}. " in message
    assert "--restart" in message
    assert files(unfinished) == before


def test_going_on_with_another_model_is_refused(
    unfinished: Path, job: MakeJob, make_model: Callable[..., Path]
) -> None:
    other = make_model("qwen2")
    with pytest.raises(QuantizeError, match=rf"MODEL was .* and is {other.name}"):
        quantize(job("gptq", model=other, resume=True), silent)
    assert (unfinished / "state.json").is_file()


def test_restart_begins_anew_and_writes_what_a_fresh_run_does(unfinished: Path, job: MakeJob) -> None:
    fresh = job("rtn", out="fresh", group=32, symmetric=True)
    quantize(fresh, silent)
    said: list[str] = []
    wish = job("rtn", group=32, symmetric=True, restart=True)
    quantize(wish, said.append)
    assert said[0].startswith("layer 1 of 2")
    assert files(wish.out) == files(fresh.out)
    assert not unfinished.exists()
    with pytest.raises(QuantizeError, match="--resume and --restart"):
        quantize(job("rtn", out="both", resume=True, restart=True), silent)


def test_going_on_without_the_finished_layers_is_refused(unfinished: Path, job: MakeJob) -> None:
    (unfinished / "model" / "model-00001-of-00003.safetensors").unlink()
    with pytest.raises(QuantizeError, match=r"cannot be read \(weight files are missing\)\. Use --restart"):
        quantize(job("gptq", resume=True), silent)


def test_two_runs_of_a_process_do_not_write_to_one_place(job: MakeJob) -> None:
    wish = job("rtn")
    refused: list[str] = []

    def second(line: str) -> None:
        for flags in ({"resume": True}, {"restart": True}):
            with pytest.raises(QuantizeError) as error:
                quantize(replace(wish, **flags), silent)  # type: ignore[arg-type]
            refused.append(str(error.value))

    quantize(wish, second)
    assert len(refused) == 4
    assert all(f"Another run (process {os.getpid()}) is writing to" in message for message in refused)
    assert (wish.out.is_dir(), wish.out.with_name("out.unfinished").exists()) == (True, False)


@pytest.mark.parametrize("flags", [{}, {"resume": True}, {"restart": True}])
def test_a_run_of_another_process_is_left_alone(
    flags: dict[str, bool], unfinished: Path, neighbour: int, job: MakeJob
) -> None:
    (unfinished / f"running-{neighbour}").touch()
    before = files(unfinished)
    with pytest.raises(QuantizeError, match=rf"Another run \(process {neighbour}\).*Wait until it ends"):
        quantize(job("gptq", **flags), silent)
    assert files(unfinished) == before


def test_of_two_that_begin_at_once_the_later_one_sees_the_other(tmp_path: Path, neighbour: int) -> None:
    lock = FolderLock(tmp_path / "work")
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / f"running-{neighbour}").touch()
    with pytest.raises(QuantizeError, match="Another run"):
        lock.__enter__()
    assert [path.name for path in (tmp_path / "work").iterdir()] == [f"running-{neighbour}"]


def test_marks_of_killed_runs_count_for_nothing(unfinished: Path, job: MakeJob) -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    for pid in (gone.pid, os.getpid()):  # a restarted container gives the same number again
        (unfinished / f"running-{pid}").touch()
    said: list[str] = []
    quantize(job("gptq", resume=True), said.append)
    assert said[0] == "Going on after 1 of 2 layers."
    assert not unfinished.exists()


@pytest.mark.parametrize("kind", ["file", "folder"])
def test_what_comes_to_stand_at_the_place_meanwhile_is_not_written_over(kind: str, job: MakeJob) -> None:
    wish = job("rtn")
    place = wish.out if kind == "file" else wish.out / "mine.txt"

    def meanwhile(line: str) -> None:
        place.parent.mkdir(exist_ok=True)
        place.write_text("mine", encoding="utf-8")

    with pytest.raises(QuantizeError, match=r"finished in .*model.*, is taken now.*Move away.*--resume"):
        quantize(wish, meanwhile)
    assert place.read_text(encoding="utf-8") == "mine"
    wish.out.rename(wish.out.with_name("moved"))
    quantize(replace(wish, resume=True), silent)
    told = json.loads((wish.out / "octavo-quantize.json").read_text(encoding="utf-8"))
    assert len(told["layers"]) == 2
