"""
What the front end costs: requests and streamed tokens for each second of its processor time, with an engine that computes nothing.

    python tests/bench/front_end.py MODEL                       this checkout, and the least that aiohttp can do
    python tests/bench/front_end.py MODEL --against TREE        another checkout beside it, for before and after
    python tests/bench/front_end.py MODEL --vllm-python PYTHON  vLLM's front end beside it, from an environment that has it

MODEL is a folder with a tokenizer. Figures are for one core: what the process did, divided by the time that it computed.
Servers take turns within each round, so that a busy host is busy for all of them.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import statistics
import sys
from dataclasses import dataclass, field
from pathlib import Path

from front_end_servers import Server, ascendd, script

TICKS_PER_S = os.sysconf("SC_CLK_TCK")
PROMPT = "Count slowly and describe each number: one, two, three, four, five, six, seven, eight, nine, ten. " * 4


@dataclass
class Figures:
    """Rounds of one server: each figure is per second of processor time."""

    requests: list[float] = field(default_factory=list)
    tokens: list[float] = field(default_factory=list)
    # Streamed chunks for each token: below 1, tokens waited for each other.
    chunks_per_token: list[float] = field(default_factory=list)


def cpu_s(pid: int) -> float:
    """Return the processor time of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS_PER_S


def request_bytes(body: dict[str, object]) -> bytes:
    """Return a whole HTTP request for a chat."""
    data = json.dumps({"model": "bench", "messages": [{"role": "user", "content": PROMPT}], **body}).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
    return head.encode() + data


async def whole(port: int, num_requests: int) -> None:
    """Send requests for one token, one after the other on one connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    data = request_bytes({"max_tokens": 1, "ignore_eos": True})
    for _ in range(num_requests):
        writer.write(data)
        head = await reader.readuntil(b"\r\n\r\n")
        if not head.startswith(b"HTTP/1.1 200"):
            raise RuntimeError(head.decode(errors="replace"))
        length = next(
            int(line.split(b":")[1]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:")
        )
        await reader.readexactly(length)
    writer.close()


async def streamed(port: int, num_tokens: int) -> int:
    """Read one stream to its end and return the number of chunks with a text."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request_bytes({"max_tokens": num_tokens, "stream": True, "ignore_eos": True}))
    num_chunks, tail = 0, b""
    while b"data: [DONE]" not in tail:
        piece = await reader.read(1 << 16)
        if not piece:
            raise RuntimeError(f"the stream ended early: {tail!r}")
        num_chunks += piece.count(b"data: {")
        tail = (tail + piece)[-64:]
    writer.close()
    return num_chunks


async def measure(server: Server, figures: Figures, num_streams: int, num_tokens: int, num_requests: int) -> None:
    """Add one round."""
    await asyncio.gather(*(whole(server.port, 4) for _ in range(8)), *(streamed(server.port, 8) for _ in range(8)))
    before = cpu_s(server.pid)
    await asyncio.gather(*(whole(server.port, num_requests // num_streams) for _ in range(num_streams)))
    middle = cpu_s(server.pid)
    chunks = await asyncio.gather(*(streamed(server.port, num_tokens) for _ in range(num_streams)))
    after = cpu_s(server.pid)
    figures.requests.append(num_requests / max(middle - before, 1 / TICKS_PER_S))
    figures.tokens.append(num_streams * num_tokens / max(after - middle, 1 / TICKS_PER_S))
    figures.chunks_per_token.append(sum(chunks) / (num_streams * num_tokens))


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--against", type=Path)
    parser.add_argument("--vllm-python")
    parser.add_argument("--streams", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=200)
    parser.add_argument("--requests", type=int, default=960)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--step-ms", type=float, default=20.0)
    args = parser.parse_args()
    step = str(args.step_ms)
    model = args.model.resolve()
    with contextlib.ExitStack() as stack:
        servers = [
            stack.enter_context(ascendd("ascendd", model, args.step_ms)),
            stack.enter_context(script("aiohttp echo", sys.executable, "front_end_echo.py", step)),
        ]
        if args.against is not None:
            servers.append(
                stack.enter_context(ascendd(f"ascendd of {args.against}", model, args.step_ms, args.against))
            )
        if args.vllm_python is not None:
            servers.append(stack.enter_context(script("vLLM", args.vllm_python, "front_end_vllm.py", str(model), step)))
        figures = {server.name: Figures() for server in servers}
        for _ in range(args.rounds):
            for server in servers:
                asyncio.run(measure(server, figures[server.name], args.streams, args.tokens, args.requests))
    print(f"{args.streams} streams, a token each {args.step_ms:g} ms; median of {args.rounds} rounds")
    print(
        f"{'':28} {'requests/s a core':>18} {'tokens/s a core':>16} {'chunks/token':>13} {'x requests':>11} {'x tokens':>9}"
    )
    own = figures["ascendd"]
    for name, found in figures.items():
        requests, tokens = statistics.median(found.requests), statistics.median(found.tokens)
        ratio_requests = statistics.median(own.requests) / requests
        ratio_tokens = statistics.median(own.tokens) / tokens
        print(f"{name:28} {requests:18.0f} {tokens:16.0f} {statistics.median(found.chunks_per_token):13.2f} "
              f"{ratio_requests:11.2f} {ratio_tokens:9.2f}")  # fmt: skip
    return 0


if __name__ == "__main__":
    sys.exit(main())
