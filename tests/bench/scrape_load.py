"""
What scrape_cost.py asks with: clients that stream without a pause, one request on a socket, and a flood of them.

    python tests/bench/scrape_load.py PORT PER_S SECONDS

is the flood, a process of its own; it prints how many attempts got which status.
"""

from __future__ import annotations

import asyncio
import bisect
import json
import socket
import sys
import threading
import time
from collections import Counter
from types import TracebackType

_TOKENS = 128
_NUM_FLOODERS = 4


def scrape(port: int, path: str) -> tuple[int, float]:
    """GET on a connection of its own: the status (0 where none came) and the seconds it took."""
    started_s = time.monotonic()
    data = b""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=30) as sock:
            sock.sendall(f"GET {path} HTTP/1.0\r\nHost: x\r\n\r\n".encode())
            while chunk := sock.recv(1 << 18):
                data += chunk
    except OSError:
        return 0, time.monotonic() - started_s
    return int(data[9:12] or 0), time.monotonic() - started_s


def attempt(address: tuple[str, int]) -> int:
    """Ask for the metrics with as little work as there is; return the status, 0 where none came."""
    with socket.socket() as sock:
        try:
            sock.connect(address)
            sock.send(b"GET /metrics HTTP/1.0\r\n\r\n")
            return int(sock.recv(4096)[9:12] or 0)
        except OSError:
            return 0


def flood(port: int, per_s: float, seconds: float) -> Counter[int]:
    """Attempt `per_s` scrapes a second for `seconds`; return how many got which status."""
    counts: Counter[int] = Counter()
    lock = threading.Lock()
    end_s = time.monotonic() + seconds

    def attack(number: int) -> None:
        due_s = time.monotonic() + number / per_s
        while (now_s := time.monotonic()) < end_s:
            if now_s < due_s:
                time.sleep(due_s - now_s)
            due_s += _NUM_FLOODERS / per_s
            status = attempt(("127.0.0.1", port))
            with lock:
                counts[status] += 1

    threads = [threading.Thread(target=attack, args=(number,)) for number in range(_NUM_FLOODERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return counts


class Load:
    """Clients of an instance in a thread of their own; keeps when each token came. A context manager."""

    def __init__(self, port: int, num_clients: int) -> None:
        self._port = port
        self._num_clients = num_clients
        self._times: list[float] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), daemon=True)

    @property
    def num_tokens(self) -> int:
        """Tokens so far."""
        return len(self._times)

    def between(self, start_s: float, end_s: float) -> int:
        """Return how many tokens came between two times (monotonic)."""
        return bisect.bisect_left(self._times, end_s) - bisect.bisect_left(self._times, start_s)

    def __enter__(self) -> Load:
        self._thread.start()
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _where: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join(60)

    async def _run(self) -> None:
        await asyncio.gather(*(self._client(number) for number in range(self._num_clients)))

    async def _client(self, number: int) -> None:
        # Plain streams: what this costs is taken from the same two cores.
        body = json.dumps(
            {
                "model": "m",
                "prompt": "hello " * 16 + str(number),
                "max_tokens": _TOKENS,
                "ignore_eos": True,
                "stream": True,
            }
        )
        request = (
            f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nConnection: close\r\n"
            f"Content-Length: {len(body)}\r\n\r\n{body}"
        ).encode()
        while not self._stop.is_set():
            reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
            writer.write(request)
            while line := await reader.readline():
                if line.startswith(b"data: {"):
                    self._times.append(time.monotonic())
            writer.close()


if __name__ == "__main__":
    print(json.dumps(flood(int(sys.argv[1]), float(sys.argv[2]), float(sys.argv[3]))))
