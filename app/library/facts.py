"""What a model on disk is, from its headers: architecture, size, type, context, and what keeps it from running.

Headers with large vocabularies take a tenth of a second, so what was read is kept as long as the files stay the same.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass, replace
from pathlib import Path

from octavo.app.library.cache import lacking, missing_files
from octavo.engine.errors import OctavoError

KEPT = 500


@dataclass(frozen=True, slots=True)
class Facts:
    """`type` is the stored format of most bytes ("BF16", "Q4_K"). `problem` is one sentence; None: it can be loaded."""

    architecture: str | None = None
    type: str | None = None
    parameters: int = 0
    context_length: int | None = None
    problem: str | None = None


class FactsBook:
    """Facts by path, read once. Safe to use from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: OrderedDict[Path, tuple[tuple[int, int], Facts]] = OrderedDict()

    def known(self, path: Path) -> Facts | None:
        """What was read before, if the files are still those."""
        with self._lock:
            found = self._known.get(path)
        return found[1] if found is not None and found[0] == file_mark(path) else None

    def read(self, path: Path) -> Facts:
        """Reads the headers if that was not done yet. Never raises for what is wrong with a model."""
        found = self.known(path)
        if found is not None:
            return found
        mark, facts = file_mark(path), read_facts(path)
        with self._lock:
            self._known[path] = (mark, facts)
            while len(self._known) > KEPT:
                self._known.popitem(last=False)
        return facts


def read_facts(path: Path) -> Facts:
    """From the headers alone; no weight is read."""
    from octavo.app.library.shape import read_shape
    from octavo.engine.load.inspect import inspect_checkpoint

    found = inspect_checkpoint(path)
    facts = Facts(
        architecture=found.architecture,
        type=max(found.bytes_by_dtype, key=lambda name: found.bytes_by_dtype[name], default=None),
        parameters=found.parameters,
        problem=found.problems[0].splitlines()[0] if found.problems else None,
    )
    if found.config:
        try:
            facts = replace(facts, context_length=read_shape(found.config).max_positions)
        except OctavoError as error:
            facts = replace(facts, problem=facts.problem or error.message)
    if facts.problem is None and path.is_dir() and (missing := missing_files(path)):
        facts = replace(facts, problem=str(lacking(path, missing)))
    return facts


def file_mark(path: Path) -> tuple[int, int]:
    """Changes with any of a model's files: their bytes and the newest time."""
    try:
        files = [path] if path.is_file() else [file for file in path.iterdir() if file.is_file()]
        stats = [file.stat() for file in files]
    except OSError:
        return (0, 0)
    return sum(stat.st_size for stat in stats), max((stat.st_mtime_ns for stat in stats), default=0)
