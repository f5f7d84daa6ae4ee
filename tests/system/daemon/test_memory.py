"""The memory of a running daemon: requests leave nothing behind, and the KV cache is what was planned."""

from __future__ import annotations

import concurrent.futures
import json
import urllib.request

import pytest

from ascendd.host.anonymous_memory import anonymous_memory

pytestmark = [pytest.mark.system, pytest.mark.slow, pytest.mark.timeout(400)]

NUM_CLIENTS = 4
# 2 layers x K and V x 2 heads x 16 numbers of 4 bytes, for each token.
NUM_BLOCKS, BLOCK_BYTES = 256, 16 * 512
# Per request; what is kept of one for good, its ids and times alone, would be more.
MAX_BYTES = 4096


def ask(url: str, number: int) -> None:
    """Send a request of a length and a form of its own, and read its answer."""
    body = {
        "model": "qwen2", "prompt": [1 + (number * 7 + n) % 200 for n in range(1 + number * 13 % 150)],
        "max_tokens": 1 + number % 5, "ignore_eos": True, "stream": number % 2 == 0, "temperature": number % 3 / 2,
        "logprobs": 2 if number % 7 == 0 else None,
    }  # fmt: skip
    request = urllib.request.Request(
        f"{url}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=120) as response:
        response.read()


@pytest.mark.parametrize(("num_warm", "num_requests"), [(300, 300), (1000, 4000)], ids=["short", "long"])
def test_requests_leave_nothing_behind(start_daemon, num_warm, num_requests):
    """After a warm-up no process keeps more than 4 KiB a request; the cache was touched wholly and is as planned."""
    daemon = start_daemon("--max-num-blocks", str(NUM_BLOCKS), "--max-model-len", "1024")
    pids = {role: process.pid for role, process in daemon.children().items()}

    def read():
        return {role: anonymous_memory(pid) for role, pid in pids.items()}

    with concurrent.futures.ThreadPoolExecutor(NUM_CLIENTS) as clients:
        list(clients.map(lambda number: ask(daemon.url, number), range(num_warm)))
        before = read()
        list(clients.map(lambda number: ask(daemon.url, number), range(num_warm, num_warm + num_requests)))
        after = read()

    grown = {role: after[role].private_bytes - before[role].private_bytes for role in pids}
    print(f"{num_requests} requests, bytes grown: {grown}; cache {after['engine'].mapped_zero_bytes}")
    assert set(pids) == {"supervisor", "engine", "api", "metrics"}
    assert max(grown.values()) <= MAX_BYTES * num_requests, grown
    cache = after["engine"].mapped_zero_bytes
    assert cache == before["engine"].mapped_zero_bytes
    assert NUM_BLOCKS * BLOCK_BYTES <= cache <= NUM_BLOCKS * BLOCK_BYTES * 1.1 + 2**22
