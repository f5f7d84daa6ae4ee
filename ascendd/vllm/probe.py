"""TokenProbe: whether vLLM makes a token now."""

from __future__ import annotations

import asyncio
import time

from ascendd.errors import EngineDead
from ascendd.vllm.token_watch import TokenWatch
from ascendd.vllm.upstream import Upstream

_LOOK_EVERY_S = 0.25


class TokenProbe:
    """
    Asks for one token, once for all who want to know, and takes a token of anybody's request for an answer as well.

    vLLM takes requests in the order in which they come, so under load the probe's own would wait behind all others
    while tokens flow.
    """

    def __init__(self, upstream: Upstream, model: str, watch: TokenWatch, timeout_s: float) -> None:
        self._upstream = upstream
        self._model = model
        self._watch = watch
        self._timeout_s = timeout_s
        self._asking: asyncio.Task[None] | None = None
        self.answered_at_s = time.monotonic()

    @property
    def is_asking(self) -> bool:
        """Whether a request of the probe is under way."""
        return self._asking is not None and not self._asking.done()

    async def check(self) -> None:
        """Return once a token was made. Raises EngineDead where vLLM refuses or makes none in time."""
        num_tokens = self._watch.num_tokens
        if not self.is_asking:
            self._asking = asyncio.get_running_loop().create_task(self._ask(), name="token-probe")
        asking = self._asking
        assert asking is not None
        while not asking.done():
            await asyncio.wait({asking}, timeout=_LOOK_EVERY_S)
            if self._watch.num_tokens > num_tokens and self._watch.num_running:
                break
        else:
            asking.result()
        self.answered_at_s = time.monotonic()

    async def _ask(self) -> None:
        body = {"model": self._model, "prompt": "Hello", "max_tokens": 1, "temperature": 0}
        answer = await self._upstream.post("/v1/completions", body, self._timeout_s)
        if answer.status != 200:
            raise EngineDead(f"vLLM answered the probe {answer.status}: {answer.body[:200].decode('utf-8', 'replace')}")
