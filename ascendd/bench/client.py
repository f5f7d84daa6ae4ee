"""One streamed request to an OpenAI-compatible server, with the time of everything that comes back."""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import aiohttp
import msgspec

from ascendd.bench.outcome import Outcome
from ascendd.errors import ServerUnreachable

_decode = msgspec.json.Decoder().decode
_MAX_SHOWN = 300
_MAX_EVENT_BYTES = 16 * 1024 * 1024


@dataclass(frozen=True)
class Target:
    """The server and how it is asked; `url` is its root, with or without /v1."""

    url: str
    model: str
    chat: bool = True
    api_key: str | None = None
    ignore_eos: bool = False
    temperature: float = 0.0
    timeout_s: float = 600.0
    # Whom an https:// server is trusted by; None: the authorities of the host.
    trusted: ssl.SSLContext | None = None

    @property
    def headers(self) -> dict[str, str]:
        """The header with the key, where there is one."""
        return {} if self.api_key is None else {"Authorization": f"Bearer {self.api_key}"}

    def path(self, name: str) -> str:
        """Return the whole address of `name` below /v1."""
        root = self.url.rstrip("/")
        return f"{root if root.endswith('/v1') else root + '/v1'}/{name}"

    def body(self, prompt: str, num_output_tokens: int) -> dict[str, Any]:
        """Return the request for `prompt`; usage is asked for, so that tokens are the server's own count."""
        body: dict[str, Any] = {
            "model": self.model,
            "max_tokens": num_output_tokens,
            "temperature": self.temperature,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if self.chat:
            body["messages"] = [{"role": "user", "content": prompt}]
        else:
            body["prompt"] = prompt
        if self.ignore_eos:
            body |= {"ignore_eos": True, "min_tokens": num_output_tokens}
        return body


class BenchClient:
    """Sends requests over connections of its own; a context manager."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self._session: aiohttp.ClientSession | None = None
        self._epoch_s = time.perf_counter()

    async def __aenter__(self) -> BenchClient:
        self._session = aiohttp.ClientSession(
            # Without a limit: the load decides how many connections there are, not the client's pool.
            connector=aiohttp.TCPConnector(limit=0, ssl=self.target.trusted or True),
            timeout=aiohttp.ClientTimeout(total=self.target.timeout_s),
            headers=self.target.headers,
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._session is not None:
            await self._session.close()

    def restart_clock(self) -> None:
        """Make now the second 0."""
        self._epoch_s = time.perf_counter()

    def now_s(self) -> float:
        """Return the seconds since `restart_clock`."""
        return time.perf_counter() - self._epoch_s

    async def first_model(self) -> str:
        """Return the first model that the server lists. Raises ServerUnreachable."""
        assert self._session is not None
        url = self.target.path("models")
        try:
            async with self._session.get(url) as response:
                text = await response.text()
                if response.status == 200:
                    return str(_decode(text)["data"][0]["id"])
        except (aiohttp.ClientError, asyncio.TimeoutError, OSError) as error:
            raise ServerUnreachable(f"{url}: {type(error).__name__}: {error}") from error
        except (msgspec.DecodeError, LookupError, TypeError):
            raise ServerUnreachable(f"{url} lists no model", remedy="Name one with --model.") from None
        raise ServerUnreachable(f"{url} answered {response.status}: {text[:_MAX_SHOWN]}")

    async def send(self, index: int, prompt: str, num_output_tokens: int, due_s: float | None = None) -> Outcome:
        """Send one request and follow its stream to the end; whatever fails is in the outcome."""
        assert self._session is not None
        sent_s = self.now_s()
        outcome = Outcome(index, due_s=sent_s if due_s is None else due_s, sent_s=sent_s)
        target = self.target
        url = target.path("chat/completions" if target.chat else "completions")
        try:
            async with self._session.post(url, json=target.body(prompt, num_output_tokens)) as response:
                if response.status != 200:
                    text = (await response.text())[:_MAX_SHOWN]
                    outcome.error = f"HTTP {response.status}: {text}"
                else:
                    await self._follow(response, outcome)
        except (asyncio.TimeoutError, TimeoutError):
            outcome.error = f"no end within {target.timeout_s:g} s"
        except (aiohttp.ClientError, OSError) as error:
            outcome.error = f"{type(error).__name__}: {error}"[:_MAX_SHOWN]
        outcome.end_s = self.now_s()
        return outcome

    async def _follow(self, response: aiohttp.ClientResponse, outcome: Outcome) -> None:
        async for data in events(response.content):
            if data == b"[DONE]":
                if not outcome.text_at_s and not outcome.num_output_tokens:
                    outcome.error = "the stream had no text"
                return
            now_s = self.now_s()
            try:
                event = _decode(data)
            except msgspec.DecodeError:
                outcome.error = "an event of the stream is not JSON"
                return
            if event.get("error"):
                outcome.error = f"error event: {str(event['error'].get('message', event['error']))[:_MAX_SHOWN]}"
                return
            usage = event.get("usage")
            if usage:
                outcome.num_prompt_tokens = usage.get("prompt_tokens")
                outcome.num_output_tokens = usage.get("completion_tokens")
            if any(_has_text(choice) for choice in event.get("choices") or ()):
                outcome.text_at_s.append(now_s)
        outcome.error = "the stream ended without [DONE]"


def _has_text(choice: dict[str, Any]) -> bool:
    delta = choice.get("delta") or {}
    return bool(choice.get("text") or delta.get("content") or delta.get("reasoning_content") or delta.get("tool_calls"))


async def events(stream: aiohttp.StreamReader) -> AsyncIterator[bytes]:
    """Yield the data of each server-sent event; lines may be of any length up to 16 MiB."""
    held = b""
    async for chunk in stream.iter_any():
        *lines, held = (held + chunk).split(b"\n")
        for line in lines:
            if line.startswith(b"data:"):
                yield line[5:].strip()
        if len(held) > _MAX_EVENT_BYTES:
            raise aiohttp.ClientPayloadError("an event of more than 16 MiB")
