"""
How fast a served model answers: one stream alone, then many at once. Prints a table, judges nothing.

    python tests/bench/serving.py MODEL             starts `ascendd serve MODEL` for the measurement
    python tests/bench/serving.py --url URL MODEL   measures any OpenAI-compatible server; MODEL is its model's name
"""

from __future__ import annotations

import argparse
import contextlib
import json
import socket
import statistics
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

PROMPT = "Count slowly and describe each number: one, two, three, "
READY_TIMEOUT_S = 300.0


@dataclass(frozen=True)
class Answer:
    """One measured stream; seconds from the sending of the request."""

    first_s: float
    total_s: float
    num_tokens: int


@contextlib.contextmanager
def served(model: Path) -> Iterator[str]:
    """Serve `model` on free loopback ports for the length of the block; yields its URL."""
    ports = []
    with contextlib.ExitStack() as stack:
        for _ in range(2):
            sock = stack.enter_context(socket.socket())
            sock.bind(("127.0.0.1", 0))
            ports.append(str(sock.getsockname()[1]))
    command = [sys.executable, "-m", "ascendd", "serve", str(model), "--port", ports[0], "--metrics-port", ports[1]]
    url = f"http://127.0.0.1:{ports[0]}"
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as process:
        try:
            deadline = time.monotonic() + READY_TIMEOUT_S
            while True:
                if process.poll() is not None:
                    sys.exit(f"the server ended with {process.returncode}; run it by hand: ascendd serve {model}")
                with contextlib.suppress(urllib.error.URLError, OSError):
                    urllib.request.urlopen(f"{url}/readyz", timeout=5).close()
                    break
                if time.monotonic() > deadline:
                    sys.exit(f"the server was not ready within {READY_TIMEOUT_S:g} s")
                time.sleep(0.2)
            yield url
        finally:
            process.terminate()


def ask(url: str, model: str, number: int, num_tokens: int) -> Answer:
    """Stream one completion of exactly `num_tokens` tokens; `number` keeps prompts from sharing a prefix."""
    body = {
        "model": model,
        "prompt": f"{number}: {PROMPT}",
        "max_tokens": num_tokens,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    request = urllib.request.Request(
        f"{url}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    started, first, counted = time.monotonic(), 0.0, 0
    with urllib.request.urlopen(request, timeout=600) as response:
        for line in response:
            if line.startswith(b"data: {"):
                event = json.loads(line[6:])
                if "error" in event:
                    sys.exit(f"a stream broke off: {event['error']}")
                first = first or time.monotonic() - started
                counted = (event.get("usage") or {}).get("completion_tokens", counted)
    return Answer(first, time.monotonic() - started, counted)


def measure(url: str, model: str, num_streams: int, num_tokens: int) -> str:
    """Run `num_streams` at once and return one line of the table."""
    started = time.monotonic()
    with ThreadPoolExecutor(num_streams) as pool:
        answers = list(pool.map(lambda n: ask(url, model, n, num_tokens), range(num_streams)))
    wall_s = time.monotonic() - started
    total = sum(answer.num_tokens for answer in answers)
    per_token_ms = [1000 * (a.total_s - a.first_s) / max(1, a.num_tokens - 1) for a in answers]
    first_ms = [1000 * answer.first_s for answer in answers]
    return (
        f"{num_streams:7} {total:7} {total / wall_s:10.1f} {statistics.median(first_ms):12.0f} {max(first_ms):11.0f} "
        f"{statistics.median(per_token_ms):12.1f}"
    )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--url", help="a server that runs already")
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 4, 16])
    parser.add_argument("--tokens", type=int, default=64)
    args = parser.parse_args()
    with contextlib.ExitStack() as stack:
        url = args.url or stack.enter_context(served(Path(args.model)))
        name = args.model if args.url else Path(args.model).name
        ask(url, name, 0, 8)
        print("streams  tokens   tokens/s  first, p50   first, max   ms a token")
        for num_streams in args.streams:
            print(measure(url, name, num_streams, args.tokens), flush=True)


if __name__ == "__main__":
    main()
