"""What the models panel's routes do, and the news about models that every tab gets."""

from __future__ import annotations

import asyncio
import logging
import shutil
import threading
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Literal, cast

from octavo.app.api.errors import ApiError
from octavo.app.config import ConfigError, save
from octavo.app.hardware import look as look_at_hardware
from octavo.app.host import Holding, ModelHost
from octavo.app.library import LibraryError, ModelNotFoundError, hub, resolve_model
from octavo.app.library.cache import hub_cache
from octavo.app.library.catalog import LocalModel, list_models, remove_model
from octavo.app.library.downloads import Downloads, Job
from octavo.app.library.facts import FactsBook
from octavo.app.library.fit import Fit, Sketch, alternatives, best_fitting, estimate, wish_of
from octavo.app.library.recents import Recents
from octavo.app.library.resolve import split_repository
from octavo.app.library.search import search
from octavo.app.library.sketches import Sketches
from octavo.app.library.suggestions import suggest
from octavo.app.library.tokens import forget_token, save_token, token_state
from octavo.app.library.weights import quantizations
from octavo.app.memory import device_memory, resident_bytes
from octavo.app.ui.machine import hardware_now, suggestion
from octavo.app.ui.panels.deps import PanelDeps
from octavo.app.ui.panels.repository_view import describe_repository

log = logging.getLogger(__name__)

TOPIC = "models"
TOLD_EVERY_S = 0.3  # progress; a change of state is told at once
STOP_S = 3.0  # so long replies are given to end before their model goes


