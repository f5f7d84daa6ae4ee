#!/usr/bin/env python3
"""
Prove that an accelerator computes what the CPU does: `python tests/bench/prove_device.py MODEL --device cuda|npu`.

Serves MODEL (a converted folder) through the whole daemon in float32, first on the CPU, then on the device: with graphs,
without, and over --tensor-parallel-size devices where that is given, from the folder packed for that size that
--parallel-model names. Asks each for the same greedy answers, one at a
time and all at once, and prints a table. Exit status 0 where every text is the CPU's, else 1.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import re
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

PROMPTS = (
    "The capital of France is", "Water boils at", "Once upon a time", "def fibonacci(n):", "The quick brown fox",
    "In the year 1969", "A list of prime numbers: 2, 3, 5,", "To restart a daemon on Linux",
)  # fmt: skip
START_S = 600.0


@contextlib.contextmanager
def served(model: str, *flags: str) -> Iterator[tuple[str, str]]:
    """Serve `model` with `flags`; yield the addresses of the API and of /metrics once it is ready."""
    with socket.socket() as one, socket.socket() as two:
        one.bind(("127.0.0.1", 0))
        two.bind(("127.0.0.1", 0))
        port, metrics_port = one.getsockname()[1], two.getsockname()[1]
    command = [
        sys.executable, "-m", "ascendd", "serve", model, "--port", str(port), "--metrics-port", str(metrics_port),
        "--dtype", "float32", *flags,
    ]  # fmt: skip
    with tempfile.TemporaryFile() as log, subprocess.Popen(command, stdout=log, stderr=log) as daemon:
        try:
            deadline_s = time.monotonic() + START_S
            while not is_ready(f"http://127.0.0.1:{port}"):
                if daemon.poll() is not None or time.monotonic() > deadline_s:
                    log.seek(0)
                    raise SystemExit(f"{' '.join(command)} did not become ready:\n{log.read().decode()[-4000:]}")
                time.sleep(0.5)
            yield f"http://127.0.0.1:{port}", f"http://127.0.0.1:{metrics_port}"
        finally:
            daemon.terminate()
            daemon.wait(60)


def is_ready(base: str) -> bool:
    """Whether /readyz says so."""
    try:
        with urllib.request.urlopen(f"{base}/readyz", timeout=10):
            return True
    except OSError:
        return False


def model_of(base: str) -> str:
    """Return the name of the served model."""
    with urllib.request.urlopen(f"{base}/v1/models", timeout=10) as response:
        return str(json.load(response)["data"][0]["id"])


def complete(base: str, model: str, prompt: str, num_tokens: int) -> str:
    """Return the greedy continuation of `prompt`."""
    body = json.dumps({"model": model, "prompt": prompt, "max_tokens": num_tokens, "temperature": 0}).encode()
    request = urllib.request.Request(f"{base}/v1/completions", body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=START_S) as response:
        return str(json.load(response)["choices"][0]["text"])


def answers(model: str, num_tokens: int, *flags: str) -> tuple[list[str], list[str], float, float]:
    """Return the texts one by one and all at once, seconds of the second, and the graph buckets captured."""
    with served(model, *flags) as (base, metrics):
        name = model_of(base)
        alone = [complete(base, name, prompt, num_tokens) for prompt in PROMPTS]
        began_s = time.monotonic()
        with ThreadPoolExecutor(len(PROMPTS)) as pool:
            together = list(pool.map(lambda prompt: complete(base, name, prompt, num_tokens), PROMPTS))
        took_s = time.monotonic() - began_s
        with urllib.request.urlopen(f"{metrics}/metrics", timeout=10) as response:
            found = re.search(r"^ascendd_engine_graph_buckets (\S+)$", response.read().decode(), re.MULTILINE)
    return alone, together, took_s, float(found[1]) if found else 0.0


def main() -> int:
    """Compare and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="folder made by ascendd convert")
    parser.add_argument("--device", required=True, choices=("cuda", "npu", "cpu"))
    parser.add_argument("--tensor-parallel-size", type=int, default=1)
    parser.add_argument("--parallel-model", help="the same model, packed for that size; default: MODEL")
    parser.add_argument("--tokens", type=int, default=32)
    arguments = parser.parse_args()
    ways: list[tuple[str, str, tuple[str, ...]]] = [
        ("graphs", arguments.model, ()),
        ("eager", arguments.model, ("--enforce-eager", "true")),
    ]
    if arguments.tensor_parallel_size > 1:
        size = str(arguments.tensor_parallel_size)
        packed = arguments.parallel_model or arguments.model
        ways.append((f"tensor parallel {size}", packed, ("--tensor-parallel-size", size)))
    expected, _, _, _ = answers(arguments.model, arguments.tokens, "--device", "cpu")
    print(f"{'way':<20} {'alone':>7} {'at once':>8} {'buckets':>8} {'tok/s at once':>14}")
    is_same = True
    for name, model, flags in ways:
        alone, together, took_s, buckets = answers(model, arguments.tokens, "--device", arguments.device, *flags)
        same = [sum(a == b for a, b in zip(texts, expected, strict=True)) for texts in (alone, together)]
        is_same = is_same and same == [len(PROMPTS)] * 2
        speed = len(PROMPTS) * arguments.tokens / took_s
        print(f"{name:<20} {same[0]:>3} / {len(PROMPTS)} {same[1]:>4} / {len(PROMPTS)} {buckets:>8.0f} {speed:>14.1f}")
        for prompt, text, other in zip(PROMPTS, expected, alone, strict=True):
            if text != other:
                print(f"  {prompt!r}\n    cpu: {text!r}\n    {arguments.device}: {other!r}")
    return 0 if is_same else 1


if __name__ == "__main__":
    sys.exit(main())
