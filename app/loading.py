"""What a load consists of: finding a model's files, checking them, building an engine; and how far one is."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from octavo.engine.errors import OctavoError

if TYPE_CHECKING:
    from octavo.app.config import Config
    from octavo.engine.config import EngineConfig
    from octavo.engine.engine import Engine

log = logging.getLogger(__name__)

Report = Callable[[str, int, int, str], None]  # stage, done, total, source


@dataclass(frozen=True, slots=True)
class HostProgress:
    """How far a load is: `done` of `total` in the stage's unit (bytes for fetching and reading; total 0: unknown)."""

    stage: str
    done: int = 0
    total: int = 0
    source: str = ""


@dataclass(frozen=True, slots=True)
class Holding:
    """What the loaded model takes, in bytes: the next one can have it."""

    weight_bytes: int = 0
    kv_bytes: int = 0

    @classmethod
    def of(cls, engine: Engine | None) -> Holding:
        """On the CPU pages that no chat has touched take no memory yet, so only the weights count there."""
        if engine is None:
            return cls()
        info = engine.info
        return cls(info.weight_bytes, 0 if info.device.lower() == "cpu" else info.kv_bytes)

    @property
    def total_bytes(self) -> int:
        return self.weight_bytes + self.kv_bytes


class LoadCancelled(OctavoError):
    """The user cancelled a load; raised inside it at the next report of progress."""

    def __init__(self) -> None:
        super().__init__("Loading was cancelled.")


def with_choice(config: Config, chosen: Mapping[str, object]) -> Config:
    """The configuration with other values in its model section. Raises pydantic's ValidationError for wrong ones."""
    if not chosen:
        return config
    section = type(config.model).model_validate({**config.model.model_dump(), **chosen})
    return config.model_copy(update={"model": section})


def find_model(config: Config, report: Report) -> str | Path:
    """The local path of `config.model.id`, fetched if it must be. Random weights ("shape:NAME") have no path."""
    model_id = config.model.id
    if model_id.startswith("shape:"):
        return model_id
    from octavo.app.config import format_size
    from octavo.app.library import resolve_model
    from octavo.app.library.progress import DOWNLOADING

    is_told = False

    def tell(stage: str, done: int, total: int, source: str) -> None:
        nonlocal is_told
        if stage == DOWNLOADING and total and not is_told:
            is_told = True
            log.info("Fetching %s (%s) from %s", model_id, format_size(total), source)
        report(stage, done, total, source)

    return resolve_model(model_id, folders=config.model.folders, revision=config.model.revision, progress=tell)


def check_model(source: str | Path, config: Config, holding: Holding) -> None:
    """Raises what would keep the model from loading, as far as its headers and the memory can tell."""
    if isinstance(source, str):
        return
    from octavo.app.library.readiness import require_loadable

    require_loadable(source, config, holding.total_bytes)


def check_nothing(source: str | Path, config: Config, holding: Holding) -> None:
    """For hosts whose models are made up."""


def build_engine(source: str | Path, config: Config, report: Report) -> Engine:
    """Load the engine as the configuration says."""
    from octavo.app.config import engine_config
    from octavo.engine.engine import Engine

    settings: EngineConfig = engine_config(config)
    if settings.draft_model is not None and settings.speculation in ("draft", "auto"):
        settings = replace(settings, draft_model=_find_draft(settings.draft_model, config, report))
    return Engine.load(source, settings, progress=lambda p: report(p.stage, p.done, p.total, ""))


def _find_draft(model_id: str, config: Config, report: Report) -> str:
    """The local path of the model that guesses; what was asked for if it is not found, which the engine then tells."""
    from octavo.app.library import resolve_model

    try:
        return str(resolve_model(model_id, folders=config.model.folders, progress=report))
    except OctavoError as error:
        log.warning("The draft model cannot be used: %s", error)
        return model_id
