"""Starting anew: what one life of the app leaves for the next, and the parent that starts it again."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from octavo.app import restart
from octavo.app.gpu_watch import watch_gpu
from octavo.app.restart import CODE, MOST_LOSSES, SUPERVISED, WITHIN_S, RestartNote, is_parents_turn, supervise


def test_a_note_is_read_once(tmp_path: Path) -> None:
    RestartNote(tmp_path).leave("asked", 100.0)
    found = RestartNote(tmp_path).take()
    assert found is not None
    assert (found.reason, found.at_s, found.losses) == ("asked", 100.0, ())
    assert RestartNote(tmp_path).take() is None


def test_the_page_is_found_again_where_it_was_unless_another_port_is_asked_for(tmp_path: Path) -> None:
    RestartNote(tmp_path).leave("asked", 100.0, asked_port=7860, port=7863)
    found = RestartNote(tmp_path).take()
    assert found is not None
    assert found.port_to_keep(7860) == 7863
    assert found.port_to_keep(8000) is None


@pytest.mark.parametrize("text", ["", "{", "[]", '{"reason": "asked"}', '{"reason": "gpu", "at_s": "x", "losses": 1}'])
def test_a_broken_note_is_no_note(tmp_path: Path, text: str) -> None:
    (tmp_path / "restart.json").write_text(text, encoding="utf-8")
    assert RestartNote(tmp_path).take() is None
    assert not (tmp_path / "restart.json").exists()


def test_a_gpu_that_is_lost_again_and_again_is_given_up(tmp_path: Path) -> None:
    now = 1000.0
    for _ in range(MOST_LOSSES):
        note = RestartNote(tmp_path)
        note.take()
        assert note.may_restart(now)
        note.leave("gpu", now)
        now += 10
    note = RestartNote(tmp_path)
    note.take()
    assert not note.may_restart(now)
    assert note.may_restart(now + WITHIN_S)  # once the losses are long ago


def test_the_parent_starts_the_child_again_as_often_as_it_asks(tmp_path: Path) -> None:
    script = (
        "import os, sys, pathlib\n"
        f"assert os.environ['{SUPERVISED}'] == '1'\n"
        "lives = pathlib.Path(sys.argv[1]); lives.write_text(lives.read_text() + 'x')\n"
        f"sys.exit({CODE} if len(lives.read_text()) < 3 else 7)\n"
    )
    lives = tmp_path / "lives"
    lives.write_text("", encoding="utf-8")
    assert supervise([sys.executable, "-c", script, str(lives)]) == 7
    assert lives.read_text(encoding="utf-8") == "xxx"


def test_only_the_first_process_on_windows_is_a_parent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(SUPERVISED, raising=False)
    assert is_parents_turn("win32")
    assert not is_parents_turn("linux")
    monkeypatch.setenv(SUPERVISED, "1")
    assert not is_parents_turn("win32")
    assert restart.again() == CODE  # the parent starts it; nothing is replaced


class Gpu:
    """A host whose engine fails requests on a GPU that may be gone."""

    def __init__(self, device: str = "cuda:0") -> None:
        self.failed = 0
        self.state = "ready"
        self.progress_s = 0.0
        self.asked: list[str] = []
        self.works = True
        self.looks = 0
        self._engine = SimpleNamespace(info=SimpleNamespace(device=device), status=self.status)

    @property
    def engine(self) -> Any:
        self.looks += 1
        return self._engine

    def status(self) -> Any:
        return SimpleNamespace(state=self.state, counters={"failed": self.failed}, progress_s=self.progress_s)

    def answers(self, device: str) -> bool:
        self.asked.append(device)
        return self.works

    async def watched(self, change: Any) -> int:
        """How often the loss was told after `change`."""
        losses: list[int] = []
        task = asyncio.create_task(
            watch_gpu(self, lambda: losses.append(1), check_every_s=0.005, answers=self.answers)  # type: ignore[arg-type]
        )
        while self.looks < 3:
            await asyncio.sleep(0.005)
        change()
        while self.looks < 20 and not task.done():
            await asyncio.sleep(0.005)
        task.cancel()
        return len(losses)


def test_a_failed_request_on_a_lost_gpu_is_noticed_once() -> None:
    gpu = Gpu()

    def lose() -> None:
        gpu.works, gpu.failed = False, 1

    assert asyncio.run(gpu.watched(lose)) == 1
    assert gpu.asked == ["cuda:0"]


@pytest.mark.parametrize("sign", [{"state": "failed"}, {"progress_s": 61.0}])
def test_an_engine_that_failed_or_stands_still_makes_it_ask(sign: dict[str, Any]) -> None:
    gpu = Gpu()
    gpu.works = False
    assert asyncio.run(gpu.watched(lambda: vars(gpu).update(sign))) == 1


def test_a_failed_request_on_a_gpu_that_answers_changes_nothing() -> None:
    gpu = Gpu()

    def fail() -> None:
        gpu.failed = 1

    assert asyncio.run(gpu.watched(fail)) == 0
    assert gpu.asked == ["cuda:0"]  # asked once for each failure, not for ever


def test_a_cpu_is_never_asked() -> None:
    gpu = Gpu("cpu")
    gpu.works = False

    def fail() -> None:
        gpu.failed, gpu.state = 5, "failed"

    assert asyncio.run(gpu.watched(fail)) == 0
    assert gpu.asked == []


@pytest.mark.skipif(sys.platform == "win32", reason="there a parent starts it anew")
def test_a_process_that_hangs_is_replaced_in_place(tmp_path: Path) -> None:
    script = tmp_path / "hangs.py"
    script.write_text(
        "import os, pathlib, sys, threading, time\n"
        "from octavo.app.restart import RestartNote, force\n"
        "folder = pathlib.Path(sys.argv[1])\n"
        "note = RestartNote(folder)\n"
        "before = note.take()\n"
        "if before is not None:\n"
        "    print(before.reason, os.getpid(), flush=True)\n"
        "    sys.exit(3)\n"
        "print(os.getpid(), flush=True)\n"
        "threading.Timer(0.05, force, (note, 'gpu')).start()\n"
        "time.sleep(60)  # as in a call that never comes back\n",
        encoding="utf-8",
    )
    command = [sys.executable, str(script), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 3, done.stderr
    first, reason, second = done.stdout.split()
    assert (reason, second) == ("gpu", first)  # the same process, new
