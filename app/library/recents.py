"""The models that were loaded last and how, so that one of them is a click away."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from octavo.app.config.files import write_atomically

log = logging.getLogger(__name__)

KEPT = 8


@dataclass(frozen=True, slots=True)
class Recent:
    """A model and what it was loaded with instead of config.yaml's values."""

    id: str
    context_length: int | None = None
    quantization: str | None = None


class Recents:
    """The last used first. `file` None keeps them in memory. Safe to use from any thread."""

    def __init__(self, file: Path | None) -> None:
        self._file = file
        self._lock = threading.Lock()
        self._list = self._read()

    def all(self) -> tuple[Recent, ...]:
        with self._lock:
            return tuple(self._list)

    def find(self, model_id: str) -> Recent | None:
        return next((recent for recent in self.all() if recent.id == model_id), None)

    def note(self, model_id: str, chosen: Mapping[str, Any]) -> None:
        """A model was loaded."""
        recent = Recent(model_id, chosen.get("context_length"), chosen.get("quantization"))
        with self._lock:
            if self._list and self._list[0] == recent:
                return
            self._list = [recent, *(old for old in self._list if old.id != model_id)][:KEPT]
            self._write()

    def forget(self, model_id: str) -> None:
        """A model was deleted."""
        with self._lock:
            self._list = [old for old in self._list if old.id != model_id]
            self._write()

    def _read(self) -> list[Recent]:
        if self._file is None or not self._file.is_file():
            return []
        try:
            rows = json.loads(self._file.read_text(encoding="utf-8"))["models"]
            return [Recent(str(row["id"]), row.get("context_length"), row.get("quantization")) for row in rows][:KEPT]
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            log.warning("The list of recent models cannot be read (%s); it begins anew.", error)
            return []

    def _write(self) -> None:
        if self._file is None:
            return
        try:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            text = json.dumps({"models": [asdict(recent) for recent in self._list]}, indent=1)
            write_atomically(self._file, text.encode("utf-8"))
        except OSError as error:
            log.warning("The list of recent models cannot be kept (%s).", error.strerror or error)
