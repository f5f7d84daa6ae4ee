"""Bytes between a client and an instance: streamed as they come, tried elsewhere while the client saw nothing."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import msgspec
from aiohttp import web

from ascendd.api.body import decode_object
from ascendd.api.errors import as_request_error, error_json, error_response
from ascendd.api.key_limits import KeyLimits
from ascendd.config.credentials import Credential
from ascendd.errors import EngineRestarting, InstanceUnavailable, InternalError, QueueFull, RequestAborted, RequestError
from ascendd.gateway.answer_usage import AnswerUsage
from ascendd.gateway.dispatcher import Dispatcher
from ascendd.gateway.pool import Attempt
from ascendd.gateway.request_facts import read_facts
from ascendd.gateway.schema import AUTO
from ascendd.telemetry.log import get_logger

_log = get_logger("gateway")
_encode = msgspec.json.Encoder().encode
# An instance that answers so is asked again by somebody else's request; this one goes on to the next.
_ELSEWHERE = {429: False, 502: True, 503: True, 504: False}
_KEPT_HEADERS = ("Content-Type", "Cache-Control", "X-Accel-Buffering", "Retry-After", "X-Request-Id")
_TRACE_HEADERS = ("traceparent", "tracestate")
_STALL_TIMEOUT_S = 30.0
_CLIENT_GONE = 499


@dataclass
class Passage:
    """One request on its way: what is known for its log line and its figures."""

    request_id: str
    dispatcher: Dispatcher
    # The trace of the client, for the instance.
    trace: dict[str, str] = field(default_factory=dict)
    received_s: float = field(default_factory=time.monotonic)
    rule: str = ""
    instance: str = ""
    status: int = _CLIENT_GONE
    num_attempts: int = 0
    num_tokens: int = 0
    # Of a key with tokens_per_minute.
    usage: AnswerUsage | None = None


class _NothingYet(Exception):
    """The instance failed before the client saw anything."""

    def __init__(self, reason: str, *, down: bool, answer: RequestError | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.down = down
        self.answer = answer


class _ClientLeft(ConnectionResetError):
    """
    The client's own connection is closed.

    aiohttp tells that of a client with the class it has for instances, too (ClientConnectionResetError), and an
    instance is not down because a client left.
    """


class Proxy:
    """Answers the routes that an instance serves, through whichever instance the dispatcher names."""

    def __init__(self, session: aiohttp.ClientSession) -> None:
        self._session = session
        # By the name of a key, so that a reload of rules and keys forgives nobody.
        self._limits = KeyLimits()

    async def answer(self, request: web.Request, dispatcher: Dispatcher) -> web.StreamResponse:
        """Answer one request; every error is in OpenAI's shape. A client that leaves ends the upstream request."""
        trace = {name: request.headers[name] for name in _TRACE_HEADERS if name in request.headers}
        passage = Passage(request.headers.get("X-Request-Id") or f"gw-{uuid.uuid4().hex}", dispatcher, trace)
        code = None
        try:
            response = await self._pass(request, passage)
        except (asyncio.CancelledError, ConnectionError):
            code = RequestAborted.code
            raise
        except Exception as error:
            failure = as_request_error(error)
            if isinstance(failure, InternalError):
                _log.error("gateway.request_failed", request_id=passage.request_id, exc_info=error)
            code, passage.status = failure.code, failure.http_status
            response = error_response(failure)
        finally:
            dispatcher.count(passage.rule, passage.instance, passage.status, passage.received_s)
            _log.info(
                "gateway.request",
                route=request.path, status=passage.status, rule=passage.rule, target=passage.instance, code=code,
                attempts=passage.num_attempts, request_id=passage.request_id,
                duration_s=round(time.monotonic() - passage.received_s, 4),
            )  # fmt: skip
        return response

    async def _pass(self, request: web.Request, passage: Passage) -> web.StreamResponse:
        dispatcher = passage.dispatcher
        credential = dispatcher.keys.check(request.path, request.headers.get("Authorization"))
        with nullcontext() if credential is None else self._limits.place(credential):
            try:
                return await self._route(request, passage, credential)
            finally:
                if credential is not None and passage.usage is not None:
                    self._limits.charge(credential, passage.usage.num_tokens)

    async def _route(self, request: web.Request, passage: Passage, credential: Credential | None) -> web.StreamResponse:
        dispatcher = passage.dispatcher
        key = "" if credential is None else credential.name
        body = await request.read()
        raw: dict[str, Any] = {}
        is_audio = request.path.startswith("/v1/audio/")
        if not is_audio:
            raw = decode_object(body)
        facts = read_facts(
            raw or {"model": AUTO},
            key=key,
            prefix_chars=dispatcher.config.balance.sticky_prefix_chars,
            modality="audio" if is_audio else "text",
        )
        choice, candidates = dispatcher.choose(facts)
        passage.rule, passage.num_tokens = choice.rule, facts.outstanding_tokens
        changed: dict[str, Any] = {}
        if credential is not None and credential.tokens_per_minute is not None:
            passage.usage = AnswerUsage(int(facts.numbers["prompt_tokens"]))
            changed = passage.usage.asked_for(raw)
        last: RequestError | None = None
        for attempt in candidates.attempts:
            passage.num_attempts += 1
            passage.instance = attempt.instance.name
            try:
                named = {"model": attempt.model} if raw and raw.get("model") != attempt.model else {}
                sent = _encode({**raw, **changed, **named}) if changed or named else body
                return await self._attempt(request, attempt, sent, passage)
            except _NothingYet as failed:
                dispatcher.failed(attempt, failed.reason, down=failed.down)
                last = failed.answer or last
        raise last or InstanceUnavailable(
            "every instance that could serve this request failed; retry", rule=choice.rule
        )

    async def _attempt(
        self,
        request: web.Request,
        attempt: Attempt,
        body: bytes,
        passage: Passage,
    ) -> web.StreamResponse:
        """Try one instance. Raises _NothingYet where another may still answer."""
        dispatcher = passage.dispatcher
        instance = attempt.instance
        headers = {
            "Content-Type": request.headers.get("Content-Type", "application/json"),
            "X-Request-Id": passage.request_id,
            # Pieces are passed on as they come; compressed they would be held back.
            "Accept-Encoding": "identity",
            **passage.trace,
            **dispatcher.headers[instance.name],
        }
        num_tokens = passage.num_tokens
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=5.0, sock_read=dispatcher.config.upstream_timeout_s)
        instance.begin(num_tokens)
        try:
            url = instance.entry.url.rstrip("/") + request.path
            trust = dispatcher.trust[instance.name]
            async with self._session.post(url, data=body, headers=headers, timeout=timeout, ssl=trust) as upstream:
                _refuse_elsewhere(upstream, instance.name)
                passage.status = upstream.status
                told = {
                    "X-Ascendd-Instance": instance.name,
                    "X-Ascendd-Rule": passage.rule,
                    "X-Request-Id": passage.request_id,
                }
                kept = {name: upstream.headers[name] for name in _KEPT_HEADERS if name in upstream.headers} | told
                if upstream.content_type != "text/event-stream":
                    whole = await upstream.read()
                    if passage.usage is not None and upstream.status == 200:
                        passage.usage.whole(whole)
                    return web.Response(body=whole, status=upstream.status, headers=kept)
                return await self._stream(request, upstream, kept, passage.usage)
        except (aiohttp.ClientError, asyncio.TimeoutError, TimeoutError) as error:
            if isinstance(error, aiohttp.ServerTimeoutError) and not isinstance(error, aiohttp.ConnectionTimeoutError):
                raise _NothingYet(f"no answer within {dispatcher.config.upstream_timeout_s:g} s", down=False) from error
            raise _NothingYet(f"{type(error).__name__}: {error}", down=True) from error
        finally:
            instance.end(num_tokens, asyncio.get_running_loop().time())

    async def _stream(
        self,
        request: web.Request,
        upstream: aiohttp.ClientResponse,
        headers: Mapping[str, str],
        usage: AnswerUsage | None,
    ) -> web.StreamResponse:
        """Pass a stream on. Until its first piece an error is still the instance's, and another may be tried."""
        pieces = upstream.content.iter_any().__aiter__()
        try:
            piece = await pieces.__anext__()
        except StopAsyncIteration:
            raise _NothingYet("the stream ended before it began", down=True) from None
        response = web.StreamResponse(status=upstream.status, headers=headers)
        try:
            await response.prepare(request)
        except ConnectionError as error:
            raise _ClientLeft from error
        tail = b""
        try:
            while True:
                passed = piece if usage is None else usage.feed(piece)
                if passed:
                    await _write(request, response, passed)
                tail = (tail + passed)[-64:]
                piece = await pieces.__anext__()
        except StopAsyncIteration:
            if usage is not None and (rest := usage.rest()):
                await _write(request, response, rest)
                tail = (tail + rest)[-64:]
        except (aiohttp.ClientError, asyncio.TimeoutError, TimeoutError) as error:
            _log.warning("gateway.stream_broke", reason=f"{type(error).__name__}: {error}")
            tail = b""
        if not tail.rstrip().endswith(b"data: [DONE]") and b'"error"' not in tail:
            failure = EngineRestarting("the instance broke off this answer; it is not whole, retry the request")
            await _write(request, response, b"\n\ndata: " + error_json(failure) + b"\n\n")
        try:
            await response.write_eof()
        except ConnectionError as error:
            raise _ClientLeft from error
        return response


