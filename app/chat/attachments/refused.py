"""How a reader says that a file is not what it should be. `{name}` stands for the file's name."""

from __future__ import annotations


class Refused(Exception):
    """One sentence and, where there is one, a remedy."""

    def __init__(self, message: str, remedy: str | None = None) -> None:
        super().__init__(message)
        self.remedy = remedy
