"""
ProxyService: what stands before an engine with an HTTP server of its own, such as vLLM.

Keys, limits, admission, preprocessing, log and metrics are ours; the request goes to the engine as the client wrote it
otherwise, and the answer comes back as it is, piece by piece. A client that leaves closes the connection to the engine,
which aborts its sequences.
"""

from __future__ import annotations

import asyncio
from typing import Any

import aiohttp
import msgspec
from aiohttp import web

from ascendd.api.auth import Authenticator
from ascendd.api.errors import as_request_error, error_json
from ascendd.api.proxied_answer import ProxiedAnswer
from ascendd.api.proxied_prompt import prepare
from ascendd.api.server_tls import ServerTls
from ascendd.api.service import FrontService, record_of
from ascendd.api.sse import EventStream
from ascendd.config.schema import InstanceConfig
from ascendd.errors import DeadlineExceeded, EngineRestarting
from ascendd.ipc.messages import EngineHello
from ascendd.telemetry.log import get_logger

_log = get_logger("api")
_encode = msgspec.json.Encoder().encode
_CONNECT_TIMEOUT_S = 5.0
# From the loss of a connection to the news that the engine is gone: its keeper reads its last words first.
_NEWS_S = 10.0
_READ_BYTES = 64 * 1024


class _EngineLost(Exception):
    """The engine went away before the client saw anything."""


class ProxyService(FrontService):
    """Forwards to the address that the engine's keeper told with its hello."""

    def __init__(self, config: InstanceConfig, authenticator: Authenticator, tls: ServerTls | None = None) -> None:
        super().__init__(config, authenticator, tls)
        self._session: aiohttp.ClientSession | None = None
        self._upstream = ""

    @classmethod
    def load(cls, config: InstanceConfig) -> ProxyService:
        """Read keys and certificate. Raises ConfigError or PermissionMissing."""
        return cls(config, Authenticator.from_file(config.listen.api_key_file), ServerTls.of(config.listen.tls))

    async def close(self) -> None:
        """Close the connections to the engine."""
        if self._session is not None:
            await self._session.close()

    async def forward(self, request: web.Request, raw: dict[str, Any], num_sequences: int) -> web.StreamResponse:
        """
        Have the engine answer `raw` under the path of `request`.

        Where it dies before the client saw anything, the request is given once more to the next one, if that comes
        within admission.restart_wait_s. Raises RequestError.
        """
        record = record_of(request)
        deadline = self.deadline(record)
        options = raw.get("stream_options")
        keeps_usage = isinstance(options, dict) and options.get("include_usage") is True
        body = prepare(raw, self.preprocessor, self.config.preprocess)
        is_stream = raw.get("stream") is True
        if is_stream and isinstance(options, (dict, type(None))):
            # Tokens are counted for the key's limits and the metrics, whether the client wants to know or not.
            body = {**body, "stream_options": {**(options or {}), "include_usage": True}}
        for _ in range(2):
            hello = await self.admit(request)
            answer = ProxiedAnswer(self.metrics, record.received_at, num_sequences, keeps_usage)
            record.generation = answer
            with self.admission.place(num_sequences):
                try:
                    return await self._attempt(request, hello, _encode(body), answer, deadline)
                except _EngineLost as error:
                    _log.warning("api.engine_lost", request_id=record.request_id, reason=str(error))
                    reason = str(error)
            await self._await_news(hello)
        raise EngineRestarting(f"the engine ended before this request was finished ({reason}); retry")

    async def _attempt(
        self, request: web.Request, hello: EngineHello, body: bytes, answer: ProxiedAnswer, deadline: float
    ) -> web.StreamResponse:
        record = record_of(request)
        headers = {"Content-Type": "application/json", "X-Request-Id": record.request_id}
        if hello.upstream_key:
            headers["Authorization"] = f"Bearer {hello.upstream_key}"
        left_s = max(0.001, deadline - asyncio.get_running_loop().time())
        timeout = aiohttp.ClientTimeout(total=left_s, sock_connect=_CONNECT_TIMEOUT_S)
        session, base = await self._connect(hello)
        events = EventStream(request)
        try:
            async with session.post(base + request.path, data=body, headers=headers, timeout=timeout) as upstream:
                if upstream.content_type == "text/event-stream" and upstream.status == 200:
                    return await self._stream(upstream, events, answer, record.request_id)
                whole = await upstream.read()
                if upstream.status >= 500:
                    await self._raise_if_lost(hello, upstream.status)
                if upstream.status == 200:
                    answer.read_body(whole)
                else:
                    record.error_code, record.note = "upstream", f"the engine answered {upstream.status}"
                return web.Response(body=whole, status=upstream.status, content_type=upstream.content_type)
        except (asyncio.TimeoutError, TimeoutError) as error:
            if isinstance(error, aiohttp.ConnectionTimeoutError):
                raise _EngineLost(f"it takes no connection: {error}") from error
            late = DeadlineExceeded(
                "the request was not finished within admission.request_timeout_s, or X-Request-Timeout"
            )
            if not events.started:
                raise late from error
            record.error_code = late.code
            await events.send_error(error_json(late))
            return events.response
        except aiohttp.ClientError as error:
            if not events.started:
                raise _EngineLost(f"{type(error).__name__}: {error}") from error
            lost = EngineRestarting("the engine ended before this request was finished; it is being restarted; retry")
            record.error_code = lost.code
            await events.send_error(error_json(as_request_error(lost)))
            return events.response

    async def _stream(
        self, upstream: aiohttp.ClientResponse, events: EventStream, answer: ProxiedAnswer, request_id: str
    ) -> web.StreamResponse:
        """Pass events on as they come: the next is read once the client took the last, so nothing piles up here."""
        async for data in upstream.content.iter_any():
            if kept := answer.read_events(data):
                if not events.started:
                    await events.start({"X-Request-Id": request_id})
                await events.send_raw(kept)
        if not answer.is_whole:
            raise aiohttp.ServerDisconnectedError("the stream ended before it was done")
        return events.response

    async def _connect(self, hello: EngineHello) -> tuple[aiohttp.ClientSession, str]:
        """Return the session for the engine of `hello`; each engine has an address of its own."""
        if self._session is None or self._upstream != hello.upstream:
            old, self._session = self._session, None
            if old is not None:
                await old.close()
            scheme, _, path = hello.upstream.partition(":")
            connector: aiohttp.BaseConnector
            connector = aiohttp.UnixConnector(path, limit=0) if scheme == "unix" else aiohttp.TCPConnector(limit=0)
            self._session = aiohttp.ClientSession(connector=connector, read_bufsize=_READ_BYTES)
            self._upstream = hello.upstream
        return self._session, "http://localhost" if self._upstream.startswith("unix:") else self._upstream

    async def _raise_if_lost(self, hello: EngineHello, status: int) -> None:
        """Raise _EngineLost for an answer of an engine that is dying; another 5xx is the client's to read."""
        if await self._await_news(hello, 2.0):
            raise _EngineLost(f"it answered {status} and ended")

    async def _await_news(self, hello: EngineHello, limit_s: float = _NEWS_S) -> bool:
        """Return whether the engine of `hello` is known to be gone, at latest after `limit_s`."""
        until = asyncio.get_running_loop().time() + limit_s
        while self.engine.hello is hello:
            if asyncio.get_running_loop().time() >= until:
                return False
            await asyncio.sleep(0.05)
        return True
