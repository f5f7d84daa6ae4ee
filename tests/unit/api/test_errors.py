"""Errors to HTTP."""

from __future__ import annotations

import json

import pytest
from aiohttp import web

from ascendd.api.errors import as_request_error, error_response
from ascendd.errors import (
    AuthenticationFailed,
    Draining,
    EngineRestarting,
    HostMemoryPressure,
    InstanceUnavailable,
    InvalidRequest,
    QueueFull,
    RequestError,
    walk_errors,
)


@pytest.mark.parametrize("kind", [cls for cls in walk_errors() if issubclass(cls, RequestError)], ids=lambda c: c.code)
def test_every_request_error_has_openai_s_shape(kind: type[RequestError]) -> None:
    """Each request error is answered with its own status and the four members of OpenAI's error object."""
    response = error_response(kind("what happened", param="prompt"))
    assert isinstance(response.body, bytes)
    error = json.loads(response.body)["error"]

    assert response.status == kind.http_status
    assert error == {"message": "what happened", "type": kind.error_type, "param": "prompt", "code": kind.code}


@pytest.mark.parametrize("kind", list(walk_errors()), ids=lambda cls: cls.code)
def test_every_error_of_the_product_has_an_answer(kind: type[Exception]) -> None:
    """Whatever reaches a request becomes a request error; only what a retry may survive is a 503."""
    error = as_request_error(kind("reason"))

    assert 400 <= error.http_status < 600
    assert (error.http_status == 503) == isinstance(
        error, (EngineRestarting, Draining, HostMemoryPressure, InstanceUnavailable)
    )


def test_unknown_failure_tells_nothing() -> None:
    """The text of an unexpected exception stays in the log."""
    error = as_request_error(ValueError("/etc/secret"))

    assert error.http_status == 500
    assert "secret" not in error.message


@pytest.mark.parametrize(
    ("error", "header", "value"),
    [
        (QueueFull("full"), "Retry-After", "1"),
        (EngineRestarting("soon"), "Retry-After", "5"),
        (EngineRestarting("soon", retry_after_s=8), "Retry-After", "8"),
        (Draining("bye"), "Retry-After", "10"),
        (AuthenticationFailed("no"), "WWW-Authenticate", 'Bearer realm="ascendd"'),
        (InvalidRequest("bad"), "Retry-After", None),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else None,
)
def test_headers_that_clients_act_on(error: RequestError, header: str, value: str | None) -> None:
    """Retry-After and WWW-Authenticate come with the errors that have them."""
    assert error_response(error).headers.get(header) == value


@pytest.mark.parametrize(
    ("raised", "status"),
    [
        (web.HTTPNotFound(), 404),
        (web.HTTPMethodNotAllowed("PUT", ["POST"]), 405),
        (web.HTTPRequestEntityTooLarge(10, 20), 413),
        (web.HTTPBadRequest(), 400),
        (web.HTTPInternalServerError(), 500),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else None,
)
def test_aiohttp_s_own_errors_get_our_shape(raised: web.HTTPException, status: int) -> None:
    """What aiohttp raises before a handler runs has the same shape, and a 413 is never called invalid JSON."""
    error = as_request_error(raised)

    assert error.http_status == status
    assert "JSON" not in error.message
