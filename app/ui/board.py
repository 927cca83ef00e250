"""News for every tab: named values, pinned up by whoever has them and sent to each tab as they change."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any


class Board:
    """The latest value of each name, JSON data. May be written from any thread; tabs read on the event loop."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._values: dict[str, tuple[int, Any]] = {}
        self._version = 0
        self._watchers: set[Callable[[], None]] = set()

    @property
    def version(self) -> int:
        """Grows with every change; what a tab has seen so far is such a number."""
        return self._version

    @property
    def watched(self) -> bool:
        """Whether any tab would hear of a change."""
        return bool(self._watchers)

    def put(self, name: str, value: Any) -> None:
        """Pin up a value; one that is there already disturbs nobody."""
        with self._lock:
            if name in self._values and self._values[name][1] == value:
                return
            self._version += 1
            self._values[name] = (self._version, value)
            watchers = tuple(self._watchers)
        for watcher in watchers:
            watcher()

    def get(self, name: str) -> Any:
        """The value of that name, None if there is none."""
        return self._values.get(name, (0, None))[1]

    def since(self, version: int) -> list[dict[str, Any]]:
        """Messages for a tab that has seen `version`."""
        with self._lock:
            new = [(at, name, value) for name, (at, value) in self._values.items() if at > version]
        return [{"k": "board", "name": name, "value": value} for _, name, value in sorted(new, key=lambda row: row[0])]

    def watch(self, watcher: Callable[[], None]) -> Callable[[], None]:
        """`watcher` is called after every change, in the thread that made it. Returns the way to end that."""
        with self._lock:
            self._watchers.add(watcher)

        def unwatch() -> None:
            with self._lock:
                self._watchers.discard(watcher)

        return unwatch
