"""Around every request: its id, its key, its error, its one log line and its one terminal event in the metrics."""

from __future__ import annotations

import asyncio
import math
import re
import time
import uuid
from collections.abc import Awaitable, Callable
from contextlib import nullcontext

from aiohttp import web

from ascendd.api.errors import as_request_error, error_response
from ascendd.api.service import FRONT, FrontService, RequestRecord, log_defect
from ascendd.api.tracing import RequestSpan
from ascendd.errors import InvalidRequest, RequestAborted
from ascendd.telemetry.log import get_logger

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

# A label for logs: short, printable, nothing that could break a line or a header.
_LABEL = re.compile(r"[\x21-\x7e]{1,128}")
_SECONDS = re.compile(r"[0-9]{1,9}(\.[0-9]{1,9})?")
_CLIENT_GONE = 499
_PROBES = frozenset({"/livez", "/readyz", "/health"})

_log = get_logger("api")


@web.middleware
async def observe(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Check the key, run the handler, and turn whatever it raises into one answer and one log line."""
    service = request.app[FRONT]
    label = request.headers.get("X-Request-Id", "")
    record = RequestRecord(request_id=label if _LABEL.fullmatch(label) else f"req-{uuid.uuid4().hex}")
    if service.tracer.is_on:
        record.trace = service.tracer.context(request.headers.get("traceparent"))
    request["record"] = record
    status = _CLIENT_GONE
    try:
        authorization = request.headers.get("Authorization")
        record.credential = service.authenticator.check(request.path, authorization)
        record.is_self_test = service.authenticator.is_self_test(authorization)
        record.timeout_s = _timeout_s(request.headers.get("X-Request-Timeout"))
        with nullcontext() if record.credential is None else service.key_limits.place(record.credential):
            response = await handler(request)
        status = response.status
    except ConnectionError:
        # The client reset the connection while we wrote; nobody is left to answer.
        record.error_code = RequestAborted.code
        response = web.Response(status=_CLIENT_GONE)
    except asyncio.CancelledError:
        record.error_code = RequestAborted.code
        raise
    except Exception as error:
        failure = as_request_error(error)
        record.error_code = failure.code
        if failure.http_status == 500:
            log_defect("api.request_failed", error, record)
        response = error_response(failure)
        status = failure.http_status
    finally:
        _account(service, request, record, status)
    if not response.prepared:
        response.headers["X-Request-Id"] = record.request_id
        if service.admission.is_draining:
            # The next request belongs on a connection that outlives this process.
            response.force_close()
    return response


def _timeout_s(text: str | None) -> float:
    """Return the seconds of X-Request-Timeout. Raises InvalidRequest."""
    if text is None:
        return math.inf
    if not _SECONDS.fullmatch(text.strip()) or float(text) <= 0:
        raise InvalidRequest(
            f"`X-Request-Timeout` is {text[:32]!r}; it must be seconds, such as 30 or 2.5", param="X-Request-Timeout"
        )
    return float(text)


def _route(request: web.Request) -> str:
    """Return the path as it was registered; all that are not registered count as one."""
    resource = request.match_info.route.resource
    return "other" if resource is None else resource.canonical


def _account(service: FrontService, request: web.Request, record: RequestRecord, status: int) -> None:
    if record.is_self_test:
        return
    route = _route(request)
    metrics = service.metrics
    metrics.inc("ascendd_http_responses_total", labels=(route, str(status)))
    duration_s = time.monotonic() - record.received_at
    fields: dict[str, object] = {}
    generation = record.generation
    if generation is not None:
        usage = generation.usage
        if record.error_code is None:
            reasons = generation.finish_reasons
            reason = "length" if "length" in reasons else "stop"
        elif record.error_code == RequestAborted.code:
            reason = "abort"
            metrics.inc("ascendd_request_aborts_total")
        else:
            reason = "error"
        metrics.inc("ascendd_requests_total", labels=(reason,))
        metrics.observe("ascendd_request_duration_seconds", duration_s)
        metrics.observe("ascendd_request_prompt_tokens", usage.prompt_tokens)
        metrics.observe("ascendd_request_generation_tokens", usage.completion_tokens)
        cached = usage.prompt_tokens_details.cached_tokens
        kinds = ("prompt", usage.prompt_tokens - cached), ("cached", cached), ("generated", usage.completion_tokens)
        for kind, number in kinds:
            metrics.inc("ascendd_model_tokens_total", max(0, number), (record.model or service.model_name, kind))
        metrics.observe("ascendd_request_choices", generation.num_choices)
        if record.credential is not None:
            service.key_limits.charge(record.credential, usage.total_tokens)
        fields = {
            "finish_reason": reason,
            "prompt_tokens": usage.prompt_tokens,
            "cached_tokens": usage.prompt_tokens_details.cached_tokens,
            "completion_tokens": usage.completion_tokens,
        }
        if generation.first_token_s is not None:
            fields["first_token_s"] = round(generation.first_token_s, 4)
    if record.trace is not None and route not in _PROBES:
        fields["trace_id"] = record.trace.trace_id
        _trace(service, request, record, status, route)
    if record.credential is not None:
        fields["key"] = record.credential.name
    if record.error_code is not None:
        fields["code"] = record.error_code
    if record.note is not None:
        fields["note"] = record.note
    log = _log.debug if route in _PROBES else _log.info
    log(
        "api.request",
        method=request.method,
        route=route,
        status=status,
        duration_s=round(duration_s, 4),
        request_id=record.request_id,
        **fields,
    )


def _trace(service: FrontService, request: web.Request, record: RequestRecord, status: int, route: str) -> None:
    """Hand the request to the tracer; names as OpenTelemetry's conventions for HTTP and generative models have them."""
    assert record.trace is not None
    attributes: dict[str, str | int | float] = {
        "http.request.method": request.method,
        "http.route": route,
        "http.response.status_code": status,
        "ascendd.request_id": record.request_id,
    }
    first_token_s = None
    if record.generation is not None:
        usage, first_token_s = record.generation.usage, record.generation.first_token_s
        attributes |= {
            "gen_ai.request.model": record.model or service.model_name,
            "gen_ai.usage.input_tokens": usage.prompt_tokens,
            "gen_ai.usage.output_tokens": usage.completion_tokens,
            "ascendd.cached_tokens": usage.prompt_tokens_details.cached_tokens,
        }
    name = f"{request.method} {route}"
    span = RequestSpan(name, record.received_at, time.monotonic(), first_token_s, attributes, record.error_code)
    service.tracer.record(record.trace, span)
