"""
aiohttp's server with our error shape: what it answers by itself, before or beside our handlers, looks like the rest.

By itself it answers plain text, and repeats parts of the request in it, which may be a key. And at its end it closes
connections that it accepted a moment before, so that their clients see a reset: ours are answered first.
"""

from __future__ import annotations

import asyncio
from typing import Any

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError, LineTooLong
from aiohttp.web_protocol import RequestHandler

from ascendd.api.errors import as_request_error, error_response
from ascendd.errors import InternalError, InvalidRequest
from ascendd.telemetry.log import get_logger

_log = get_logger("api")

# How often a connection that was accepted before the end is looked at until it has brought its first request: for a
# second, or for longer where the machine gives this process no turn; looks are counted, as time that it slept through
# is time in which it read nothing. A request needs a round trip and a turn of the loop; who only opens a connection
# ahead of time waits for nothing.
_FIRST_REQUEST_LOOKS = 100
# A connection that the kernel has handed over needs some turns of the loop, or a handshake, before it is counted.
_SETTLE_LOOKS = 10
_LOOK_S = 0.01


class JsonErrors(RequestHandler):
    """One connection; requests that cannot be read, and refusals of aiohttp's own, are answered as JSON."""

    __slots__ = ()

    @property
    def awaits_answer(self) -> bool:
        """Whether a request is in work, or the first one of this connection is still to come."""
        return self._request_in_progress or bool(self._messages) or self._request_count == 0

    def log_exception(self, *args: Any, **kw: Any) -> None:
        """Log a defect; a body that is not what its head says is the client's, and was answered."""
        error = kw.get("exc_info")
        if not isinstance(error, (web.RequestPayloadError, HttpProcessingError)):
            super().log_exception(*args, **kw)

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """Answer what is no request (400) or what escaped every handler (500), and end the connection."""
        if request.writer.output_size > 0:
            raise ConnectionError("the answer had begun")
        if status >= 500:
            _log.error("api.request_failed", exc_info=exc)
            response = error_response(InternalError("the server failed this request; its log has the reason"))
        else:
            kind = type(exc).__name__ if exc is not None else "error"
            _log.info("api.not_http", kind=kind)
            rule = "a line of its head is too long" if isinstance(exc, LineTooLong) else "its head is malformed"
            response = error_response(InvalidRequest(f"this is no HTTP request that can be read: {rule}"))
        response.force_close()
        return response

    async def finish_response(
        self, request: web.BaseRequest, resp: web.StreamResponse, start_time: float | None
    ) -> tuple[web.StreamResponse, bool]:
        """Send `resp`; a refusal of aiohttp's own becomes ours first."""
        if isinstance(resp, web.HTTPException) and not resp.prepared:
            resp = error_response(as_request_error(resp))
        return await super().finish_response(request, resp, start_time)


class _JsonServer(web.Server):
    """Makes connections of our kind."""

    def __call__(self) -> RequestHandler:
        return JsonErrors(self, loop=self._loop, **self._kwargs)


class JsonRunner(web.AppRunner):
    """Runs an application behind connections of our kind."""

    async def _make_server(self) -> web.Server:
        server = await super()._make_server()
        # aiohttp has no parameter for the class of a connection.
        server.__class__ = _JsonServer
        return server

    async def cleanup(self) -> None:
        """
        Stop accepting, answer what was accepted, and close.

        Connections that still wait in the listener's queue are its next owner's, where another process holds it open.
        """
        for site in list(self.sites):
            await site.stop()
        for look in range(_FIRST_REQUEST_LOOKS):  # aiohttp has no event for this
            if look >= _SETTLE_LOOKS and not self._is_awaited():
                break
            await asyncio.sleep(_LOOK_S)
        await super().cleanup()

    def _is_awaited(self) -> bool:
        server = self.server
        return server is not None and any(
            connection.awaits_answer for connection in server.connections if isinstance(connection, JsonErrors)
        )
