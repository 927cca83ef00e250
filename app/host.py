"""The one place that holds the engine: loads a model in a thread, says how far it is, unloads it, survives failures.

Knows nothing of HTTP, chats or the page; they watch it through `add_listener` or `wait_until_settled`.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from octavo.app.loading import (
    Holding,
    HostProgress,
    LoadCancelled,
    Report,
    build_engine,
    check_model,
    check_nothing,
    find_model,
    with_choice,
)
from octavo.app.memory import release_memory
from octavo.app.tally import Tally
from octavo.engine.errors import OctavoError

if TYPE_CHECKING:
    from octavo.app.config import Config
    from octavo.engine.engine import Engine

__all__ = ["Holding", "HostProgress", "HostState", "LoadCancelled", "ModelHost", "Report", "build_engine"]

log = logging.getLogger(__name__)

HostState = Literal["empty", "loading", "ready", "unloading", "failed"]

NOTIFY_EVERY_S = 0.1  # listeners of a running load are called at most this often


class ModelHost:
    """Holds at most one engine.

    `load` returns at once and works in a thread; its outcome is `state` "ready", "failed" (with `error`) or, after
    `cancel`, "empty". The three functions are what a load consists of: `find` makes a path of a model id, `check` says
    of a path what would keep it from loading, `build` makes an engine of it. `find` and `build` get a `report` to call;
    it raises LoadCancelled when the load was cancelled.

    A model that is loaded goes on answering while the next one is found, fetched and checked; only then is it closed.
    If building the next one fails all the same, the one before is loaded again.
    """

    def __init__(
        self,
        *,
        find: Callable[[Config, Report], str | Path] | None = None,
        check: Callable[[str | Path, Config, Holding], None] | None = None,
        build: Callable[[str | Path, Config, Report], Engine] | None = None,
    ) -> None:
        self._find = find or find_model
        self._check = check or (check_model if find is None else check_nothing)
        self._build = build or build_engine
        self._condition = threading.Condition()
        self._listeners: list[Callable[[], None]] = []
        self.tally = Tally()
        self._state: HostState = "empty"
        self._engine: Engine | None = None
        self._progress: HostProgress | None = None
        self._error: str | None = None
        self._model_id: str | None = None
        self._next_id: str | None = None
        self._notices: tuple[str, ...] = ()
        self._attempt = 0  # raised by every load, cancel and unload; a thread of an older attempt has no say any more
        self._working = threading.Lock()  # one load or unload at a time: two engines would not fit into memory
        self._notified_s = 0.0
        self._closed = False
        self._loaded_from: Config | None = None
        self._chosen: Mapping[str, object] = {}  # of the loaded model, and of the one being loaded
        self._wanted: Mapping[str, object] = {}
        self._resting: Config | None = None  # what to load again when somebody asks for it
        self._times_woken = 0

    @property
    def state(self) -> HostState:
        return self._state

    @property
    def engine(self) -> Engine | None:
        """The engine, in state "ready" only."""
        return self._engine if self._state == "ready" else None

    @property
    def progress(self) -> HostProgress | None:
        """How far the running load is; None when nothing loads. In state "ready" it is that of the next model."""
        return self._progress

    @property
    def error(self) -> str | None:
        """Why the last load failed: one sentence and what to do about it. The model before may be "ready" still."""
        return self._error

    @property
    def model_id(self) -> str | None:
        """What was asked for: the id of the loaded, loading or failed model."""
        return self._model_id

    @property
    def next_id(self) -> str | None:
        """The id of the model that is being found and checked while the loaded one goes on."""
        return self._next_id

    @property
    def config(self) -> Config | None:
        """What the loaded model was loaded with."""
        return self._loaded_from if self._state == "ready" else None

    @property
    def notices(self) -> tuple[str, ...]:
        """What was done differently from what was asked, such as falling back to the CPU."""
        return self._notices

    @property
    def chosen(self) -> Mapping[str, object]:
        """What the last load was given instead of config.yaml's values, by name of the model section: a choice for this
        run, such as another model or a shorter context."""
        return self._chosen

    @property
    def wanted(self) -> Mapping[str, object]:
        """The same of the load that was begun last, also if it failed: for trying again."""
        return self._wanted

    def load(self, config: Config, chosen: Mapping[str, object] | None = None) -> None:
        """Begin to load `config.model.id`; a running load is cancelled. Model id "none" only unloads.

        `chosen` names fields of the model section that take the place of the configuration's.
        """
        config = with_choice(config, chosen or {})
        if config.model.id == "none":
            self.unload()
            return
        with self._condition:
            if self._closed:
                return
            self._attempt += 1
            attempt = self._attempt
            self._resting = None
            self._error = None
            self._wanted = dict(chosen or {})
            self._progress = HostProgress("starting")
            if self._state == "ready":
                self._next_id = config.model.id
                self._notify()
            else:
                self._model_id, self._next_id, self._notices = config.model.id, None, ()
                self._set_state("loading")
        threading.Thread(target=self._run_load, args=(attempt, config), name="octavo-load", daemon=True).start()

    def cancel(self) -> None:
        """Stop a running load. The state is at once what it was before, what was read is freed soon after."""
        with self._condition:
            if self._progress is None:
                return
            self._attempt += 1
            self._progress, self._next_id = None, None
            if self._state == "loading":
                self._model_id = None
                self._set_state("empty")
            else:
                self._notify()

    @property
    def is_resting(self) -> bool:
        """Whether the model was unloaded by `rest` and comes back when it is needed."""
        return self._resting is not None

    def rest(self) -> None:
        """Unload a model that nobody uses; `wake` loads it again."""
        with self._condition:
            if self._state != "ready" or self._progress is not None:
                return
            config = self._loaded_from
            self.unload()
            if config is not None:
                self._resting, self._model_id = config, config.model.id

    @property
    def times_woken(self) -> int:
        """How often somebody was about to use the model."""
        return self._times_woken

    def wake(self) -> None:
        """To be called before the model is used: begins to load it again if `rest` unloaded it."""
        with self._condition:
            self._times_woken += 1
            if self._resting is not None:
                self.load(self._resting, self._chosen)

    def unload(self) -> None:
        """Free the model in a thread (or cancel its load); the state is "empty" afterwards."""
        with self._condition:
            self._resting = None
            if self._state == "loading":
                self.cancel()
                return
            engine = self._take_engine()
            self._attempt += 1
            self._progress, self._next_id = None, None
            self._model_id, self._error, self._notices = None, None, ()
            if engine is None:
                self._set_state("empty")
                return
            self._set_state("unloading")
            attempt = self._attempt
        # A bare argument would stay in this frame until the thread has run.
        threading.Thread(target=self._run_unload, args=(attempt, [engine]), name="octavo-unload", daemon=True).start()

    def close(self, timeout_s: float = 10.0) -> None:
        """Free everything and take no more loads; waits for a running load or unload to notice."""
        with self._condition:
            self._closed = True
            self._attempt += 1
            engine = self._take_engine()
            self._progress, self._next_id = None, None
            self._set_state("empty")
        if engine is not None:
            self._close(engine)
        if self._working.acquire(timeout=timeout_s):
            self._working.release()

    def add_listener(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Call `listener` after changes of state and progress, from whatever thread made them. Returns its removal."""
        with self._condition:
            self._listeners.append(listener)

        def remove() -> None:
            with self._condition:
                if listener in self._listeners:
                    self._listeners.remove(listener)

        return remove

    def wait(self, timeout_s: float | None = None) -> HostState:
        """Block until nothing is loading or unloading (or the time is over) and say the state."""
        with self._condition:
            self._condition.wait_for(lambda: not self._is_moving, timeout_s)
            return self._state

    async def wait_until_settled(self, on_change: Callable[[], None] | None = None) -> HostState:
        """The same for asyncio; `on_change` is called in the loop after every change of the progress."""
        loop = asyncio.get_running_loop()
        changed = asyncio.Event()

        def wake() -> None:
            loop.call_soon_threadsafe(changed.set)

        remove = self.add_listener(wake)
        try:
            while self._is_moving:
                if on_change is not None:
                    on_change()
                await changed.wait()
                changed.clear()
            return self._state
        finally:
            remove()

    @property
    def _is_moving(self) -> bool:
        return self._state in ("loading", "unloading") or self._progress is not None

    # In threads

    def _run_load(self, attempt: int, config: Config) -> None:
        failure: str | None = None
        chosen_before = self._chosen
        before: Config | None = None
        with self._working:
            try:
                report = self._reporter(attempt)
                report("finding", 0, 0, "")
                source = self._find(config, report)
                report("checking", 0, 0, "")
                self._check(source, config, Holding.of(self._engine))
                before = self._give_way(attempt, config)
                self._finish(attempt, config, self._build(source, config, report))
                return
            except LoadCancelled:
                pass
            except OctavoError as error:
                failure = str(error)
                log.warning("Loading %s failed: %s", config.model.id, error)
            except Exception as error:  # a fault of ours or of a library: the server must outlive it
                failure = f"Loading failed unexpectedly ({type(error).__name__}: {error}). The log has the details."
                log.exception("Loading %s failed", config.model.id)
            release_memory()
            if failure is not None and not (
                before is not None and self._restore(attempt, before, chosen_before, failure)
            ):
                self._fail(attempt, failure)

    def _give_way(self, attempt: int, config: Config) -> Config | None:
        """Closes the loaded model, if there is one, and says how it had been loaded."""
        with self._condition:
            if attempt != self._attempt:
                raise LoadCancelled
            before = self._loaded_from if self._engine is not None else None
            engine = self._take_engine()
            self._model_id, self._next_id, self._notices = config.model.id, None, ()
            self._loaded_from, self._chosen = config, self._wanted
            if self._state != "loading":
                self._set_state("loading")
        if engine is not None:
            self._close(engine)
            del engine
            release_memory()
        return before

    def _finish(self, attempt: int, config: Config, engine: Engine, error: str | None = None) -> None:
        with self._condition:
            if attempt == self._attempt:
                self.tally.begin(engine)
                self._engine, self._progress = engine, None
                self._notices = (*engine.info.notices, *_notices_of_choice(self._chosen))
                self._loaded_from, self._model_id, self._error = config, config.model.id, error
                self._set_state("ready")
                info = engine.info
                log.info("%s is ready: %s on %s", info.name, info.format, info.device)
                for notice in _notices_of_choice(self._chosen):
                    log.info("%s", notice)
                return
        self._close(engine)  # cancelled in its last moment
        del engine
        release_memory()

    def _restore(self, attempt: int, config: Config, chosen: Mapping[str, object], failure: str) -> bool:
        """Brings the model back that had to give way for one that then failed."""
        with self._condition:
            if attempt != self._attempt:
                return True
            self._model_id, self._chosen = config.model.id, chosen
        try:
            report = self._reporter(attempt)
            self._finish(attempt, config, self._build(self._find(config, report), config, report), failure)
        except LoadCancelled:
            return True
        except Exception:
            log.exception("The model before, %s, could not be loaded again", config.model.id)
            release_memory()
            return False
        return True

    def _fail(self, attempt: int, failure: str) -> None:
        with self._condition:
            if attempt != self._attempt:
                return
            self._error, self._progress, self._next_id = failure, None, None
            if self._state == "ready":  # the model before was not touched
                self._notify()
            else:
                self._set_state("failed")

    def _run_unload(self, attempt: int, engines: list[Engine]) -> None:
        with self._working:
            self._close(engines.pop())
            release_memory()
        with self._condition:
            if attempt == self._attempt:
                self._set_state("empty")

    def _reporter(self, attempt: int) -> Report:
        def report(stage: str, done: int, total: int, source: str) -> None:
            with self._condition:
                if attempt != self._attempt:
                    raise LoadCancelled
                new_stage = self._progress is None or self._progress.stage != stage
                self._progress = HostProgress(stage, done, total, source)
                if new_stage or time.monotonic() - self._notified_s >= NOTIFY_EVERY_S:
                    self._notify()

        return report

    def _close(self, engine: Engine) -> None:
        try:
            engine.close()
        except Exception:
            log.exception("The engine could not be closed cleanly")
        self.tally.end(engine)

    # Under the lock

    def _take_engine(self) -> Engine | None:
        engine, self._engine = self._engine, None
        return engine

    def _set_state(self, state: HostState) -> None:
        self._state = state
        self._notify()

    def _notify(self) -> None:
        self._notified_s = time.monotonic()
        self._condition.notify_all()
        for listener in tuple(self._listeners):
            try:
                listener()
            except Exception:  # such as an event loop that has ended
                log.debug("A listener of the model host failed", exc_info=True)


def _notices_of_choice(chosen: Mapping[str, object]) -> tuple[str, ...]:
    """How the model was loaded otherwise than config.yaml says: the next start knows nothing of it."""
    how = ", ".join(f"model.{name}={value}" for name, value in chosen.items() if name not in ("id", "revision"))
    if not how:
        return ()
    return (f"Until the next start, or until another model is loaded, this takes the place of config.yaml: {how}.",)
