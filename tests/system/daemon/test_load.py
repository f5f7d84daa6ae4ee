"""The whole daemon under load: nothing lost, nothing leaked, a client that leaves costs nobody anything."""

from __future__ import annotations

import asyncio
import json
import time

import aiohttp
import pytest

pytestmark = [pytest.mark.system, pytest.mark.timeout(900)]

NUM_REQUESTS = 200
NUM_CLIENTS = 32


async def stream_once(session: aiohttp.ClientSession, url: str, index: int) -> tuple[int, int, str | None]:
    """Stream one completion; return the tokens counted by usage, the chunks with text, and the finish reason."""
    body = {
        "model": "qwen2",
        "prompt": [(index * 7 + position) % 250 for position in range(5 + index % 60)],
        "max_tokens": 8 + index % 25,
        "temperature": 0.8 if index % 2 else 0.0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    tokens, finish, done = 0, None, False
    async with session.post(f"{url}/v1/completions", json=body) as response:
        assert response.status == 200, await response.text()
        async for line in response.content:
            if not line.startswith(b"data: "):
                continue
            if line.strip() == b"data: [DONE]":
                done = True
                continue
            event = json.loads(line[6:])
            assert "error" not in event, event
            for choice in event["choices"]:
                finish = choice["finish_reason"] or finish
            if event.get("usage"):
                tokens = event["usage"]["completion_tokens"]
    assert done, "the stream ended without [DONE]"
    return tokens, int(body["max_tokens"]), finish


async def watch_ready(session: aiohttp.ClientSession, url: str, seen: list[tuple[int, float]]) -> None:
    """Ask /readyz again and again; note each status and how long it took."""
    while True:
        started = time.monotonic()
        async with session.get(f"{url}/readyz") as response:
            seen.append((response.status, time.monotonic() - started))
        await asyncio.sleep(0.1)


def test_200_requests_of_32_streaming_clients_all_complete(start_daemon, eventually) -> None:
    """Every stream ends with [DONE] and all its tokens, and /readyz answers 200 throughout; no block is held afterwards."""
    daemon = start_daemon("--max-num-seqs", "16", "--max-queue", "64")

    async def load() -> list[tuple[int, int, str | None]]:
        gate = asyncio.Semaphore(NUM_CLIENTS)
        async with aiohttp.ClientSession() as session:

            async def one(index: int) -> tuple[int, int, str | None]:
                async with gate:
                    return await stream_once(session, daemon.url, index)

            watching = asyncio.create_task(watch_ready(session, daemon.url, probes))
            done = list(await asyncio.gather(*(one(index) for index in range(NUM_REQUESTS))))
            watching.cancel()
            return done

    name = "ascendd_engine_generation_tokens_total"
    eventually(lambda: daemon.metrics()[name] == 1, "the self-test's token in /metrics")
    started = time.monotonic()
    probes: list[tuple[int, float]] = []
    results = asyncio.run(load())
    print(f"{NUM_REQUESTS} requests in {time.monotonic() - started:.1f} s")
    total = sum(tokens for tokens, _, _ in results)

    print(f"{len(probes)} answers of /readyz meanwhile, the slowest after {max(took for _, took in probes):.2f} s")
    assert {status for status, _ in probes} == {200}
    assert len(results) == NUM_REQUESTS
    assert [tokens for tokens, _, _ in results] == [wanted for _, wanted, _ in results]
    assert {finish for _, _, finish in results} == {"length"}
    eventually(lambda: daemon.metrics()[name] == total + 1, f"{total} more tokens in /metrics")
    # Engine and API tell their figures once a second each, so the one may be there before the other.
    finished = 'ascendd_requests_total{finish_reason="length"}'
    eventually(lambda: daemon.metrics()[finished] >= NUM_REQUESTS, f"{NUM_REQUESTS} requests in /metrics")
    page = daemon.metrics()
    assert page["ascendd_engine_kv_blocks_used"] == 0
    assert page["ascendd_engine_sequences_running"] == page["ascendd_engine_sequences_waiting"] == 0
    # The engine checks its block accounts at every return to idle and would have ended over a leak.
    assert not [name for name, value in page.items() if name.startswith("ascendd_child_restarts") and value]


def test_the_blocks_of_a_client_that_leaves_serve_the_next_one_within_a_second(start_daemon) -> None:
    """With room for one sequence only, another client's first token proves that the first one's blocks are free."""
    # On a machine that is busy with other things a request takes longer even where nobody is before it.
    daemon = start_daemon("--max-num-seqs", "1", "--max-num-blocks", "256", "--max-model-len", "4096")
    endless = {"model": "qwen2", "prompt": [1, 2, 3], "max_tokens": 4000, "ignore_eos": True, "stream": True}
    short = {"model": "qwen2", "prompt": [4, 5, 6], "max_tokens": 1, "ignore_eos": True}

    async def leave_and_ask() -> tuple[float, float]:
        async with aiohttp.ClientSession() as session:
            alone_s = 0.0
            for _ in range(5):
                started = time.monotonic()
                async with session.post(f"{daemon.url}/v1/completions", json=short) as response:
                    assert response.status == 200, await response.text()
                alone_s = max(alone_s, time.monotonic() - started)
            leaving = await session.post(f"{daemon.url}/v1/completions", json=endless)
            await leaving.content.readany()
            waiting = asyncio.create_task(session.post(f"{daemon.url}/v1/completions", json=short))
            await asyncio.sleep(0.2)
            assert not waiting.done(), "the second request did not have to wait, so the test shows nothing"
            started = time.monotonic()
            leaving.close()
            response = await waiting
            assert response.status == 200, await response.text()
            return alone_s, time.monotonic() - started

    alone_s, took_s = asyncio.run(leave_and_ask())
    print(f"the next client's token came {took_s:.3f} s after the close; alone it takes up to {alone_s:.3f} s")

    assert took_s < 1.0 + 5 * alone_s


def test_the_openai_package_talks_to_the_daemon(start_daemon) -> None:
    """Models, completion, chat and stream through the official client."""
    import openai

    daemon = start_daemon()
    with openai.OpenAI(base_url=f"{daemon.url}/v1", api_key="none", max_retries=0) as client:
        names = [model.id for model in client.models.list()]
        whole = client.completions.create(model="qwen2", prompt="hello", max_tokens=5, temperature=0.0)
        stream = client.completions.create(model="qwen2", prompt="hello", max_tokens=5, temperature=0.0, stream=True)
        streamed = "".join(chunk.choices[0].text for chunk in stream)
        with pytest.raises(openai.NotFoundError, match="no-such-model"):
            client.completions.create(model="no-such-model", prompt="hello")

    assert names == ["qwen2"]
    assert whole.choices[0].text == streamed
    assert whole.usage.completion_tokens == 5
