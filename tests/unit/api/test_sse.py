"""Event streams over a socket pair's worth of aiohttp."""

from __future__ import annotations

import asyncio
import socket

import msgspec
from aiohttp import web

from ascendd.api.sse import EventStream


class Chunk(msgspec.Struct):
    """Any chunk."""

    text: str


def serve(
    stall_timeout_s: float, *, client_reads: bool, num_chunks: int
) -> tuple[bytes, EventStream, BaseException | None]:
    """Send chunks without end to a client that reads or does not; return what came, the stream and how it ended."""
    streams: list[EventStream] = []
    endings: list[BaseException] = []
    ended = asyncio.Event()

    async def handle(request: web.Request) -> web.StreamResponse:
        events = EventStream(request, stall_timeout_s)
        streams.append(events)
        try:
            await events.start({"X-Request-Id": "r"})
            for _ in range(num_chunks):
                await events.send(Chunk("a" * 500), Chunk("b"))
            await events.finish()
        except (ConnectionError, asyncio.CancelledError) as error:
            endings.append(error)
            raise
        finally:
            ended.set()
        return events.response

    async def run() -> bytes:
        runner = web.AppRunner(web.Application(), handler_cancellation=True)
        runner.app.router.add_get("/", handle)
        await runner.setup()
        listener = socket.create_server(("127.0.0.1", 0))
        await web.SockSite(runner, listener).start()
        sock = socket.socket()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.setblocking(False)
        loop = asyncio.get_running_loop()
        await loop.sock_connect(sock, listener.getsockname())
        await loop.sock_sendall(sock, b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        data = b""
        if client_reads:
            while b"[DONE]" not in data[-64:]:
                data += await loop.sock_recv(sock, 1 << 20)
        await asyncio.wait_for(ended.wait(), 20)
        sock.close()
        await runner.cleanup()
        return data

    data = asyncio.run(run())
    return data, streams[0], endings[0] if endings else None


def test_chunks_are_events() -> None:
    """Each chunk is one `data:` line of JSON, [DONE] is last, and proxies are told not to collect."""
    data, events, ending = serve(stall_timeout_s=10, client_reads=True, num_chunks=200)
    head, _, body = data.partition(b"\r\n\r\n")

    assert b"text/event-stream" in head
    assert b"X-Accel-Buffering: no" in head
    assert body.count(b'data: {"text":"b"}\n\n') == 200
    assert b"data: [DONE]\n\n" in body[-64:]
    assert ending is None
    assert not events.stalled


def test_client_that_reads_nothing_is_cut_off() -> None:
    """B93: when a write does not get on for the stall time, the connection is cut and the handler ends."""
    _, events, ending = serve(stall_timeout_s=0.2, client_reads=False, num_chunks=100_000)

    assert events.stalled
    assert ending is not None
