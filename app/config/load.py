"""Puts the settings together: flag over environment over config.yaml over default, each with where it came from."""

from __future__ import annotations

import json
import logging
import os
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from octavo.app import paths
from octavo.app.config import schema
from octavo.app.config.check import check, unknown_key
from octavo.app.config.document import example_text
from octavo.app.config.errors import ConfigError, Problem
from octavo.app.config.files import write_atomically
from octavo.app.config.yaml_file import YamlFile, read_yaml

if TYPE_CHECKING:
    from octavo.engine.config import EngineConfig

log = logging.getLogger("octavo.config")

ENVIRONMENT_PREFIX = "OCTAVO_"
FLAGS = {
    "server.host": "--host",
    "server.port": "--port",
    "server.open_browser": "--no-browser",
    "model.id": "--model",
    "model.device": "--device",
    "app.log_level": "--log-level",
}


@dataclass(slots=True)
class Settings:
    """The effective configuration. Whoever holds it and reads `values` when they are needed sees every later change.

    `sources` says for every dotted key where its value came from: default, file, environment or flag; `places` says it
    exactly (`config.yaml line 12`, `OCTAVO_SERVER__PORT`, `--port`). `notices` are sentences the user should see once.
    `overrides` are the flags, which a changed file does not undo. `error` says what is wrong with the file now, while
    everything else keeps its last good value.
    """

    values: schema.Config
    sources: dict[str, str]
    path: Path
    places: dict[str, str] = field(default_factory=dict)
    notices: tuple[str, ...] = ()
    overrides: dict[str, object] = field(default_factory=dict)
    error: ConfigError | None = None
    _listeners: list[Callable[[dict[str, schema.Applies]], None]] = field(default_factory=list, repr=False)
    _refreshing: threading.Lock = field(default_factory=threading.Lock, repr=False, compare=False)

    def listen(self, listener: Callable[[dict[str, schema.Applies]], None]) -> Callable[[], None]:
        """Calls `listener` after every change, in the thread that made it, with the keys that changed and when each
        takes effect; with none where only `error` has. Returns the way to end that."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    def refresh(self) -> dict[str, schema.Applies]:
        """Reads the file again and returns the keys that changed.

        Raises ConfigError and keeps the last good values if something is wrong with it.
        """
        with self._refreshing:
            before = self.error
            try:
                newer = load_settings(self.path, self.overrides)
            except ConfigError as error:
                self.error = error
                self._tell({})
                raise
            keys = changed_keys(self.values, newer.values)
            self.error = None
            self.adopt(newer)
            if keys or before is not None:
                self._tell(keys)
            return keys

    def _tell(self, keys: dict[str, schema.Applies]) -> None:
        for listener in tuple(self._listeners):
            try:
                listener(keys)
            except Exception:  # one faulty receiver must not keep the news from the others
                log.exception("A change of config.yaml could not be handed on")

    def adopt(self, newer: Settings) -> None:
        """Takes over what a changed file says; the values are replaced in one go."""
        self.sources, self.places, self.notices = newer.sources, newer.places, newer.notices
        self.values = newer.values

    def public(self) -> dict[str, dict[str, Any]]:
        """All values as plain data that may be shown: sizes as text, secrets as "set" or null."""
        return self.values.model_dump(mode="json")


def load_settings(
    path: Path | None = None,
    overrides: Mapping[str, object] | None = None,
    *,
    create: bool = False,
    environment: Mapping[str, str] | None = None,
) -> Settings:
    """Reads config.yaml (the user's own unless `path` is given), environment and flags (`overrides`, by dotted key).

    With `create`, a missing file is written with its comments first. Raises ConfigError; nothing is half-taken.
    """
    path = (path or paths.config_file()).expanduser().absolute()
    notices: list[str] = []
    if not path.exists():
        notices += [_create(path)] if create else []
        file = YamlFile({})
    if path.exists():
        file = read_yaml(path)
        if file.is_empty:
            notices.append(f"{path} holds no settings; every default is used.")
    variables = _environment(os.environ if environment is None else environment)
    raw: dict[str, Any] = {name: dict(v) if isinstance(v, dict) else v for name, v in file.values.items()}
    sources = dict.fromkeys(schema.fields(), "default")
    places: dict[str, str] = {}
    for dotted, line in file.lines.items():
        if "." in dotted:
            sources[dotted], places[dotted] = "file", f"{path} line {line}"
    for dotted, (name, value) in variables.items():
        _set(raw, dotted, value)
        sources[dotted], places[dotted] = "environment", name
    for dotted, value in (overrides or {}).items():
        _set(raw, dotted, value)
        sources[dotted], places[dotted] = "flag", FLAGS.get(dotted, dotted)

    def locate(dotted: str) -> tuple[str, int | None]:
        if sources.get(dotted) in {"environment", "flag"}:
            return places[dotted], None
        return str(path), file.lines.get(dotted, file.lines.get(dotted.split(".")[0]))

    return Settings(check(raw, locate, path), sources, path, places, tuple(notices), dict(overrides or {}))


def changed_keys(old: schema.Config, new: schema.Config) -> dict[str, schema.Applies]:
    """The dotted keys whose values differ, with when each takes effect."""
    return {
        f"{section}.{name}": schema.applies(f"{section}.{name}")
        for section, model in schema.sections().items()
        for name in model.model_fields
        if getattr(getattr(old, section), name) != getattr(getattr(new, section), name)
    }


def engine_config(config: schema.Config) -> EngineConfig:
    """The part of the configuration that the engine is built from."""
    from octavo.engine.config import EngineConfig  # here, so that reading settings does not wait for the engine

    model, engine = config.model, config.engine
    return EngineConfig(
        device=model.device,
        dtype=model.dtype,
        context_length=None if model.context_length == "auto" else model.context_length,
        quantization=model.quantization,
        quantize_head=model.quantize_head,
        rounded_folder=str(paths.cache_dir() / "rounded"),
        paged_attention=engine.paged_attention,
        fusion=engine.fusion,
        prefix_sharing=engine.prefix_sharing,
        page_size=engine.page_size,
        kv_cache_dtype=engine.kv_cache_dtype,
        kv_memory_bytes=engine.kv_memory.size_bytes,
        kv_memory_share=engine.kv_memory.share,
        max_running=engine.max_running,
        queue_limit=engine.queue_limit,
        prefill_chunk=None if engine.prefill_chunk == "auto" else engine.prefill_chunk,
        scheduler=engine.scheduler,
        preemption=engine.preemption,
        target_gap_ms=engine.target_gap_ms,
        speculation=config.speculation.mode,
        draft_model=config.speculation.draft_model,
        draft_tokens=config.speculation.draft_tokens,
    )


def _create(path: Path) -> str:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, example_text().encode("utf-8"))
    except OSError as error:
        return f"{path} could not be written ({error.strerror or error}); every default is used."
    return f"Wrote {path} with the default settings."


def _environment(environment: Mapping[str, str]) -> dict[str, tuple[str, object]]:
    """Dotted key -> (variable's name, value) of every OCTAVO_SECTION__KEY variable. An unknown key is a ConfigError."""
    found: dict[str, tuple[str, object]] = {}
    problems = []
    for name in sorted(environment):
        if not name.upper().startswith(ENVIRONMENT_PREFIX) or "__" not in name:
            continue
        dotted = name[len(ENVIRONMENT_PREFIX) :].lower().replace("__", ".")
        if dotted not in schema.fields():
            problems.append(Problem(f"names {dotted}, which {unknown_key(dotted)}", name))
            continue
        found[dotted] = (name, _environment_value(dotted, environment[name]))
    if problems:
        raise ConfigError(tuple(problems))
    return found


def _environment_value(dotted: str, text: str) -> object:
    default = schema.fields()[dotted].default
    if isinstance(default, tuple):
        if text.lstrip().startswith("["):
            try:
                return json.loads(text)
            except ValueError:
                return text
        return [part.strip() for part in text.split(",") if part.strip()]
    return None if default is None and text.strip().lower() in {"", "null"} else text


def _set(raw: dict[str, Any], dotted: str, value: object) -> None:
    section, name = dotted.split(".")
    content = raw.setdefault(section, {})
    if isinstance(content, dict):
        content[name] = value
