"""What only the user of this very machine may do."""

from __future__ import annotations

from fastapi import Request

from octavo.app.api.errors import ApiError
from octavo.app.guards import is_local


def is_here(request: Request) -> bool:
    """Whether the request comes from the machine that Octavo runs on."""
    return is_local(request.scope, request.headers)


def not_from_here() -> ApiError:
    """The answer to another device of the household."""
    return ApiError(403, "This can only be done on the machine that Octavo runs on.", code="not_local")
