"""
Tracing: a trace of each request for an OpenTelemetry collector, as OTLP over HTTP in its JSON form.

Formats: https://opentelemetry.io/docs/specs/otlp/ (JSON Protobuf encoding) and https://www.w3.org/TR/trace-context/.
They are small, so no library is needed and an offline host has traces too. Neither prompts nor answers nor keys are in
a span. A collector that is slow or gone costs spans, never requests.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import secrets
import time
from collections import deque
from typing import Any, NamedTuple

import aiohttp
import msgspec

from ascendd import __version__
from ascendd.config.schema import TracingSection
from ascendd.telemetry.log import get_logger
from ascendd.telemetry.metrics import MetricStore

_PARENT = re.compile(
    r"(?P<version>[0-9a-f]{2})-(?P<trace>[0-9a-f]{32})-(?P<span>[0-9a-f]{16})-(?P<flags>[0-9a-f]{2})(-.*)?"
)
_EVERY_S = 2.0
_TIMEOUT_S = 5.0
_FAREWELL_S = 1.0
_MAX_WAITING = 4096
_MAX_BATCH = 512
_SERVER, _INTERNAL = 2, 1
_ERROR = 2
_OUTCOMES = "ascendd_trace_spans_total"

_log = get_logger("api")


class TraceContext(NamedTuple):
    """The trace of a request: its id, the client's span (empty: the trace begins here), and whether it is kept."""

    trace_id: str
    parent_id: str
    is_sampled: bool


def parse_traceparent(text: str | None) -> TraceContext | None:
    """Return the trace that a client's `traceparent` names; None where it is none, as the specification wants it."""
    match = _PARENT.fullmatch((text or "").strip())
    if match is None or match["version"] == "ff" or (match["version"] == "00" and match[5]):
        return None
    if not int(match["trace"], 16) or not int(match["span"], 16):
        return None
    return TraceContext(match["trace"], match["span"], bool(int(match["flags"], 16) & 1))


class RequestSpan(NamedTuple):
    """One request that ended: times in monotonic seconds, `first_token_s` after its receipt."""

    name: str
    received_at: float
    ended_at: float
    first_token_s: float | None
    attributes: dict[str, str | int | float]
    error: str | None


class Tracer:
    """Collects spans of one process and sends them in batches; `record` from the event loop."""

    def __init__(self, section: TracingSection, service_name: str, metrics: MetricStore) -> None:
        self._endpoint = section.endpoint
        self._ratio = section.sample_ratio
        self._metrics = metrics
        self._waiting: deque[dict[str, Any]] = deque()
        self._is_failing = False
        self._resource = {
            "attributes": _attributes(
                {"service.name": "ascendd", "service.version": __version__, "service.instance.id": service_name}
            )
        }

    @property
    def is_on(self) -> bool:
        """Whether there is a collector."""
        return self._endpoint is not None

    def context(self, traceparent: str | None) -> TraceContext:
        """Return the client's trace, or a new one that is kept with the configured share."""
        given = parse_traceparent(traceparent)
        if given is not None:
            return given
        return TraceContext(secrets.token_hex(16), "", secrets.randbelow(1 << 30) < self._ratio * (1 << 30))

    def record(self, context: TraceContext, span: RequestSpan) -> None:
        """Keep the span of a request, with one up to its first token and one after it."""
        if not self.is_on or not context.is_sampled:
            return
        skew_s = time.time() - time.monotonic()
        own_id = secrets.token_hex(8)

        def add(name: str, start: float, end: float, span_id: str, parent_id: str, **more: Any) -> None:
            if len(self._waiting) >= _MAX_WAITING:
                self._metrics.inc(_OUTCOMES, labels=("dropped",))
                return
            times = {"startTimeUnixNano": _nano(start + skew_s), "endTimeUnixNano": _nano(end + skew_s)}
            ids = {"traceId": context.trace_id, "spanId": span_id, "parentSpanId": parent_id}
            self._waiting.append({**ids, "name": name, **times, **more})

        status = {} if span.error is None else {"code": _ERROR, "message": span.error}
        attributes = _attributes(span.attributes)
        add(
            span.name, span.received_at, span.ended_at, own_id, context.parent_id,
            kind=_SERVER, attributes=attributes, status=status,
        )  # fmt: skip
        if span.first_token_s is not None:
            first_at = span.received_at + span.first_token_s
            for name, start, end in (
                ("first token", span.received_at, first_at),
                ("decode", first_at, max(first_at, span.ended_at)),
            ):
                add(name, start, end, secrets.token_hex(8), own_id, kind=_INTERNAL)

    async def run(self) -> None:
        """Send what is there every two seconds, without end."""
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=_TIMEOUT_S)) as session:
            try:
                while True:
                    await asyncio.sleep(_EVERY_S)
                    await self._send_all(session)
            except asyncio.CancelledError:
                # Those of the last two seconds; the end of the process does not wait for a collector that is gone.
                with contextlib.suppress(asyncio.TimeoutError, TimeoutError):
                    await asyncio.wait_for(self._send_all(session), _FAREWELL_S)
                raise

    async def _send_all(self, session: aiohttp.ClientSession) -> None:
        while self._waiting:
            batch = [self._waiting.popleft() for _ in range(min(_MAX_BATCH, len(self._waiting)))]
            problem = await self._send(session, batch)
            self._metrics.inc(_OUTCOMES, len(batch), ("sent" if problem is None else "dropped",))
            if problem is not None and not self._is_failing:
                _log.warning("api.traces_not_taken", endpoint=self._endpoint, reason=problem)
            if problem is None and self._is_failing:
                _log.info("api.traces_taken", endpoint=self._endpoint)
            self._is_failing = problem is not None
            if problem is not None:
                return

    async def _send(self, session: aiohttp.ClientSession, spans: list[dict[str, Any]]) -> str | None:
        scope = {"name": "ascendd.api", "version": __version__}
        body = {"resourceSpans": [{"resource": self._resource, "scopeSpans": [{"scope": scope, "spans": spans}]}]}
        headers = {"Content-Type": "application/json"}
        try:
            async with session.post(str(self._endpoint), data=msgspec.json.encode(body), headers=headers) as answer:
                return None if answer.status < 300 else f"it answered {answer.status}"
        except (aiohttp.ClientError, OSError, asyncio.TimeoutError) as error:
            return f"{type(error).__name__}: {error}"


def _nano(unix_s: float) -> str:
    return str(int(unix_s * 1e9))


def _attributes(values: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"key": key, "value": _value(value)} for key, value in values.items()]


def _value(value: str | float) -> dict[str, Any]:
    if isinstance(value, str):
        return {"stringValue": value}
    return {"intValue": str(value)} if isinstance(value, int) else {"doubleValue": value}
