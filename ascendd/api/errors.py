"""Errors to HTTP: the only place where a status, a header or OpenAI's error object is made of an AscenddError."""

from __future__ import annotations

from typing import Any

import msgspec
from aiohttp import web

from ascendd.errors import (
    AdapterInvalid,
    AscenddError,
    AuthenticationFailed,
    BodyTooLarge,
    EngineRestarting,
    InternalError,
    InvalidRequest,
    IpcError,
    MethodNotAllowed,
    RequestError,
    RouteUnknown,
)

_encode = msgspec.json.Encoder().encode


def as_request_error(error: BaseException) -> RequestError:
    """
    Return what the client is told of `error`.

    Faults of the engine that a later try may survive become 503; what has no name becomes 500 without its text.
    """
    if isinstance(error, RequestError):
        return error
    if isinstance(error, AdapterInvalid):
        param = "lora_name" if "name" in error.facts else "lora_path"
        return InvalidRequest(error.message, param=param, openai_code=error.code)
    if isinstance(error, web.HTTPException):
        return _from_http(error)
    if isinstance(error, IpcError) or (isinstance(error, AscenddError) and error.retryable):
        return EngineRestarting(f"the engine failed this request: {error}", fault=getattr(error, "code", ""))
    return InternalError("the server failed this request; its log has the reason under the request id")


def error_object(error: RequestError) -> dict[str, Any]:
    """Return OpenAI's error object: {"error": {message, type, param, code}}."""
    return {
        "error": {
            "message": error.message,
            "type": error.error_type,
            "param": error.param,
            "code": error.openai_code,
        }
    }


def error_json(error: RequestError) -> bytes:
    """Return the error object as JSON."""
    return _encode(error_object(error))


def retry_after_s(error: RequestError) -> int | None:
    """Return the seconds for Retry-After: those of this error, else those of its class, else None."""
    value = error.facts.get("retry_after_s", error.retry_after_s)
    return None if value is None else max(1, int(value))


def error_response(error: RequestError) -> web.Response:
    """Return the whole answer for a request that failed before anything was sent."""
    headers: dict[str, str] = {}
    seconds = retry_after_s(error)
    if seconds is not None:
        headers["Retry-After"] = str(seconds)
    if isinstance(error, AuthenticationFailed):
        headers["WWW-Authenticate"] = 'Bearer realm="ascendd"'
    if isinstance(error, MethodNotAllowed) and error.facts.get("allow"):
        headers["Allow"] = str(error.facts["allow"])
    return web.Response(
        body=error_json(error), status=error.http_status, headers=headers, content_type="application/json"
    )


def _from_http(error: web.HTTPException) -> RequestError:
    """Map what aiohttp itself raises; its own pages are HTML or plain text."""
    if isinstance(error, web.HTTPNotFound):
        return RouteUnknown("no such path; the paths are under /v1", openai_code="unknown_url")
    if isinstance(error, web.HTTPMethodNotAllowed):
        allowed = ", ".join(sorted(error.allowed_methods))
        return MethodNotAllowed(f"{error.method} is not allowed here; allowed: {allowed}", allow=allowed)
    if isinstance(error, web.HTTPRequestEntityTooLarge):
        return BodyTooLarge("the body is longer than listen.max_body_bytes")
    if isinstance(error, web.HTTPExpectationFailed):
        return InvalidRequest("the header `Expect` must be `100-continue` or absent", param="Expect")
    if error.status < 500:
        return InvalidRequest(f"the request was refused: {error.reason}")
    return InternalError("the server failed this request; its log has the reason under the request id")
