"""Downloads people start, pause, take up again after a restart and call off."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from fake_hub import FakeHub
from huggingface_hub import constants

from octavo.app.library import LibraryError, errors, transfer
from octavo.app.library.cache import find_cached, repository_folder
from octavo.app.library.downloads import Downloads, Job

Files = Callable[..., dict[str, bytes]]
WEIGHTS = bytes(range(256)) * 8000  # about two megabytes


@pytest.fixture(autouse=True)
def no_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfer, "WAITS_S", (0.01,))


@pytest.fixture
def hub(fake_hub: FakeHub, safetensors_files: Files) -> FakeHub:
    for name in ("org/model", "org/second"):
        fake_hub.repositories[name] = safetensors_files(model__safetensors=WEIGHTS + name.encode())
    return fake_hub


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Downloads]]:
    made: list[Downloads] = []

    def make(**options: object) -> Downloads:
        made.append(Downloads(tmp_path / "data" / "downloads.json", **options))  # type: ignore[arg-type]
        return made[-1]

    yield make
    for downloads in made:
        downloads.close()


def wait_for(downloads: Downloads, job: Job, state: str, timeout_s: float = 60.0) -> Job:
    end = time.monotonic() + timeout_s
    while (now := downloads.find(job.id)).state != state:
        assert time.monotonic() < end, now
        time.sleep(0.005)
    return now


def under_way(hub: FakeHub, downloads: Downloads, name: str = "org/model") -> Job:
    """A job some way into its weights, slow enough to be caught there."""
    hub.bytes_per_s, hub.slow_after = 1e5, 600_000
    job = downloads.add(name)
    end = time.monotonic() + 60
    while not downloads.find(job.id).done > 300_000:
        assert time.monotonic() < end, downloads.find(job.id)
        time.sleep(0.005)
    return downloads.find(job.id)


def test_a_download_tells_size_progress_and_speed_and_then_is_done(
    hub: FakeHub, start: Callable[..., Downloads]
) -> None:
    done: list[Job] = []
    downloads = start(when_done=done.append)
    told = [0]
    downloads.add_listener(lambda: told.__setitem__(0, told[0] + 1))
    job = under_way(hub, downloads)
    assert (job.state, job.total) == ("running", len(WEIGHTS) + 9 + 6)
    while not (now := downloads.find(job.id)).speed:
        assert now.state == "running"
        time.sleep(0.005)
    assert now.seconds_left == pytest.approx((now.total - now.done) / now.speed)
    hub.bytes_per_s = None
    finished = wait_for(downloads, job, "done")
    assert (finished.done, finished.error) == (finished.total, None)
    assert find_cached("org/model") is not None
    assert [job.model_id for job in done] == ["org/model"]
    assert told[0] > 3


def test_a_paused_download_keeps_its_part_and_goes_on_with_it(hub: FakeHub, start: Callable[..., Downloads]) -> None:
    downloads = start()
    job = under_way(hub, downloads)
    paused = downloads.pause(job.id)
    assert paused.state == "paused"
    assert paused.done < paused.total  # it does not wait for what is under way
    time.sleep(0.2)
    assert (downloads.find(job.id).done, downloads.find(job.id).state) == (paused.done, "paused")
    hub.bytes_per_s = None
    downloads.resume(job.id)
    wait_for(downloads, job, "done")
    assert hub.sent("model.safetensors") == 2
    assert len(hub.ranges) == 1


def test_after_a_restart_a_running_download_waits_paused_and_then_goes_on(
    hub: FakeHub, start: Callable[..., Downloads]
) -> None:
    job = under_way(hub, start())
    later = start()  # the first one was not closed: as after a power cut
    (kept,) = later.jobs()
    assert (kept.id, kept.state, kept.speed) == (job.id, "paused", 0.0)
    assert 300_000 <= kept.done < kept.total == job.total
    asked = len(hub.requests)
    time.sleep(0.1)
    assert later.jobs()[0].state == "paused"
    assert [r for r in hub.requests[asked:] if "/cdn/" not in r] == []


def test_closing_pauses_and_a_later_start_needs_only_the_rest(hub: FakeHub, start: Callable[..., Downloads]) -> None:
    first = start()
    job = under_way(hub, first)
    first.close()
    hub.bytes_per_s = None
    later = start()
    later.resume(job.id)
    wait_for(later, job, "done")
    (asked,) = hub.ranges
    assert int(asked.removeprefix("bytes=").partition("-")[0]) >= 300_000


def test_calling_off_deletes_the_part_and_asks_no_network(
    hub: FakeHub, start: Callable[..., Downloads], monkeypatch: pytest.MonkeyPatch
) -> None:
    downloads = start()
    job = under_way(hub, downloads)
    downloads.pause(job.id)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    downloads.remove(job.id)
    assert downloads.jobs() == ()
    assert list(repository_folder("org/model").glob("blobs/*.incomplete")) == []
    with pytest.raises(LibraryError, match="not in the list"):
        downloads.resume(job.id)


def test_a_running_download_can_be_called_off_at_once(hub: FakeHub, start: Callable[..., Downloads]) -> None:
    downloads = start()
    downloads.remove(under_way(hub, downloads).id)
    assert downloads.jobs() == ()
    assert list(repository_folder("org/model").glob("blobs/*.incomplete")) == []


def test_one_is_fetched_after_the_other_and_a_second_wish_is_the_same_job(
    hub: FakeHub, start: Callable[..., Downloads]
) -> None:
    downloads = start()
    first = under_way(hub, downloads)
    second = downloads.add("org/second")
    assert second.state == "waiting"
    assert downloads.add("org/model", load_when_done=True).id == first.id
    assert downloads.find(first.id).load_when_done
    downloads.pause(first.id)
    hub.bytes_per_s = None
    wait_for(downloads, second, "done")
    assert downloads.find(first.id).state == "paused"


def test_a_failed_download_says_why_and_can_be_tried_again(hub: FakeHub, start: Callable[..., Downloads]) -> None:
    downloads = start()
    hub.gated["org/model"], hub.tokens["hf_reader"] = {"hf_reader"}, "ada"
    job = downloads.add("org/model")
    failed = wait_for(downloads, job, "failed")
    assert failed.reason == "no token"
    assert failed.error is not None
    assert "must be granted" in failed.error
    hub.gated.clear()
    assert downloads.resume(job.id).error is None
    wait_for(downloads, job, "done")


def test_space_is_looked_for_before_anything_is_fetched(
    hub: FakeHub, start: Callable[..., Downloads], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Usage:
        free = 1_000_000

    monkeypatch.setattr(errors.shutil, "disk_usage", lambda path: Usage)
    downloads = start()
    failed = wait_for(downloads, downloads.add("org/model"), "failed")
    assert failed.error is not None
    assert "MiB are needed, 977 KiB are free" in failed.error
    assert hub.sent("model.safetensors") == 0


def test_a_list_that_cannot_be_read_begins_anew(start: Callable[..., Downloads], tmp_path: Path) -> None:
    file = tmp_path / "data" / "downloads.json"
    file.parent.mkdir()
    for text in ("{", "[]", json.dumps({"jobs": [{"id": "x"}]}), json.dumps({"jobs": [7]})):
        file.write_text(text, encoding="utf-8")
        assert start().jobs() == ()


def test_what_is_on_disk_already_is_done_at_once(hub: FakeHub, start: Callable[..., Downloads]) -> None:
    downloads = start()
    wait_for(downloads, downloads.add("org/model"), "done")
    again = downloads.add("org/model")
    wait_for(downloads, again, "done")
    assert hub.sent("model.safetensors") == 1
