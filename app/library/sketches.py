"""Sketches of models, kept for as long as their files stay the same: an estimate while somebody drags a slider."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path

from octavo.app.library.facts import file_mark
from octavo.app.library.fit import Sketch, sketch_path, sketch_repository

KEPT = 32
REMOTE_FOR_S = 600.0  # a repository may change meanwhile


class Sketches:
    """Safe to use from any thread. Raises what `sketch_path` and `sketch_repository` raise."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: OrderedDict[object, tuple[object, Sketch]] = OrderedDict()

    def of_path(self, path: Path) -> Sketch:
        """Of a model on disk."""
        return self._get(path, file_mark(path), lambda: sketch_path(path))

    def of_repository(self, repo_id: str, variant: str | None, revision: str) -> Sketch:
        """Of a model of the hub."""
        mark = int(time.monotonic() / REMOTE_FOR_S)
        key = (repo_id, variant, revision)
        return self._get(key, mark, lambda: sketch_repository(repo_id, variant, revision))

    def _get(self, key: object, mark: object, make: Callable[[], Sketch]) -> Sketch:
        with self._lock:
            found = self._kept.get(key)
        if found is not None and found[0] == mark:
            return found[1]
        sketch = make()
        with self._lock:
            self._kept[key] = (mark, sketch)
            while len(self._kept) > KEPT:
                self._kept.popitem(last=False)
        return sketch
