"""Reads request bodies: JSON objects whose fields are taken out one by one, each with a clear refusal."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from fastapi import Request

from octavo.app.api.errors import ApiError
from octavo.app.text import LARGE, read_json

MOST_CHOICES = 128  # as OpenAI documents for n


async def read_body(request: Request) -> Body:
    """The request's JSON object; a large one is read in a thread. Raises ApiError 400 for anything else."""
    raw = await request.body()
    try:
        values = await asyncio.to_thread(read_json, raw) if len(raw) > LARGE else read_json(raw)
    except (ValueError, RecursionError) as error:
        detail = "it is empty" if not raw else str(error) if isinstance(error, ValueError) else "nested too deep"
        raise ApiError(400, f"The body is not valid JSON: {detail}.", code="invalid_json") from None
    if not isinstance(values, dict):
        raise ApiError(400, "The body must be a JSON object.", code="invalid_json")
    return Body(values)


class Body:
    """A request's fields. A field that is null counts as absent; fields nobody asks for are ignored."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._values = values

    def get(self, name: str) -> Any:
        return self._values.get(name)

    def text(self, name: str) -> str | None:
        value = self._values.get(name)
        if value is not None and not isinstance(value, str):
            raise wrong(name, value, "a text")
        return value

    def flag(self, name: str) -> bool:
        value = self._values.get(name)
        if value is not None and not isinstance(value, bool):
            raise wrong(name, value, "true or false")
        return bool(value)

    def whole(self, name: str, low: int, high: int | None = None) -> int | None:
        """A whole number from `low` to `high`, or None if it is absent."""
        value = self._values.get(name)
        if value is None:
            return None
        if isinstance(value, float) and math.isfinite(value) and value.is_integer():
            value = int(value)
        limits = f"a whole number of at least {low}" if high is None else f"a whole number from {low} to {high}"
        if not isinstance(value, int) or isinstance(value, bool) or value < low or (high is not None and value > high):
            raise wrong(name, value, limits)
        return value

    def table(self, name: str) -> Body | None:
        value = self._values.get(name)
        if value is None:
            return None
        if not isinstance(value, dict):
            raise wrong(name, value, "an object")
        return Body(value)

    def named(self, names: Sequence[str]) -> dict[str, Any]:
        """Those of the fields that are there."""
        return {name: self._values[name] for name in names if self._values.get(name) is not None}

    def refuse(self, unsupported: Mapping[str, Sequence[Any]]) -> None:
        """Raise for fields whose feature does not exist here. Each comes with the values that ask for nothing."""
        for name, harmless in unsupported.items():
            value = self._values.get(name)
            if value is None or any(value == ok and type(value) is type(ok) for ok in harmless):
                continue
            raise ApiError(
                400, f"{name} is not supported by this server. Leave it out.", param=name, code="unsupported_parameter"
            )


def wrong(name: str, value: object, wanted: str) -> ApiError:
    shown = json.dumps(value, ensure_ascii=False, default=str)
    if len(shown) > 60:
        shown = shown[:60] + "…"
    return ApiError(400, f"{name} is {shown}; it must be {wanted}.", param=name)