class ModelDesk:
    """Holds the downloads, the recent models and what was read of the models on disk."""

    def __init__(self, deps: PanelDeps) -> None:
        self._deps, self._host, self._settings = deps, deps.host, deps.settings
        folder = None if deps.store.path is None else deps.store.path.parent
        self._downloads = Downloads(folder and folder / "downloads.json", when_done=self._fetched)
        self._recents = Recents(folder and folder / "recent-models.json")
        self._facts, self._sketches = FactsBook(), Sketches()
        self._reading = threading.Lock()
        self._told: tuple[object, float] = (None, 0.0)
        self._changes = 0  # of the list of models on disk
        self._host.add_listener(self._tell)
        self._downloads.add_listener(self._tell)
        self._tell()

    # What there is

    def overview(self) -> dict[str, Any]:
        """Everything the panel shows at first."""
        from huggingface_hub import constants

        models = list_models(self._settings.values.model.folders)
        self._read_facts(models)
        hardware = look_at_hardware()
        cache = hub_cache()
        existing = next(path for path in (cache, *cache.parents) if path.exists())
        token = token_state()
        return {
            "models": [self._describe(model) for model in models],
            "machine": hardware_now(hardware) | {"process": resident_bytes(), "cuda": _as_dict(device_memory())},
            "suggestions": [suggestion(model) for model in suggest(hardware)],
            "recent": [asdict(recent) for recent in self._recents.all()],
            "quantizations": list(quantizations()),
            "quantization": self._settings.values.model.quantization,
            "at_start": self._settings.values.model.id,
            "folders": list(self._settings.values.model.folders),
            "cache": str(cache),
            "disk_free": shutil.disk_usage(existing).free,
            "token": asdict(token),
            "offline": constants.HF_HUB_OFFLINE,
            "hub": constants.ENDPOINT,
        }

    def _describe(self, model: LocalModel) -> dict[str, Any]:
        facts = self._facts.known(model.path)
        name = "SmolLM2-135M-Instruct" if model.id == "starter" else model.id
        return {
            "id": model.id,
            "name": name,
            "format": model.format,
            "size": model.size_bytes,
            "complete": model.complete,
            "origin": model.origin,
            "path": str(model.path),
            "removable": model.origin == "hub" or (model.origin == "starter" and "starter" in model.path.parts),
            "facts": None if facts is None else asdict(facts),
        }

    def _read_facts(self, models: list[LocalModel]) -> None:
        """Read what is not known yet in a thread; the tabs hear of it as it comes."""
        missing = [model.path for model in models if self._facts.known(model.path) is None]
        if not missing or not self._reading.acquire(blocking=False):
            return

        def read() -> None:
            try:
                for path in missing:
                    self._facts.read(path)
            finally:
                self._reading.release()
                self._list_changed()

        threading.Thread(target=read, name="octavo-facts", daemon=True).start()

    # The hub

    def search(self, words: str, kind: str) -> list[dict[str, Any]]:
        free = self._free_for_weights()
        rows = []
        for found in search(words, cast('Literal["any", "safetensors", "gguf"]', kind)):
            smallest = 0.6 if "int4" in quantizations() else 2.0  # bytes a parameter takes at least
            fits = None
            if found.parameters:
                fits = "fits" if 2 * found.parameters <= free else "no"
                if fits == "no" and smallest * found.parameters <= free:
                    fits = "converted"
            rows.append(asdict(found) | {"fits": fits})
        return rows

    def _free_for_weights(self) -> int:
        hardware = look_at_hardware()
        free = max((gpu.free_bytes for gpu in hardware.gpus), default=hardware.free_bytes)
        return int(0.85 * (free + self._held()))

    def look(self, repo_id: str) -> dict[str, Any]:
        """A repository of the hub: its variants, their sizes, and what they would need here."""
        hub.probe(f"{repo_id} cannot be looked at.")
        return describe_repository(
            repo_id, self._revision(repo_id), self._sketches, lambda sketch: self._judged(sketch, {})
        )

    def download(self, model_id: str, load: bool, quantization: object) -> dict[str, Any]:
        job = self._downloads.add(
            model_id,
            self._revision(model_id),
            load_when_done=load,
            quantization=None if quantization is None else str(quantization),
        )
        return _job(job)

    def change_download(self, job_id: str, what: str) -> None:
        actions = {"pause": self._downloads.pause, "resume": self._downloads.resume, "remove": self._downloads.remove}
        if what not in actions:
            raise ApiError(404, "There is no such action.")
        actions[what](job_id)

    def _fetched(self, job: Job) -> None:
        self._list_changed()
        if not job.load_when_done or self._writing():
            return
        self._host.load(self._settings.values, self._chosen(job.model_id, {"quantization": job.quantization}))

    def set_token(self, token: str | None) -> dict[str, Any]:
        """Keep a token, or forget the one that is kept."""
        if token is None or not token.strip():
            forget_token()
            return asdict(token_state())
        name = save_token(token)
        return asdict(token_state()) | {"name": name}

    # Memory

    def fit(self, model_id: str, choice: dict[str, object]) -> dict[str, Any]:
        """The estimate for a model on disk or of the hub, as asked and in every other format."""
        sketch = self._sketch(model_id)
        return self._judged(sketch, choice)

    def _judged(self, sketch: Sketch, choice: dict[str, object]) -> dict[str, Any]:
        wish = wish_of(self._settings.values)
        for name, value in choice.items():
            wish = replace(wish, **{name: value})  # type: ignore[arg-type]
        held = self._held()
        others = alternatives(sketch, wish, held)
        fit = estimate(sketch, wish, held)
        best = best_fitting(others)
        return {
            "fit": _fit(fit),
            "alternatives": [_fit(other) for other in others],
            "best": None if best is None else best.quantization,
            "sixteen_bit": 2 * sketch.parameters,
            "sentence": fit.sentence(),
        }

    def _find(self, model_id: str) -> Path:
        """Where a model lies on this disk. Raises ModelNotFoundError."""
        folders = self._settings.values.model.folders
        return resolve_model(model_id, folders=folders, revision=self._revision(model_id), may_fetch=False)

    def _revision(self, model_id: str) -> str:
        """config.yaml's revision is that of its own model; of others the newest is meant."""
        model = self._settings.values.model
        return model.revision if model_id == model.id else "main"

    def _sketch(self, model_id: str) -> Sketch:
        try:
            path = self._find(model_id)
        except ModelNotFoundError:
            found = split_repository(model_id)
            if found is None:
                raise
            return self._sketches.of_repository(*found, self._revision(model_id))
        return self._sketches.of_path(path)

    def _held(self) -> int:
        return Holding.of(self._host.engine).total_bytes

    # Which model runs

    async def load(self, model_id: str, choice: dict[str, object], *, force: bool) -> None:
        """Begin to load a model that is on disk. Raises ApiError 409 if that would end replies and `force` is false."""
        values = self._settings.values
        if model_id != "starter":  # which is fetched if it is not there
            await asyncio.to_thread(self._find, model_id)
        await self._end_replies(force)
        self._host.load(values, self._chosen(model_id, choice))

    async def unload(self, *, force: bool) -> None:
        await self._end_replies(force)
        self._host.unload()

    def _chosen(self, model_id: str, choice: dict[str, Any]) -> dict[str, object]:
        """What differs from config.yaml."""
        model = self._settings.values.model
        wanted = {"id": model_id, "revision": self._revision(model_id)}
        wanted |= {name: value for name, value in choice.items() if value is not None}
        return {name: value for name, value in wanted.items() if getattr(model, name) != value}

    def _writing(self) -> list[str]:
        return [chat.title for chat in self._deps.service.list_chats() if chat.generating]

    async def _end_replies(self, force: bool) -> None:
        if self._host.engine is None:
            return
        service = self._deps.service
        writing = [chat for chat in await asyncio.to_thread(service.list_chats) if chat.generating]
        if not writing:
            return
        if not force:
            names = ", ".join(f"“{chat.title}”" for chat in writing[:3])
            raise ApiError(409, names, code="replies_running")
        for chat in writing:
            service.stop(chat.id)
        end = time.monotonic() + STOP_S
        while time.monotonic() < end and any(service.running(chat.id) for chat in writing):
            await asyncio.sleep(0.02)

    # Files

    def remove(self, model_id: str) -> int:
        """Delete a fetched model; returns the freed bytes. Raises ApiError 409 for one that is in use."""
        if self._host.state != "empty" and model_id in (self._host.model_id, self._host.next_id):
            raise ApiError(409, "This model is loaded.", code="in_use")
        freed = remove_model(model_id)
        self._recents.forget(model_id)
        self._list_changed()
        return freed

    def use_at_start(self, model_id: str) -> None:
        here = (model for model in list_models(self._settings.values.model.folders) if model.id == model_id)
        model = next(here, None)  # None: it is fetched when it is loaded
        problem = self._facts.read(model.path).problem if model is not None and model.complete else None
        if problem is not None:  # it would fail at every start
            raise LibraryError(problem)
        self._save({"model.id": model_id})

    def change_folders(self, add: str | None, remove: str | None) -> dict[str, Any]:
        """Look for models in one folder more or less."""
        folders = [folder for folder in self._settings.values.model.folders if folder != remove]
        if add is not None:
            path = Path(add.strip()).expanduser()
            if not path.is_absolute() or not path.is_dir():
                raise LibraryError(f"There is no folder {add.strip()}.", remedy="Write its whole path.")
            if str(path) not in folders:
                folders.append(str(path))
        self._save({"model.folders": folders})
        self._list_changed()
        return {"folders": folders}

    def _save(self, changes: dict[str, object]) -> None:
        try:
            save(self._settings.path, changes)
            self._settings.refresh()
        except ConfigError as error:
            raise ApiError(400, str(error), code="invalid_setting") from error

    # News

    def _list_changed(self) -> None:
        self._changes += 1
        self._tell()

    def _tell(self) -> None:
        host, jobs = self._host, self._downloads.jobs()
        progress, config = host.progress, host.config
        state = (
            host.state,
            host.model_id,
            host.next_id,
            host.error,
            self._changes,
            tuple((j.id, j.state) for j in jobs),
        )
        now = time.monotonic()
        if state == self._told[0] and now - self._told[1] < TOLD_EVERY_S:
            return
        if host.state == "ready" and host.next_id is None and host.model_id is not None and state != self._told[0]:
            self._recents.note(host.model_id, host.chosen)
        self._told = (state, now)
        value = {
            "state": host.state,
            "id": host.model_id,
            "next": host.next_id,
            "error": host.error,
            "resting": host.is_resting,
            "progress": None if progress is None else asdict(progress),
            "quantization": None if config is None else config.model.quantization,
            "info": _info(host),
            "downloads": [_job(job) for job in jobs],
            "recent": [asdict(recent) for recent in self._recents.all()],
            "list": self._changes,
        }
        self._deps.board.put(TOPIC, value)


def _info(host: ModelHost) -> dict[str, Any] | None:
    engine = host.engine
    if engine is None:
        return None
    info = engine.info
    return {
        "format": info.format,
        "weights": info.weight_bytes,
        "kv": info.kv_bytes,
        "chat": info.chat_bytes,
        "context": info.context_length,
        "device": info.device,
    }


def _fit(fit: Fit) -> dict[str, Any]:
    return asdict(fit) | {
        "total_bytes": fit.total_bytes,
        "available_bytes": fit.available_bytes,
        "verdict": fit.verdict,
    }


def _job(job: Job) -> dict[str, Any]:
    shown = asdict(job)
    for name in ("files", "commit", "revision"):
        del shown[name]
    return shown | {"seconds_left": job.seconds_left}


def _as_dict(value: Any) -> dict[str, Any] | None:
    return None if value is None else asdict(value)
