"""
The least that aiohttp can do for the same answers: no tokenizer, no checks, chunks from a constant. What is left to gain.

    python tests/bench/front_end_echo.py PORT STEP_MS         started by front_end.py
"""

from __future__ import annotations

import asyncio
import json
import sys

from aiohttp import web

WHOLE = json.dumps({
    "id": "cmpl-0", "object": "text_completion", "created": 1, "model": "bench",
    "choices": [{"index": 0, "text": " word", "logprobs": None, "finish_reason": "length"}],
    "usage": {"prompt_tokens": 9, "completion_tokens": 1, "total_tokens": 10},
}).encode()  # fmt: skip
CHUNK = b"data: " + WHOLE + b"\n\n"


class Echo:
    """Wakes all streams at each step, as an engine does."""

    def __init__(self, step_s: float) -> None:
        self._step_s = step_s
        self._tick = asyncio.Event()

    async def beat(self) -> None:
        """Make steps for ever."""
        while True:
            await asyncio.sleep(self._step_s)
            self._tick.set()
            self._tick = asyncio.Event()

    async def answer(self, request: web.Request) -> web.StreamResponse:
        """Answer as asked: whole, or max_tokens chunks."""
        body = json.loads(await request.read())
        if not body.get("stream"):
            await self._tick.wait()
            return web.Response(body=WHOLE, content_type="application/json")
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for _ in range(body["max_tokens"]):
            await self._tick.wait()
            await response.write(CHUNK)
        await response.write(b"data: [DONE]\n\n")
        return response


async def main(port: int, step_ms: float) -> None:
    """Serve until killed."""
    echo = Echo(step_ms / 1000)
    app = web.Application()
    app.router.add_post("/v1/completions", echo.answer)
    app.router.add_post("/v1/chat/completions", echo.answer)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    await echo.beat()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), float(sys.argv[2])))
