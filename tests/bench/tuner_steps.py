"""
Self-tuning beside fixed batches on a real model under a step load: 1, then 32, then 2 clients. Prints and plots.

    python tests/bench/tuner_steps.py MODEL [--rounds 2] [--phases 5,32,8] [--png docs/benchmarks/tuner.png]

One daemon for each of the fixed batches 8 to 128 and one with `tuning: {policy: latency}` are all up, and take turns,
so that a machine that is slower for a while is so for all of them. Goodput is requests a second whose first token and
mean gap came within the goals. The goals come from this machine: the gap of 16 clients with a sixth more, and for the
first token the time of one such request with a fifth more, so that small batches miss the one and large ones the other.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp

sys.path.insert(0, str(Path(__file__).resolve().parent))
from prometheus_run import ROOT, await_true, fetch, running, totals
from tuner_plot import draw

sys.path.insert(0, str(ROOT / "tests/tools"))
from loopback_ports import free_ports

FIXED = (8, 16, 32, 64, 128)
CLIENTS = (1, 32, 2)
TUNED = "tuned"
PROMPT_WORDS, ANSWER = 24, 24
CALIBRATION_CLIENTS, CALIBRATION_S = 16, 12.0


@dataclass(frozen=True)
class Request:
    """One request that ended: when its first and last token came, in seconds after it was sent."""

    first_s: float
    last_s: float

    @property
    def gap_s(self) -> float:
        """Mean time between its tokens."""
        return (self.last_s - self.first_s) / (ANSWER - 1)


@dataclass(frozen=True)
class Goals:
    """What a request must keep to count."""

    first_s: float
    gap_s: float

    def kept_by(self, request: Request) -> bool:
        """Whether it kept both."""
        return request.first_s <= self.first_s and request.gap_s <= self.gap_s


@dataclass
class Server:
    """One daemon: its name, its ports and what came of its turns."""

    name: str
    api: int
    metrics: int
    requests: list[Request] = field(default_factory=list)
    seconds: float = 0.0
    # Second of the turn, clients, sequences running and waiting, and the limit; of the last turn.
    curve: list[tuple[float, int, float, float, float]] = field(default_factory=list)

    def goodput(self, goals: Goals) -> float:
        """Requests a second within the goals."""
        return sum(map(goals.kept_by, self.requests)) / self.seconds


async def ask(session: aiohttp.ClientSession, server: Server, number: int) -> Request:
    """Send one request and read its stream."""
    prompt = f"{number} " + "the quick brown fox " * (PROMPT_WORDS // 4)
    body = {"model": "m", "prompt": prompt, "max_tokens": ANSWER, "ignore_eos": True, "stream": True}
    sent_s, first_s, last_s = time.monotonic(), 0.0, 0.0
    async with session.post(f"http://127.0.0.1:{server.api}/v1/completions", json=body) as answer:
        answer.raise_for_status()
        async for line in answer.content:
            if line.startswith(b"data: {"):
                last_s = time.monotonic() - sent_s
                first_s = first_s or last_s
    return Request(first_s, last_s)


async def turn(server: Server, phases: list[tuple[int, float]]) -> None:
    """Load `server` with each number of clients for its seconds; a client that is too many ends its request first."""
    wanted, number, working = 0, 0, 0
    started_s = time.monotonic()
    curve: list[tuple[float, int, float, float, float]] = []

    async def client(session: aiohttp.ClientSession) -> None:
        nonlocal number, working
        while working <= wanted:
            number += 1
            server.requests.append(await ask(session, server, number))
        working -= 1

    async def look(session: aiohttp.ClientSession) -> None:
        while True:
            async with session.get(f"http://127.0.0.1:{server.metrics}/metrics") as answer:
                seen = totals(await answer.text())
            names = ("running", "waiting", "limit")
            values = [
                seen.get(f"ascendd_engine_{'sequence_limit' if n == 'limit' else f'sequences_{n}'}", 0.0) for n in names
            ]
            curve.append((time.monotonic() - started_s, wanted, *values))
            await asyncio.sleep(1.0)

    timeout = aiohttp.ClientTimeout(total=None)
    async with aiohttp.ClientSession(timeout=timeout, connector=aiohttp.TCPConnector(limit=0)) as session:
        eye = asyncio.create_task(look(session))
        tasks = []
        for wanted, seconds in phases:
            while working < wanted:
                working += 1
                tasks.append(asyncio.create_task(client(session)))
            await asyncio.sleep(seconds)
        wanted = 0
        await asyncio.gather(*tasks)
        server.seconds += time.monotonic() - started_s
        server.curve = curve
        eye.cancel()


def start(stack: contextlib.ExitStack, folder: Path, model: Path, name: str, goals: Goals | None) -> Server:
    """Start the daemon of a fixed batch, or with `goals` the tuned one, and wait for it."""
    api, metrics = free_ports(2)
    text = (
        f"model: {{path: {model}, name: m, max_model_len: 512}}\nlisten: {{port: {api}}}\nmetrics: {{port: {metrics}}}\n"
        f"engine: {{device: cpu, max_num_seqs: {128 if goals else name}, num_threads: 1, max_num_blocks: 512, enable_prefix_caching: false}}\n"
    )
    if goals is not None:
        text += (
            f"tuning: {{enabled: true, policy: latency, min_num_seqs: 8, interval_s: 1, "
            f"first_token_goal_s: {goals.first_s:.3f}, inter_token_goal_s: {goals.gap_s:.4f}}}\n"
        )
    (folder / f"{name}.yaml").write_text(text)
    command = [
        sys.executable,
        "-m",
        "ascendd",
        "run",
        "--instance",
        f"b{name}",
        "--config",
        str(folder / f"{name}.yaml"),
    ]
    stack.enter_context(running(*command, log=folder / f"{name}.log"))
    await_true(lambda: fetch(f"http://127.0.0.1:{api}/readyz"), f"readiness of {name}")
    return Server(name, api, metrics)


def calibrate(server: Server) -> Goals:
    """Return goals that 16 clients just keep."""
    asyncio.run(turn(server, [(CALIBRATION_CLIENTS, CALIBRATION_S)]))
    seen = sorted(server.requests, key=lambda request: request.gap_s)[len(server.requests) // 2]
    server.requests, server.seconds = [], 0.0
    return Goals(first_s=1.2 * seen.last_s, gap_s=seen.gap_s * 7 / 6)


def main() -> None:
    """Measure, print, draw."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--phases", default="5,32,8")
    parser.add_argument("--png", type=Path)
    args = parser.parse_args()
    phases = list(zip(CLIENTS, map(float, args.phases.split(",")), strict=True))
    with tempfile.TemporaryDirectory() as place, contextlib.ExitStack() as stack:
        folder, model = Path(place), args.model.resolve()
        servers = [start(stack, folder, model, str(batch), None) for batch in FIXED]
        goals = calibrate(servers[1])
        servers.append(start(stack, folder, model, TUNED, goals))
        print(f"goals: first token {goals.first_s:.2f} s, {1e3 * goals.gap_s:.0f} ms between tokens", flush=True)
        for number in range(args.rounds):
            for server in servers:
                asyncio.run(turn(server, phases))
                print(f"round {number + 1}, {server.name}: {len(server.requests)} requests so far", flush=True)
        explained = fetch_explanation()
        rates = {server.name: server.goodput(goals) for server in servers}
        for server in servers:
            firsts = sorted(request.first_s for request in server.requests)
            gaps = sorted(request.gap_s for request in server.requests)
            print(
                f"{server.name:>6}: {rates[server.name]:.3f} requests a second within the goals of "
                f"{len(server.requests) / server.seconds:.3f}; first token p50 {firsts[len(firsts) // 2]:.2f} s, "
                f"gap p50 {1e3 * gaps[len(gaps) // 2]:.0f} ms"
            )
        best, worst = max(rates[str(n)] for n in FIXED), min(rates[str(n)] for n in FIXED)
        print(f"tuned is {rates[TUNED] / best:.2f} of the best fixed batch; the worst is {worst / best:.2f} of it")
        print(explained)
        if args.png is not None:
            asyncio.run(draw(rates, servers[-1].curve, (goals.first_s, goals.gap_s), args.png))


def fetch_explanation() -> str:
    """Return what `ascendd tune --explain` says of the tuned daemon."""
    command = [sys.executable, "-m", "ascendd", "tune", f"b{TUNED}"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


if __name__ == "__main__":
    main()
