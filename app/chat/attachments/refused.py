"""How a reader says that a file is not what it should be, before anybody knows the file's name."""

from __future__ import annotations


class Refused(Exception):
    """A code of `types.REFUSALS` with its values, all but the name."""

    def __init__(self, code: str, **values: int | str) -> None:
        super().__init__(code)
        self.code = code
        self.values = values