def _refuse_elsewhere(upstream: aiohttp.ClientResponse, name: str) -> None:
    """Raise _NothingYet for an answer that is about the instance and not about the request."""
    status = upstream.status
    if status in _ELSEWHERE:
        seconds = upstream.headers.get("Retry-After", "")
        kind, what = (QueueFull, "full") if status == 429 else (InstanceUnavailable, "unavailable")
        answer: RequestError = kind(f"every instance for this request is {what}")
        if seconds.isascii() and seconds.isdigit():
            answer.facts["retry_after_s"] = int(seconds)
        raise _NothingYet(f"HTTP {status}", down=_ELSEWHERE[status], answer=answer)
    if status in (401, 403) and upstream.headers.get("WWW-Authenticate"):
        _log.error("gateway.key_refused", target=name, remedy=f"correct api_key_file of the instance `{name}`")
        raise _NothingYet("the instance refuses the gateway's own key", down=True)


async def _write(request: web.Request, response: web.StreamResponse, data: bytes) -> None:
    """Send `data`; a client that takes nothing for too long is cut off."""

    def cut() -> None:
        if request.transport is not None:
            request.transport.abort()

    timer = asyncio.get_running_loop().call_later(_STALL_TIMEOUT_S, cut)
    try:
        await response.write(data)
    except ConnectionError as error:
        raise _ClientLeft from error
    finally:
        timer.cancel()
