"""Server-sent events: how an answer is written piece by piece."""

from __future__ import annotations

import asyncio
import contextlib
import socket

import msgspec
from aiohttp import web

# A client that takes nothing for so long is given up, and its sequences with it.
STALL_TIMEOUT_S = 30.0
# Text is thin: a small buffer in the kernel makes a client that does not read show early.
_SEND_BUFFER_BYTES = 128 * 1024
# Less than asyncio's marks at which a writer is made to wait (64 KiB).
_NEVER_WAITS_BYTES = 16 * 1024
_DONE = b"data: [DONE]\n\n"

_encode = msgspec.json.Encoder().encode


class EventStream:
    """One response of type text/event-stream; a client that stalls has its connection cut."""

    def __init__(self, request: web.Request, stall_timeout_s: float = STALL_TIMEOUT_S) -> None:
        self._request = request
        self._stall_timeout_s = stall_timeout_s
        self._response = web.StreamResponse(
            headers={
                "Content-Type": "text/event-stream; charset=utf-8",
                "Cache-Control": "no-cache",
                # nginx would collect the pieces and defeat the purpose
                "X-Accel-Buffering": "no",
            }
        )
        self.stalled = False

    @property
    def started(self) -> bool:
        """Whether the status and headers were sent, so that an error must become an event."""
        return self._response.prepared

    @property
    def response(self) -> web.StreamResponse:
        """The response to hand back to aiohttp."""
        return self._response

    async def start(self, headers: dict[str, str]) -> None:
        """Send status 200 and headers."""
        self._response.headers.update(headers)
        transport = self._request.transport
        sock: socket.socket | None = None if transport is None else transport.get_extra_info("socket")
        if sock is not None:
            with contextlib.suppress(OSError):
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER_BYTES)
        await self._response.prepare(self._request)

    async def send(self, *chunks: msgspec.Struct) -> None:
        """Send each of `chunks` as one event, in one write."""
        await self._write(b"".join(b"data: " + _encode(chunk) + b"\n\n" for chunk in chunks))

    async def send_raw(self, data: bytes) -> None:
        """Send events that another server wrote."""
        await self._write(data)

    async def send_error(self, body: bytes) -> None:
        """Send an error object as the last event; no [DONE] follows, so nobody takes the text for whole."""
        await self._write(b"data: " + body + b"\n\n")

    async def send_event(self, name: str, body: bytes) -> None:
        """Send `body`, JSON on one line, as an event called `name`."""
        await self._write(b"event: " + name.encode() + b"\ndata: " + body + b"\n\n")

    async def send_comment(self, text: str) -> None:
        """Send a line that no reader acts on, so that proxies keep the connection."""
        await self._write(b": " + text.encode() + b"\n\n")

    async def finish(self) -> None:
        """Send [DONE]."""
        await self._write(_DONE)

    async def _write(self, data: bytes) -> None:
        transport = self._request.transport
        if len(data) <= _NEVER_WAITS_BYTES and transport is not None and not transport.get_write_buffer_size():
            # Nothing waits before it and it fits: this cannot stall, and a timer for each token is dear.
            await self._response.write(data)
            return
        timer = asyncio.get_running_loop().call_later(self._stall_timeout_s, self._cut)
        try:
            await self._response.write(data)
        finally:
            timer.cancel()

    def _cut(self) -> None:
        self.stalled = True
        if self._request.transport is not None:
            self._request.transport.abort()
