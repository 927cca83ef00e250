"""Typed access to a GGUF file's metadata: a key that is missing or of a wrong type is a clear error, not a crash."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from octavo.engine.errors import CheckpointError

_T = TypeVar("_T")


class Metadata:
    """Reads keys; one that begins with "." belongs to the architecture: `.block_count` is `llama.block_count`."""

    def __init__(self, values: Mapping[str, Any], path: Path) -> None:
        self._values = values
        self._path = path
        self.architecture = ""
        self.architecture = self.text("general.architecture")

    def __contains__(self, key: str) -> bool:
        return self._full(key) in self._values

    def whole(self, key: str, default: _T = ...) -> int | _T:  # type: ignore[assignment]
        """A whole number; a per-layer list counts if all its entries are equal."""
        value = self._uniform(key, self._get(key, default))
        if value is not default and (isinstance(value, bool) or not isinstance(value, int)):
            raise self._wrong(key, value, "a whole number")
        return value

    def number(self, key: str, default: _T = ...) -> float | _T:  # type: ignore[assignment]
        """A finite number, whole or not."""
        value = self._get(key, default)
        if value is not default:
            if isinstance(value, bool) or not isinstance(value, int | float) or not np.isfinite(value):
                raise self._wrong(key, value, "a number")
            return shortest(value)
        return value

    def text(self, key: str, default: _T = ...) -> str | _T:  # type: ignore[assignment]
        value = self._get(key, default)
        if value is not default and not isinstance(value, str):
            raise self._wrong(key, value, "a text")
        return value

    def flag(self, key: str, default: _T = ...) -> bool | _T:  # type: ignore[assignment]
        value = self._get(key, default)
        if value is not default and not isinstance(value, bool):
            raise self._wrong(key, value, "true or false")
        return value

    def texts(self, key: str, default: _T = ...) -> list[str] | _T:  # type: ignore[assignment]
        value = self._get(key, default)
        if value is not default and not (isinstance(value, list) and all(isinstance(v, str) for v in value[:1])):
            raise self._wrong(key, value, "a list of texts")
        return value

    def numbers(self, key: str, default: _T = ...) -> np.ndarray | _T:  # type: ignore[assignment]
        value = self._get(key, default)
        if value is not default and not isinstance(value, np.ndarray):
            raise self._wrong(key, value, "a list of numbers")
        return value

    def error(self, message: str, remedy: str = "Fetch another conversion of this model.") -> CheckpointError:
        """A CheckpointError about this file."""
        return CheckpointError(f"{self._path.name}: {message}", file=str(self._path), remedy=remedy)

    def _full(self, key: str) -> str:
        return self.architecture + key if key.startswith(".") else key

    def _get(self, key: str, default: Any) -> Any:
        value = self._values.get(self._full(key), default)
        if value is ...:
            raise self.error(f"the metadata key {self._full(key)} is missing.")
        return value

    def _uniform(self, key: str, value: Any) -> Any:
        if isinstance(value, np.ndarray) and value.size:
            if np.any(value != value.flat[0]):
                raise self.error(f"{self._full(key)} differs between layers, which is not supported.")
            return value.flat[0].item()
        return value

    def _wrong(self, key: str, value: Any, expected: str) -> CheckpointError:
        found = f"{value!r:.60}" if isinstance(value, int | float | str | bool) else f"a {type(value).__name__}"
        return self.error(f"the metadata key {self._full(key)} should be {expected}; found was {found}.")


def shortest(value: float) -> float:
    """The shortest decimal that is the same float32: a file's 9.999999747378752e-06 was written as 1e-05."""
    return float(str(np.float32(value))) if isinstance(value, float) else value
