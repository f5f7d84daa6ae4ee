"""A folder served over HTTP on loopback, with ranges, that can be told to misbehave for a path."""

from __future__ import annotations

import threading
from collections import defaultdict
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path


class FileServer:
    """
    `faults` holds what happens to the next requests of a path, one after the other, before it is served well:

    an int: the connection ends after so many bytes of the body; a status such as `"503"`; bytes: these instead of the
    file; `"whole"`: the range is ignored; `"stall N"`: after N bytes nothing more comes until `release` is set.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.faults: dict[str, list[int | str | bytes]] = defaultdict(list)
        self.requests: list[tuple[str, str | None, str | None]] = []  # Path, Range, Authorization.
        self.stalled, self.release = threading.Event(), threading.Event()
        self.types: dict[str, str] = {}
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def paths(self) -> list[str]:
        """Return what was asked for, in this order."""
        return [path for path, _, _ in self.requests]

    def close(self) -> None:
        self.release.set()
        self._server.shutdown()
        self._server.server_close()

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        site = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_: object) -> None:
                """Say nothing."""

            def do_GET(self) -> None:
                site.requests.append((self.path, self.headers.get("Range"), self.headers.get("Authorization")))
                faults = site.faults[self.path]
                fault = faults.pop(0) if faults else None
                path = site.folder / self.path.lstrip("/")
                path = path / "index" if path.is_dir() else path
                if isinstance(fault, str) and fault.isdigit():
                    self._empty(int(fault))
                elif not path.is_file():
                    self._empty(404)
                else:
                    self._send(fault if isinstance(fault, bytes) else path.read_bytes(), fault)

            def _send(self, data: bytes, fault: int | str | bytes | None) -> None:
                first = 0
                asked = self.headers.get("Range")
                if asked and fault != "whole":
                    first = int(asked.removeprefix("bytes=").rstrip("-"))
                    if first >= len(data):
                        self._empty(416)
                        return
                self.send_response(206 if first else 200)
                if first:
                    self.send_header("Content-Range", f"bytes {first}-{len(data) - 1}/{len(data)}")
                self.send_header("Content-Length", str(len(data) - first))
                self.send_header("Content-Type", site.types.get(self.path, "application/octet-stream"))
                self.end_headers()
                if isinstance(fault, int):
                    self.wfile.write(data[first : first + fault])
                    self.close_connection = True
                    return
                if isinstance(fault, str) and fault.startswith("stall"):
                    num_bytes = int(fault.split()[1])
                    self.wfile.write(data[first : first + num_bytes])
                    self.wfile.flush()
                    site.stalled.set()
                    site.release.wait(120)
                    self.close_connection = True
                    return
                self.wfile.write(data[first:])

            def _empty(self, status: int) -> None:
                self.send_response(status)
                self.send_header("Content-Length", "0")
                self.end_headers()

        return Handler
