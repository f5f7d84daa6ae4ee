"""
Does an instance leak? Steady load for minutes, then the slope of each process's anonymous memory with its error.

The KV cache of a CPU is anonymous memory, too, and comes page by page with first use. It is a mapping of its own, which
is left out of the slope and held to its plan apart: it may never exceed the bytes that the engine said it would take.

    soak.py MODEL [--minutes 20] [--warm-up 5] [--clients 4]

Fails (exit status 1) where, after the warm-up, a process grows by 1 MB a minute or more beyond three errors of the line,
has more descriptors at the end than at the beginning, or the logs outgrow their budget. Not part of any test run.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections import defaultdict
from pathlib import Path

import psutil

from ascendd.host.anonymous_memory import AnonymousMemory, anonymous_memory
from ascendd.supervisor.memory_trend import fit

MAX_MB_PER_MINUTE = 1.0
EVERY_S = 5.0
LOG_BYTES, LOG_BACKUPS = 1_000_000, 3


def roles(supervisor: int) -> dict[str, int]:
    """Return the processes of the instance by name, ranks included."""
    found = {"supervisor": supervisor}
    for child in psutil.Process(supervisor).children(recursive=True):
        with contextlib.suppress(psutil.Error):
            role = next((word[1:] for word in child.cmdline() if re.fullmatch("_[a-z]+", word)), None)
            if role is not None:  # else a tool that a live check runs for a moment
                found[role if role not in found else f"{role} {child.pid}"] = child.pid
    return found


def load(url: str, model: str, stop: threading.Event, counts: defaultdict[str, int]) -> None:
    """Ask one thing after another until told to stop."""
    number = 0
    while not stop.is_set():
        number += 1
        body = {"model": model, "prompt": [1 + (number * 7 + n) % 200 for n in range(3 + number % 60)], "max_tokens": 24,
                "ignore_eos": True, "stream": number % 2 == 0}  # fmt: skip
        request = urllib.request.Request(
            f"{url}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        try:
            with urllib.request.urlopen(request, timeout=120) as response:
                response.read()
            counts["finished"] += 1
        except OSError as error:
            counts[f"failed: {type(error).__name__}"] += 1


def main() -> int:
    """Run and judge."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--minutes", type=float, default=20.0)
    parser.add_argument("--warm-up", type=float, default=5.0)
    parser.add_argument("--clients", type=int, default=4)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        return soak(args, Path(folder))


def soak(args: argparse.Namespace, folder: Path) -> int:
    """Start an instance, load it, sample it, stop it."""
    config, log = folder / "instance.yaml", folder / "logs" / "ascendd.log"
    log.parent.mkdir()
    config.write_text(
        f"model: {{path: {args.model.resolve()}, name: m}}\nlisten: {{port: 0}}\nmetrics: {{port: 0}}\n"
        f"engine: {{device: cpu}}\nlog: {{file: {log}, max_bytes: {LOG_BYTES}, backups: {LOG_BACKUPS}}}\n"
    )
    daemon = subprocess.Popen([sys.executable, "-m", "ascendd", "run", "--instance", "soak", "--config", str(config)])
    stop, counts = threading.Event(), defaultdict[str, int](int)
    memory: dict[str, list[tuple[float, AnonymousMemory]]] = defaultdict(list)
    files: dict[str, list[int]] = defaultdict(list)
    kv_bytes = 0
    try:
        url = wait_ready(daemon, log)
        found = re.search(r'"event": "engine.loaded".*?"kv_bytes": (\d+)', log.read_text())
        assert found is not None
        kv_bytes = int(found[1])
        clients = [threading.Thread(target=load, args=(url, "m", stop, counts)) for _ in range(args.clients)]
        for client in clients:
            client.start()
        began = time.monotonic()
        while (minutes := (time.monotonic() - began) / 60) < args.minutes:
            time.sleep(EVERY_S)
            for role, pid in roles(daemon.pid).items():
                with contextlib.suppress(OSError, psutil.Error):
                    if minutes >= args.warm_up and (reading := anonymous_memory(pid)) is not None:
                        memory[role].append((minutes, reading))
                        files[role].append(psutil.Process(pid).num_fds())
        stop.set()
        for client in clients:
            client.join(120)
    finally:
        stop.set()
        daemon.send_signal(signal.SIGTERM)
        status = daemon.wait(90)
    return judge(memory, kv_bytes, files, counts, log.parent, status)


def wait_ready(daemon: subprocess.Popen[bytes], log: Path) -> str:
    """Return the URL of the instance once it answers."""
    while daemon.poll() is None:
        time.sleep(0.5)
        text = log.read_text(errors="replace") if log.exists() else ""
        match = re.search(r'"event": "supervisor.serving".*?"address": "([^"]+)"', text)
        if match is not None:
            return f"http://{match[1]}"
    raise SystemExit(f"the instance ended with status {daemon.returncode}:\n{log.read_text()[-4000:]}")


def judge(
    memory: dict[str, list[tuple[float, AnonymousMemory]]],
    kv_bytes: int,
    files: dict[str, list[int]],
    counts: dict[str, int],
    logs: Path,
    status: int,
) -> int:
    """Print a line a process and return 1 where something grows."""
    failures = [] if status == 0 else [f"the instance ended with status {status}"]
    print(f"{dict(counts)}")
    for role, points in sorted(memory.items()):
        if len(points) < 10:
            failures.append(f"{role} was seen {len(points)} times only: it was restarted")
            continue
        slope = fit([minutes for minutes, _ in points], [float(reading.private_bytes) for _, reading in points])
        mb, error = slope.bytes_per_hour / 1e6, slope.error / 1e6  # the times are minutes, so this is a minute
        quarter = max(1, len(files[role]) // 4)
        first, last = max(files[role][:quarter]), min(files[role][-quarter:])
        print(
            f"{role:12} {mb:+8.3f} MB/min +- {error:.3f}   {points[-1][1].private_bytes / 1e6:8.1f} MB   descriptors {first} -> {last}"
        )
        if (cache := [reading.mapped_zero_bytes for _, reading in points])[-1]:
            print(f"{'':12} KV cache {cache[0] / 1e6:.1f} -> {cache[-1] / 1e6:.1f} of {kv_bytes / 1e6:.1f} MB planned")
            # Pages, and huge ones, are given whole; the null block is beside the plan.
            if cache[-1] > kv_bytes * 1.01 + 2**22:
                failures.append(f"{role} has a KV cache of {cache[-1]} bytes, planned were {kv_bytes}")
        if mb >= MAX_MB_PER_MINUTE and mb > 3 * error:
            failures.append(f"{role} grows by {mb:.2f} MB a minute")
        if last > first:
            failures.append(f"{role} has {last} descriptors at least, {first} at most before")
    num_bytes = sum(path.stat().st_size for path in logs.iterdir())
    print(f"logs {num_bytes} bytes in {len(list(logs.iterdir()))} files")
    if num_bytes > (LOG_BACKUPS + 1) * LOG_BYTES * 1.1:
        failures.append(f"the logs have {num_bytes} bytes")
    for failure in failures:
        print("FAILED:", failure)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
