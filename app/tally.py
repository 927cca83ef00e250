"""What the engines of this process counted together: the totals that a reload of the model does not reset."""

from __future__ import annotations

import threading
import time
from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from octavo.engine.engine import Engine


class Tally:
    """Adds up the engines between `begin` and `end` and those before; any thread may ask."""

    def __init__(self) -> None:
        self.since_s = time.time()  # since the epoch
        self._guard = threading.Lock()
        self._past: Counter[str] = Counter()
        self._open: list[Engine] = []

    def begin(self, engine: Engine) -> None:
        with self._guard:
            self._open.append(engine)

    def end(self, engine: Engine) -> None:
        """Keep the counts of an engine that was closed, and let go of it; nothing for one that never began."""
        with self._guard:
            if engine in self._open:
                self._open.remove(engine)
                self._past.update(engine.status().counters)

    def total(self) -> dict[str, int]:
        """By the names of `EngineStatus.counters`; a name that was never counted is missing."""
        with self._guard:
            found = Counter(self._past)
            for engine in self._open:
                found.update(engine.status().counters)
        return dict(found)
