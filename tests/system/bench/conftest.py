"""A scripted OpenAI-compatible server in a thread, and the command line as a process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest


class ScriptedServer(ThreadingHTTPServer):
    """Streams `num_pieces` pieces with a pause before each; keeps what it was asked."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.bodies: list[dict[str, Any]] = []
        self.keys: list[str | None] = []
        self.pause_s = 0.0
        self.fail: Callable[[int], str | None] = lambda _number: None
        self.num_active = self.most_active = 0
        self.lock = threading.Lock()

    @property
    def url(self) -> str:
        """Its address."""
        return f"http://127.0.0.1:{self.server_address[1]}"


class _Handler(BaseHTTPRequestHandler):
    server: ScriptedServer
    protocol_version = "HTTP/1.0"

    def log_message(self, *_args: object) -> None:
        """Stay silent."""

    def do_GET(self) -> None:
        self._whole(200, {"object": "list", "data": [{"id": "scripted", "object": "model"}]})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        server = self.server
        with server.lock:
            number = len(server.bodies)
            server.bodies.append(body)
            server.keys.append(self.headers.get("Authorization"))
            server.num_active += 1
            server.most_active = max(server.most_active, server.num_active)
        self.is_active = True
        try:
            self._answer(body, server.fail(number))
        finally:
            self._end()

    def _end(self) -> None:
        """Count the request no more; before its last piece, since whoever has that may send the next one."""
        with self.server.lock:
            self.server.num_active -= self.is_active
            self.is_active = False

    def _answer(self, body: dict[str, Any], failure: str | None) -> None:
        if failure == "status":
            self._end()
            self._whole(500, {"error": {"message": "no luck", "code": "x"}})
            return
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        num_words = len(body["messages"][-1]["content"].split())
        for _ in range(body["max_tokens"]):
            time.sleep(self.server.pause_s)
            self._event({"choices": [{"index": 0, "delta": {"content": " word"}, "finish_reason": None}]})
        if failure == "event":
            self._end()
            self._event({"error": {"message": "the engine died"}})
            return
        if failure == "cut":
            return
        usage = {"prompt_tokens": num_words * 2 + 6, "completion_tokens": body["max_tokens"], "total_tokens": 0}
        self._event({"choices": [], "usage": usage})
        self._end()
        self.wfile.write(b"data: [DONE]\n\n")

    def _event(self, value: dict[str, Any]) -> None:
        self.wfile.write(b"data: " + json.dumps(value).encode() + b"\n\n")
        self.wfile.flush()

    def _whole(self, status: int, value: dict[str, Any]) -> None:
        data = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


@pytest.fixture
def scripted() -> Iterator[ScriptedServer]:
    """A server that streams at once until told otherwise."""
    server = ScriptedServer()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()


@pytest.fixture
def ascendd() -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run `ascendd ARGS` to its end; `stdin` is what it reads, `env` what its environment has besides."""

    def run(*args: str, stdin: str = "", env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "ascendd", *args],
            input=stdin,
            capture_output=True,
            text=True,
            timeout=90,
            check=False,
            env={**os.environ, **(env or {})},
        )

    return run
