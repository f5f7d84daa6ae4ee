"""Requests without end while processes are killed as soon as all is well again: nothing is lost, nothing counted twice."""

from __future__ import annotations

import asyncio
import collections
import contextlib
import itertools
import json
import os
import signal
import time

import aiohttp
import psutil
import pytest

pytestmark = [pytest.mark.system, pytest.mark.slow, pytest.mark.timeout(3600)]

NUM_CLIENTS = 32
CALM_S = 5.0
# Far above what a request takes, a restart included: none may hang.
DEADLINE_S = 240.0
LIMIT = aiohttp.ClientTimeout(total=DEADLINE_S)
MANY_RESTARTS = (
    "recovery: {max_restarts: 1000, backoff_min_s: 0.1, backoff_max_s: 1}\nadmission: {restart_wait_s: 60}\n"
)


async def ask(session, url, index, ends):
    """Send one request, streamed or whole, and count how it ended; more than one end is an end of its own."""
    stream = index % 2 == 0
    body = {
        "model": "m", "prompt": [1 + (index * 7 + n) % 200 for n in range(3 + index % 40)], "max_tokens": 4 + index % 40,
        "ignore_eos": True, "stream": stream,
    }  # fmt: skip
    try:
        async with session.post(f"{url}/v1/completions", json=body, timeout=LIMIT) as response:
            lines = [line.strip() for line in (await response.read()).decode().split("\n") if line.strip()]
            if response.status != 200:
                json.loads(lines[0])["error"]["code"]
                ends[f"status {response.status}"] += 1
            elif not stream:
                assert json.loads(lines[0])["usage"]["completion_tokens"] == body["max_tokens"]
                ends["finished"] += 1
            else:
                last = [line for line in lines if line == "data: [DONE]" or '"error"' in line]
                tokens = sum('"text"' in line for line in lines)
                assert len(last) == 1, lines[-3:]
                assert lines[-1] == last[0]
                assert tokens <= body["max_tokens"] + 1
                ends["finished" if last[0] == "data: [DONE]" else "error_event"] += 1
    except asyncio.TimeoutError:
        ends["hung"] += 1
    except aiohttp.ClientError:
        ends["broken"] += 1


async def storm(daemon, victims, num_requests, num_kills):
    """Keep 32 requests in flight until there were so many and so many kills; return the ends and the times back to ready."""
    ends, back_s, numbers = collections.Counter(), [], itertools.count()
    is_over = asyncio.Event()

    async def client(session):
        while not is_over.is_set():
            await ask(session, daemon.url, next(numbers), ends)

    async def kill():
        for number in range(num_kills):
            await asyncio.sleep(CALM_S)
            victim = victims[number % len(victims)]
            # Ranks end with their engine, and of several another one may live on for a moment.
            renewed = "engine" if victim == "rank" else victim
            before = daemon.pid(renewed)
            began = time.monotonic()
            os.kill(daemon.pid(victim), signal.SIGKILL)
            while daemon.pid(renewed) in (0, before) or not await asyncio.to_thread(daemon.is_whole):
                await asyncio.sleep(0.05)
                assert time.monotonic() - began < DEADLINE_S, daemon.text()
            back_s.append((victim, time.monotonic() - began))
        while sum(ends.values()) < num_requests:
            await asyncio.sleep(0.1)
        is_over.set()

    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        clients = [asyncio.create_task(client(session)) for _ in range(NUM_CLIENTS)]
        try:
            await kill()
        finally:
            is_over.set()
        await asyncio.gather(*clients)
    return ends, back_s


def counted(daemon):
    """Return the requests on /metrics by how they ended."""
    page = daemon.metrics()
    return {
        reason: page.get(f'ascendd_requests_total{{finish_reason="{reason}"}}', 0.0)
        for reason in ("length", "error", "abort")
    }


ALONE = ("engine", "logwriter", "engine", "metrics")
GROUP = ("engine", "rank", "logwriter")


@pytest.mark.parametrize(
    ("num_requests", "num_kills", "victims"), [(100, 4, ALONE), (100, 3, GROUP), (1000, 30, GROUP)]
)
def test_kills_under_load_lose_nothing(make_daemon, eventually, num_requests, num_kills, victims):
    """Every request ends with an answer or a typed error, none hangs, none is broken, and /metrics counts the same."""
    daemon = make_daemon(extra=MANY_RESTARTS, step_s=0.005, ranks=2 if "rank" in victims else 1).start()
    load_s = daemon.wait_whole()
    ends, back_s = asyncio.run(storm(daemon, victims, num_requests, num_kills))
    engine_s = sorted(took for victim, took in back_s if victim in ("engine", "rank"))
    print(f"{sum(ends.values())} requests, {dict(ends)}; {len(back_s)} kills; the first start took {load_s:.1f} s")
    print(
        f"engine back after {engine_s[0]:.1f} s at best, {engine_s[len(engine_s) // 2]:.1f} s median, {engine_s[-1]:.1f} s"
    )

    assert sum(ends.values()) >= num_requests
    assert len(back_s) == num_kills
    assert set(ends) <= {"finished", "error_event", "status 503"}
    assert ends["finished"] > sum(ends.values()) / 2
    total = ends["finished"] + ends["error_event"] + ends["status 503"]
    # A request that was refused before it had a place in the batch has a status and no finish reason.
    eventually(lambda: counted(daemon)["length"] == ends["finished"], f"{ends} in {counted(daemon)}")
    page = daemon.metrics()
    statuses = {
        name: value
        for name, value in page.items()
        if name.startswith('ascendd_http_responses_total{route="/v1/completions"')
    }
    assert sum(statuses.values()) == total
    assert counted(daemon)["error"] >= ends["error_event"]
    assert counted(daemon)["abort"] == 0
    failures = sum(value for name, value in page.items() if name.startswith("ascendd_child_restarts_total"))
    assert failures == num_kills
    assert daemon.stop() == 0


@pytest.mark.parametrize("victim", ["api", "supervisor"])
def test_kills_of_the_api_and_the_supervisor_break_connections_and_nothing_else(make_daemon, eventually, victim):
    """Client count = finished + failed + lost: a broken connection is allowed there, a request that hangs is not."""
    daemon = make_daemon(extra=MANY_RESTARTS, step_s=0.005).start()
    daemon.wait_whole()
    ends = collections.Counter()

    async def run():
        async with aiohttp.ClientSession() as session:
            for number in range(3):
                asking = [
                    asyncio.create_task(ask(session, daemon.url, 100 * number + n, ends)) for n in range(NUM_CLIENTS)
                ]
                await asyncio.sleep(0.3)
                dead = daemon.pid(victim)
                os.kill(dead, signal.SIGKILL)
                await asyncio.gather(*asking)
                if victim == "supervisor":
                    await asyncio.to_thread(daemon.process.wait, 240)
                    await asyncio.to_thread(eventually, lambda: not daemon.left(), "the end of every process")
                    daemon.start()
                else:
                    await asyncio.to_thread(eventually, lambda old=dead: daemon.pid("api") not in (0, old), "an API")
                await asyncio.to_thread(daemon.wait_whole)

    asyncio.run(run())
    print(f"{victim}: {dict(ends)}")

    assert sum(ends.values()) == 3 * NUM_CLIENTS
    assert set(ends) <= {"finished", "error_event", "status 503", "broken"}
    assert ends["broken"] > 0
    with contextlib.suppress(psutil.Error):
        assert daemon.stop() == 0
