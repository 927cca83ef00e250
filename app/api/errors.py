"""Errors in the form OpenAI's clients read: {"error": {"message", "type", "param", "code"}}, never a trace."""

from __future__ import annotations

import logging
import math
from collections.abc import Awaitable, Callable

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from starlette.exceptions import HTTPException

from octavo.engine.errors import (
    ContextOverflowError,
    EngineClosedError,
    OctavoError,
    QueueFullError,
    RequestError,
)

log = logging.getLogger(__name__)

API_PREFIXES = ("/v1/", "/api/")


class ApiError(Exception):
    """An answer other than 200. `param` names the field at fault, `code` the kind of fault, for programs."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str = "invalid_value",
        kind: str = "invalid_request_error",
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.param = param
        self.code = code
        self.kind = kind
        self.headers = headers or {}

    def body(self) -> dict[str, object]:
        return {"error": {"message": self.message, "type": self.kind, "param": self.param, "code": self.code}}

    def response(self) -> JSONResponse:
        return JSONResponse(self.body(), status_code=self.status, headers=self.headers)


def as_api_error(error: Exception) -> ApiError:
    """What a client is told about any error."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, ContextOverflowError):
        return ApiError(400, str(error), param=error.field, code="context_length_exceeded")
    if isinstance(error, RequestError):
        return ApiError(400, str(error), param=error.field)
    if isinstance(error, QueueFullError):
        return ApiError(
            429,
            str(error),
            code="queue_full",
            kind="rate_limit_error",
            headers={"Retry-After": str(math.ceil(error.retry_after_s))},
        )
    if isinstance(error, EngineClosedError):
        return unavailable(str(error), "engine_closed")
    if isinstance(error, OctavoError):
        return ApiError(500, str(error), code="server_error", kind="server_error")
    log.exception("A request failed", exc_info=error)
    message = "The server could not finish this request; its log says why."
    return ApiError(500, message, code="server_error", kind="server_error")


def unavailable(message: str, code: str) -> ApiError:
    """Nothing wrong with the request: it may be sent again."""
    return ApiError(503, message, code=code, kind="service_unavailable", headers={"Retry-After": "2"})


def install(app: FastAPI) -> None:
    """Answer every error on our own routes in this form; routes of others keep theirs."""

    async def ours(request: Request, error: Exception) -> Response:
        return as_api_error(error).response()

    async def http(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        if not request.url.path.startswith(API_PREFIXES):
            return await _plain(request, error)
        message = error.detail
        if error.status_code == 404:
            message = f"There is no {request.method} {request.url.path}."
        elif error.status_code == 405:
            message = f"{request.url.path} does not take {request.method}."
        code = {404: "not_found", 405: "method_not_allowed", 413: "request_too_large"}.get(error.status_code, "error")
        return ApiError(error.status_code, message, code=code, headers=dict(error.headers or {})).response()

    async def query(request: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        fault = error.errors()[0]
        name = str(fault["loc"][-1])
        message = f"{name} is {str(fault.get('input'))[:60]!r}, which it cannot be: {fault['msg']}."
        return ApiError(400, message, param=name).response()

    app.add_exception_handler(RequestValidationError, query)
    app.add_exception_handler(ApiError, ours)
    app.add_exception_handler(OctavoError, ours)
    app.add_exception_handler(HTTPException, http)
    app.add_exception_handler(Exception, ours)


async def _plain(request: Request, error: HTTPException) -> Response:
    from fastapi.exception_handlers import http_exception_handler

    handler: Callable[[Request, HTTPException], Awaitable[Response]] = http_exception_handler
    return await handler(request, error)
