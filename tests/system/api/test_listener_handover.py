"""A listener that outlives its servers: nobody whom one of them accepted is sent away without an answer."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Awaitable, Callable, Iterator

import pytest
from aiohttp import web

from ascendd.api.wire import JsonRunner

NUM_CLIENTS = 6
NUM_SERVERS = 12
REQUEST = b"POST / HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok"


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    """A listening socket, as systemd or a supervisor holds it across its servers."""
    with socket.create_server(("127.0.0.1", 0), backlog=1024) as sock:
        yield sock


async def serve(listener: socket.socket) -> JsonRunner:
    """Start a server on a descriptor of its own."""
    app = web.Application()

    async def answer(request: web.Request) -> web.Response:
        return web.Response(text=(await request.read()).decode())

    app.router.add_post("/", answer)
    runner = JsonRunner(app, handler_cancellation=True, access_log=None, shutdown_timeout=1.0)
    await runner.setup()
    await web.SockSite(runner, listener.dup()).start()
    return runner


def ask(address: tuple[str, int]) -> str:
    """Return the status line of one exchange, or how it broke."""
    try:
        with socket.create_connection(address, 60) as sock:
            sock.sendall(REQUEST)
            return sock.recv(65536).partition(b"\r\n")[0].decode() or "closed without an answer"
    except OSError as error:
        return str(error)


def test_no_request_is_lost_when_servers_follow_one_another(listener):
    """Clients that connect without a pause meet twelve servers in turn, and each exchange of theirs is answered."""
    answers: list[str] = []
    over = threading.Event()

    def go_on() -> None:
        while not over.is_set():
            answers.append(ask(listener.getsockname()))

    async def follow() -> None:
        for _ in range(NUM_SERVERS):
            runner = await serve(listener)
            enough, until = len(answers) + 20, time.monotonic() + 90
            while len(answers) < enough and time.monotonic() < until:
                await asyncio.sleep(0.001)
            await runner.cleanup()
        runner = await serve(listener)
        over.set()
        await asyncio.to_thread(lambda: [client.join() for client in clients])
        await runner.cleanup()

    clients = [threading.Thread(target=go_on) for _ in range(NUM_CLIENTS)]
    for client in clients:
        client.start()
    asyncio.run(follow())

    assert len(answers) >= 20 * NUM_SERVERS
    assert set(answers) == {"HTTP/1.1 200 OK"}


async def ask_during_the_end(listener: socket.socket, pass_time: Callable[[], Awaitable[None]]) -> bytes:
    """Return the answer to a request of a connection accepted before the end, sent `pass_time` after it began."""
    runner = await serve(listener)
    reader, writer = await asyncio.open_connection(*listener.getsockname())
    while not runner.server.connections:
        await asyncio.sleep(0.001)
    ending = asyncio.create_task(runner.cleanup())
    await pass_time()
    writer.write(REQUEST)
    answer = await reader.read()
    await ending
    writer.close()
    return answer


def test_first_request_may_come_after_the_end_began(listener):
    """A connection that was accepted before the end, and brings its request 0.2 s later, is answered."""
    answer = asyncio.run(ask_during_the_end(listener, lambda: asyncio.sleep(0.2)))

    assert answer.startswith(b"HTTP/1.1 200 OK")


def test_time_without_a_turn_is_not_held_against_a_client(listener):
    """A server that the machine let sleep for 1.5 s as its end began answers who was accepted just before."""

    async def sleep_through() -> None:
        await asyncio.sleep(0)
        time.sleep(1.5)  # nothing of this process runs meanwhile
        await asyncio.sleep(0.05)

    assert asyncio.run(ask_during_the_end(listener, sleep_through)).startswith(b"HTTP/1.1 200 OK")


def test_connection_without_a_request_does_not_hold_the_end(listener):
    """Who only opens a connection is cut off within a few seconds."""

    async def end_anyway() -> tuple[bytes, float]:
        runner = await serve(listener)
        reader, writer = await asyncio.open_connection(*listener.getsockname())
        while not runner.server.connections:
            await asyncio.sleep(0.001)
        began = time.monotonic()
        await runner.cleanup()
        rest = await reader.read()
        writer.close()
        return rest, time.monotonic() - began

    rest, took_s = asyncio.run(end_anyway())

    assert rest == b""
    assert took_s < 10
