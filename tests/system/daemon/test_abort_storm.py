"""A storm of clients that leave at any moment: blocks, places and memory come back, round after round."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Callable
from typing import Any

import aiohttp
import pytest

pytestmark = [pytest.mark.system, pytest.mark.slow, pytest.mark.timeout(900)]
NUM_ROUNDS, PER_ROUND, NUM_CLIENTS = 5, 200, 24
BLOCK_SIZE, NUM_BLOCKS = 16, 256
# Lengths of prompts around the borders of blocks.
SIZES = [border + step for border in (BLOCK_SIZE, 2 * BLOCK_SIZE, 5 * BLOCK_SIZE) for step in (-1, 0, 1)]


async def read(session: aiohttp.ClientSession, url: str, body: dict[str, Any]) -> str:
    """Ask and return the whole stream; leaving it closes the connection."""
    async with session.post(f"{url}/v1/completions", json=body) as response:
        assert response.status == 200, await response.text()
        return await response.text()


async def ask_and_leave(session: aiohttp.ClientSession, url: str, moments: random.Random) -> str:
    """Ask for a stream and leave at a random moment, some of them never; return how it ended."""
    size = moments.choice(SIZES)
    # Equal beginnings, so that sequences share blocks of the prefix cache.
    body: dict[str, Any] = {
        "model": "qwen2",
        "prompt": [*range(1, size), moments.randrange(250)],
        "max_tokens": moments.choice((1, BLOCK_SIZE, 3 * BLOCK_SIZE)),
        "ignore_eos": True,
        "stream": True,
    }
    stay_s = moments.choice((0.001, moments.random() * 0.05, moments.random() * 0.5, 120.0))
    try:
        text = await asyncio.wait_for(read(session, url, body), stay_s)
    except asyncio.TimeoutError:
        return "left"
    events = [line[6:] for line in text.splitlines() if line.startswith("data: ")]
    assert events[-1] == "[DONE]", events
    return str(json.loads(events[-2])["choices"][0]["finish_reason"])


async def storm(url: str, moments: random.Random) -> list[str]:
    """Have PER_ROUND requests of NUM_CLIENTS clients."""
    gate = asyncio.Semaphore(NUM_CLIENTS)
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:

        async def one() -> str:
            async with gate:
                return await ask_and_leave(session, url, moments)

        return list(await asyncio.gather(*(one() for _ in range(PER_ROUND))))


def test_b105_memory_returns_after_a_storm_of_aborts(
    start_daemon: Callable[..., Any], eventually: Callable[..., float]
) -> None:
    """
    B105: after each of five rounds of 200 requests no block, place or sequence is held, and memory is flat.

    The engine checks at every return to idle that free and cached blocks are all there are and that nobody is counted
    as a holder, and would end over a leak; a restart would show.
    """
    daemon = start_daemon("--max-num-seqs", "8", "--max-queue", "64", "--max-num-blocks", str(NUM_BLOCKS))
    moments, private_bytes, ends = random.Random(105), [], []

    def is_idle() -> bool:
        page = daemon.metrics()
        names = ("sequences_running", "sequences_waiting", "kv_blocks_used")
        return all(page[f"ascendd_engine_{name}"] == 0 for name in names)

    for _ in range(NUM_ROUNDS):
        ends += asyncio.run(storm(daemon.url, moments))
        eventually(is_idle, "nothing held")
        processes = daemon.children()
        private_bytes.append(sum(processes[role].memory_full_info().uss for role in ("engine", "api")))
    page = daemon.metrics()
    print(f"{ends.count('left')} left, {ends.count('length')} stayed; private MB {[b // 10**6 for b in private_bytes]}")

    assert len(ends) == NUM_ROUNDS * PER_ROUND
    assert ends.count("left") > len(ends) / 4
    assert ends.count("length") > len(ends) / 10
    assert set(ends) == {"left", "length"}
    assert page["ascendd_engine_kv_blocks"] == NUM_BLOCKS
    assert not [name for name, value in page.items() if name.startswith("ascendd_child_restarts") and value]
    assert private_bytes[-1] <= private_bytes[1] * 1.02 + 4e6, private_bytes
