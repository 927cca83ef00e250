"""A file's way from the hub into the cache: resumed, checked, alone, and only under its own name when it is right."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

import filelock
import pytest
from fake_hub import COMMIT, FakeHub, etag
from huggingface_hub import constants, hf_hub_download

from octavo.app.library import DownloadError, FetchCancelledError, LibraryError, OfflineError, transfer
from octavo.app.library.cache import find_cached, repository_folder
from octavo.app.library.errors import DiskFullError
from octavo.app.library.hub import fetch, plan_fetch
from octavo.app.library.progress import never

Files = Callable[..., dict[str, bytes]]
WEIGHTS = bytes(range(256)) * 4000  # about a megabyte


@pytest.fixture(autouse=True)
def no_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfer, "WAITS_S", (0.01, 0.01))


@pytest.fixture
def hub(fake_hub: FakeHub, safetensors_files: Files) -> FakeHub:
    fake_hub.repositories["org/model"] = safetensors_files(model__safetensors=WEIGHTS)
    return fake_hub


def parts() -> list[Path]:
    return list(repository_folder("org/model").glob("blobs/*.incomplete"))


def cancel_after(size: int) -> tuple[Callable[..., None], Callable[[], bool]]:
    seen = [0]

    def progress(stage: str, done: int, total: int, source: str) -> None:
        seen[0] = done

    return progress, lambda: seen[0] > size


def test_a_cancelled_download_goes_on_where_it_stopped(hub: FakeHub) -> None:
    progress, cancelled = cancel_after(300_000)
    with pytest.raises(FetchCancelledError):
        fetch("org/model", progress=progress, cancelled=cancelled)
    (part,) = parts()
    came = part.stat().st_size
    assert 200_000 < came < len(WEIGHTS)
    assert find_cached("org/model") is None
    plan = plan_fetch("org/model")
    assert plan.there_bytes() == came + plan.total_bytes - len(WEIGHTS)
    folder = plan.run()
    assert (folder / "model.safetensors").read_bytes() == WEIGHTS
    assert hub.ranges == [f"bytes={came}-{len(WEIGHTS) - 1}"]
    assert parts() == []


def test_connections_that_break_again_and_again_still_end_in_the_whole_file(hub: FakeHub) -> None:
    hub.cut_each_after = 150_000
    assert (fetch("org/model") / "model.safetensors").read_bytes() == WEIGHTS
    assert hub.sent("model.safetensors") >= len(WEIGHTS) // 150_000


def test_a_server_without_ranges_sends_it_again_from_the_beginning(hub: FakeHub) -> None:
    hub.cut_after, hub.has_ranges = 400_000, False
    done: list[int] = []
    folder = fetch("org/model", progress=lambda stage, so_far, *_: done.append(so_far))
    assert (folder / "model.safetensors").read_bytes() == WEIGHTS
    assert done[-1] == max(done)


def test_content_that_its_hash_disowns_is_deleted(hub: FakeHub) -> None:
    hub.lies.add("model.safetensors")
    with pytest.raises(DownloadError, match=r"other bytes than its hash says for model\.safetensors of org/model"):
        fetch("org/model")
    assert parts() == []
    assert find_cached("org/model") is None
    hub.lies.clear()
    assert (fetch("org/model") / "model.safetensors").read_bytes() == WEIGHTS


def test_a_part_spoilt_on_the_disk_is_noticed(hub: FakeHub) -> None:
    progress, cancelled = cancel_after(300_000)
    with pytest.raises(FetchCancelledError):
        fetch("org/model", progress=progress, cancelled=cancelled)
    (part,) = parts()
    part.write_bytes(bytes(part.stat().st_size))
    with pytest.raises(DownloadError, match="other bytes"):
        fetch("org/model")
    assert parts() == []


def test_a_part_longer_than_the_file_is_thrown_away(hub: FakeHub) -> None:
    blobs = repository_folder("org/model") / "blobs"
    blobs.mkdir(parents=True)
    (blobs / f"{etag('model.safetensors', WEIGHTS)}.incomplete").write_bytes(bytes(len(WEIGHTS) + 1))
    assert (fetch("org/model") / "model.safetensors").read_bytes() == WEIGHTS


def test_a_busy_hub_is_asked_again_and_a_dead_one_given_up(hub: FakeHub) -> None:
    hub.failures = [503, 429]
    assert (fetch("org/model") / "model.safetensors").read_bytes() == WEIGHTS
    hub.repositories["org/other"] = hub.repositories["org/model"]
    for path in repository_folder("org/model").glob("blobs/*"):
        path.unlink()
    hub.failures = [503] * 9
    with pytest.raises(DownloadError, match="answered 503"):
        fetch("org/other")
    assert len(hub.failures) == 6


def test_silence_ends_in_a_sentence(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfer, "SILENCE_S", 0.2)
    hub.stalled.set()
    with pytest.raises(OfflineError, match="The connection for org/model broke"):
        fetch("org/model")


def test_sizes_and_hashes_the_list_leaves_out_are_asked_for(hub: FakeHub) -> None:
    hub.says_hashes = False
    assert (fetch("org/model") / "model.safetensors").read_bytes() == WEIGHTS
    assert any(request.startswith("HEAD") and "model.safetensors" in request for request in hub.requests)


def test_the_hubs_own_library_finds_what_was_fetched(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = fetch("org/model")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    for name in ("model.safetensors", "config.json"):
        found = hf_hub_download("org/model", name, cache_dir=constants.HF_HUB_CACHE, local_files_only=True)
        assert Path(found) == folder / name


def test_without_the_right_to_link_the_file_itself_stands_in_the_snapshot(
    hub: FakeHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(1314, "A required privilege is not held by the client")

    monkeypatch.setattr(Path, "symlink_to", refuse)
    folder = fetch("org/model")
    weights = folder / "model.safetensors"
    assert not weights.is_symlink()
    assert weights.read_bytes() == WEIGHTS
    assert list(repository_folder("org/model").glob("blobs/*")) == []
    assert find_cached("org/model") == folder


def test_folders_with_blanks_and_any_alphabet_work(hub: FakeHub, tmp_path: Path) -> None:
    cache = tmp_path / "Ünï тест 山" / "a b"
    folder = fetch("org/model", cache=cache)
    assert cache in folder.parents
    assert (folder / "model.safetensors").read_bytes() == WEIGHTS


def test_a_path_the_system_forbids_is_named_with_its_length(hub: FakeHub, tmp_path: Path) -> None:
    cache = tmp_path.joinpath(*["x" * 60] * 4, "y" * 300)
    with pytest.raises(LibraryError, match=r"its \d+ characters are too many for this system"):
        fetch("org/model", cache=cache)


def test_two_at_once_fetch_a_file_once(hub: FakeHub) -> None:
    hub.bytes_per_s = 4e6
    folders: list[Path] = []
    threads = [threading.Thread(target=lambda: folders.append(fetch("org/model"))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert folders[0] == folders[1]
    assert hub.sent("model.safetensors") == 1


def test_waiting_for_another_program_can_be_cancelled(hub: FakeHub) -> None:
    tag = etag("model.safetensors", WEIGHTS)
    lock = Path(constants.HF_HUB_CACHE) / ".locks" / "models--org--model" / f"{tag}.lock"
    lock.parent.mkdir(parents=True)
    begun = time.monotonic()
    with filelock.FileLock(lock), pytest.raises(FetchCancelledError):
        fetch("org/model", cancelled=lambda: time.monotonic() - begun > 0.4)


def test_a_full_disk_keeps_what_has_come(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.fsync

    def full(handle: int) -> None:
        if os.fstat(handle).st_size == len(WEIGHTS):
            raise OSError(28, "No space left on device")
        real(handle)

    monkeypatch.setattr(transfer.os, "fsync", full)
    with pytest.raises(DiskFullError):
        fetch("org/model")
    assert parts()


@pytest.mark.parametrize(
    "name", ["..\\up.safetensors", "C:model.safetensors", "a/model.safetensors", "x\n.safetensors"]
)
def test_a_name_that_would_leave_the_folder_is_never_written(hub: FakeHub, name: str) -> None:
    hub.repositories["org/model"][name] = b"evil"
    folder = fetch("org/model")
    assert sorted(path.name for path in folder.iterdir()) == [
        "config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    ]


def test_a_hash_that_would_leave_the_folder_is_refused(hub: FakeHub) -> None:
    file = transfer.RemoteFile("config.json", 2, "../../evil")
    with pytest.raises(DownloadError, match="does not say which content"):
        transfer.transfer("org/model", COMMIT, file, None, lambda *_: None, never)


def test_the_token_opens_a_gated_model_and_goes_to_no_other_host(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.gated["org/model"], hub.tokens["hf_reader"] = {"hf_reader"}, "ada"
    monkeypatch.setenv("HF_TOKEN", "hf_reader")
    assert (fetch("org/model") / "model.safetensors").read_bytes() == WEIGHTS
    assert hub.sent("model.safetensors") == 1
    assert hub.leaks == []
