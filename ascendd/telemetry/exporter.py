"""
The `_metrics` role: serves /metrics from the supervisor's last snapshot, on a loopback listener of its own.

It outlives the API and the engine, so a scrape tells of their death. A scrape asks nobody anything. Beyond
`metrics.max_scrapes_per_s` connections are answered 429 from the accepting thread, without being parsed, so that a
flood takes little from the engine's cores.
"""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import threading
import time
from collections.abc import Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from ascendd.errors import ListenFailed
from ascendd.ipc.channel import BlockingChannel
from ascendd.ipc.child import ChildArguments, receive_config, run_role
from ascendd.ipc.messages import ControlMessage, Heartbeat, MetricsSnapshot, Ready, Role, Shutdown
from ascendd.telemetry import log
from ascendd.telemetry.exposition import CONTENT_TYPE, Exposition
from ascendd.telemetry.scrape_limit import ScrapeLimit

_HEARTBEAT_S = 1.0
_CLIENT_TIMEOUT_S = 10.0
_REQUEST_BYTES = 65536
# Beside the engine's: a scrape is a few milliseconds of work, and a flood of them must take its time from nobody.
_NICE = 10
_TOO_MANY = (
    b"HTTP/1.0 429 Too Many Requests\r\nContent-Type: text/plain\r\nRetry-After: 1\r\nContent-Length: 32\r\n"
    b"Connection: close\r\n\r\ntoo many scrapes, wait a second\n"
)


class _Handler(BaseHTTPRequestHandler):
    timeout = _CLIENT_TIMEOUT_S
    server: MetricsServer

    def version_string(self) -> str:
        """Tell nobody which Python serves them."""
        return "ascendd"

    def do_GET(self) -> None:
        """Answer /metrics, and 404 elsewhere."""
        if self.path.partition("?")[0] == "/metrics":
            self._answer(200, self.server.exposition.render(self.server.limit.num_refused), CONTENT_TYPE)
        else:
            self._answer(404, b"the metrics are at /metrics\n")

    def __getattr__(self, name: str) -> Any:
        # http.server looks for do_METHOD; each that is not GET is refused in the same way.
        if name.startswith("do_"):
            return self._refuse_method
        raise AttributeError(name)

    def log_message(self, *_args: object) -> None:
        """Stay silent: a scrape every few seconds is no event."""

    def _refuse_method(self) -> None:
        self._answer(405, b"GET only\n", allow="GET")

    def _answer(self, status: int, body: bytes, content_type: str = "text/plain", allow: str = "") -> None:
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        if allow:
            self.send_header("Allow", allow)
        self.end_headers()
        self.wfile.write(body)


class MetricsServer(ThreadingHTTPServer):
    """A threaded HTTP server on a socket that somebody else bound; `limit` says which connections are let in."""

    daemon_threads = True

    def __init__(self, listener: socket.socket, exposition: Exposition, limit: ScrapeLimit) -> None:
        super().__init__(listener.getsockname()[:2], _Handler, bind_and_activate=False)
        self.socket.close()
        self.socket = listener
        # Accept only when the request is there, so that a refusal can read it and close without resetting the answer.
        with contextlib.suppress(OSError):
            listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_DEFER_ACCEPT, 1)
        self.server_name, self.server_port = listener.getsockname()[:2]
        self.exposition = exposition
        self.limit = limit

    def process_request(self, request: Any, client_address: Any) -> None:
        """Serve the connection in a thread of its own, or refuse it here."""
        if self.limit.admit(time.monotonic()):
            super().process_request(request, client_address)
            return
        with contextlib.suppress(OSError):
            request.setblocking(False)
            request.recv(_REQUEST_BYTES)
            request.send(_TOO_MANY)
        self.shutdown_request(request)

    def handle_error(self, _request: Any, _client_address: Any) -> None:
        """Log a client that broke off instead of printing a traceback."""
        log.get_logger("metrics").debug("metrics.client_failed", error=str(sys.exc_info()[1]))


def main(argv: Sequence[str]) -> int:
    """Run the metrics process; it ends with the control link."""
    return run_role(Role.METRICS, argv, _serve)


def _serve(arguments: ChildArguments, channel: BlockingChannel[ControlMessage]) -> int:
    config, _episode = receive_config(channel, Role.METRICS)
    os.nice(_NICE)
    log.configure(config.log, role=Role.METRICS.value)
    if arguments.listen_fd is None:
        raise ListenFailed("the metrics process got no listener")
    os.set_inheritable(arguments.listen_fd, False)
    listener = socket.socket(fileno=arguments.listen_fd)
    # The supervisor's listener does not block; here a thread of its own waits in select and accepts.
    exposition = Exposition(config.model.name or os.path.basename(config.model.path))  # noqa: PTH119 - a label, no file
    server = MetricsServer(listener, exposition, ScrapeLimit(config.metrics.max_scrapes_per_s))
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 3600.0}, daemon=True, name="http").start()
    channel.send(Ready({"port": server.server_port}))
    due_s = time.monotonic()
    while True:
        now_s = time.monotonic()
        if now_s >= due_s:
            channel.send(Heartbeat())
            due_s = now_s + _HEARTBEAT_S
        match channel.recv(max(0.0, due_s - now_s)):
            case MetricsSnapshot(samples, unix_time_s, foreign):
                exposition.replace(samples, max(0.0, time.time() - unix_time_s), foreign)
            case Shutdown():
                with contextlib.suppress(OSError):
                    listener.close()
                return 0
