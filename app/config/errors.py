"""What is wrong with a configuration: file, line, key, what was found, what is allowed."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from octavo.engine.errors import OctavoError


@dataclass(frozen=True, slots=True)
class Problem:
    """One fault. `where` is a file, an environment variable or a flag; lines and columns count from 1."""

    message: str
    where: str
    key: str | None = None
    line: int | None = None
    column: int | None = None

    def __str__(self) -> str:
        place = self.where
        if self.line is not None:
            place += f" line {self.line}"
            if self.key is None and self.column is not None:
                place += f" column {self.column}"
        subject = f"{self.key} " if self.key else ""
        return f"{place}: {subject}{self.message}"


class ConfigError(OctavoError):
    """The configuration cannot be used; nothing of it was taken. `problems` lists every fault that was found."""

    def __init__(self, problems: tuple[Problem, ...], path: Path | None = None) -> None:
        super().__init__("\n".join(str(problem) for problem in problems))
        self.problems = problems
        self.path = path
