"""Upstream: short questions to the kept vLLM over its own address; no library, since the keeper has little to ask."""

from __future__ import annotations

import asyncio
import contextlib
import json
from dataclasses import dataclass
from typing import Any

from ascendd.errors import EngineDead
from ascendd.vllm.address import Address

_MAX_ANSWER_BYTES = 16 * 1024 * 1024


@dataclass(frozen=True)
class Answer:
    """Status and body."""

    status: int
    body: bytes

    def json(self) -> Any:
        """Return the body decoded. Raises EngineDead where it is no JSON."""
        try:
            return json.loads(self.body)
        except ValueError as error:
            raise EngineDead(f"vLLM answered {self.status} with what is no JSON: {self.body[:80]!r}") from error


class Upstream:
    """One connection for each question: nothing of an answer that came too late can be taken for a later one."""

    def __init__(self, address: Address) -> None:
        self._address = address

    async def get(self, path: str, timeout_s: float) -> Answer:
        """Ask for `path`. Raises EngineDead where no whole answer comes within `timeout_s`."""
        return await self._ask("GET", path, b"", timeout_s)

    async def post(self, path: str, body: dict[str, Any], timeout_s: float) -> Answer:
        """Send `body` as JSON to `path`; errors as of `get`."""
        return await self._ask("POST", path, json.dumps(body).encode(), timeout_s)

    async def _ask(self, method: str, path: str, body: bytes, timeout_s: float) -> Answer:
        try:
            return await asyncio.wait_for(self._exchange(method, path, body), timeout_s)
        except (asyncio.TimeoutError, TimeoutError) as error:
            raise EngineDead(f"vLLM did not answer {method} {path} within {timeout_s:g} s") from error
        except (OSError, ValueError, IndexError, asyncio.IncompleteReadError) as error:
            raise EngineDead(f"vLLM did not answer {method} {path}: {error or type(error).__name__}") from error

    async def _exchange(self, method: str, path: str, body: bytes) -> Answer:
        address = self._address
        if address.path:
            reader, writer = await asyncio.open_unix_connection(address.path, limit=1 << 20)
        else:
            reader, writer = await asyncio.open_connection("127.0.0.1", address.port, limit=1 << 20)
        try:
            # HTTP/1.0: the answer comes in one piece and ends with the connection.
            head = [f"{method} {path} HTTP/1.0", "Host: localhost", "Content-Type: application/json"]
            head += [f"Content-Length: {len(body)}", "Connection: close"]
            if address.key:
                head.append(f"Authorization: Bearer {address.key}")
            writer.write("\r\n".join([*head, "", ""]).encode() + body)
            await writer.drain()
            status = int((await reader.readline()).split()[1])
            length = None
            while (line := (await reader.readline()).strip()) != b"":
                name, _, value = line.partition(b":")
                if name.lower() == b"content-length":
                    length = int(value)
            if length is not None and length > _MAX_ANSWER_BYTES:
                raise ValueError(f"the answer has {length} bytes")
            answer = await (reader.readexactly(length) if length is not None else reader.read(_MAX_ANSWER_BYTES))
            return Answer(status, answer)
        finally:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()
