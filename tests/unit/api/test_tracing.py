"""Traces of requests: the client's context, spans in OTLP's JSON form, and a collector that fails."""

from __future__ import annotations

import asyncio
import json
import re

import pytest
from aiohttp import web

from ascendd.api.tracing import RequestSpan, TraceContext, Tracer, parse_traceparent
from ascendd.config.schema import TracingSection
from ascendd.telemetry.metrics import API_METRICS, MetricStore

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
REQUEST = RequestSpan(
    "POST /v1/chat/completions", 100.0, 103.5, 0.5,
    {"gen_ai.request.model": "qwen2", "gen_ai.usage.output_tokens": 7, "ratio": 0.5}, None,
)  # fmt: skip


@pytest.mark.parametrize(
    ("text", "context"),
    [
        (f"00-{TRACE}-{SPAN}-01", TraceContext(TRACE, SPAN, True)),
        (f"00-{TRACE}-{SPAN}-00", TraceContext(TRACE, SPAN, False)),
        (f"cc-{TRACE}-{SPAN}-03-what-comes-later", TraceContext(TRACE, SPAN, True)),
        (f"00-{TRACE}-{SPAN}-01-more", None),
        (f"ff-{TRACE}-{SPAN}-01", None),
        (f"00-{'0' * 32}-{SPAN}-01", None),
        (f"00-{TRACE}-{'0' * 16}-01", None),
        (f"00-{TRACE.upper()}-{SPAN}-01", None),
        ("", None),
        (None, None),
    ],
)
def test_a_traceparent_is_read_as_the_specification_says(text, context):
    """Ids and flags of version 00 and of later ones; anything else counts as none."""
    assert parse_traceparent(text) == context


def tracer(endpoint="http://127.0.0.1:9/v1/traces", **section):
    """Return a tracer and the store it counts in."""
    metrics = MetricStore(API_METRICS)
    return Tracer(TracingSection(endpoint=endpoint, **section), "qwen2", metrics), metrics


def test_a_request_without_context_begins_a_trace():
    """Ids of its own, no parent; all are kept at a ratio of 1 and none at 0."""
    contexts = [tracer()[0].context(None) for _ in range(20)]

    assert len({context.trace_id for context in contexts}) == 20
    assert all(re.fullmatch("[0-9a-f]{32}", c.trace_id) and not c.parent_id and c.is_sampled for c in contexts)
    assert not any(tracer(sample_ratio=0.0)[0].context(None).is_sampled for _ in range(20))


def counts(metrics):
    """Return spans by outcome."""
    return {s.labels[0]: s.value for s in metrics.samples() if s.name == "ascendd_trace_spans_total"}


async def collected(status, *contexts, span=REQUEST):
    """Send `span` in `contexts` to a collector that answers `status`; return what it got and the counts."""
    bodies = []

    async def take(request):
        bodies.append((request.content_type, json.loads(await request.read())))
        return web.Response(status=status)

    app = web.Application()
    app.router.add_post("/v1/traces", take)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = runner.addresses[0][1]
    traces, metrics = tracer(f"http://127.0.0.1:{port}/v1/traces")
    for context in contexts:
        traces.record(context, span)
    task = asyncio.create_task(traces.run())
    await asyncio.sleep(0)
    task.cancel()  # the end of the process sends what waits
    with pytest.raises(asyncio.CancelledError):
        await task
    await runner.cleanup()
    return bodies, counts(metrics)


def test_a_collector_gets_the_request_and_its_two_parts():
    """One server span below the client's, and below it the time to the first token and the decoding."""
    ((kind, body),), told = asyncio.run(collected(200, TraceContext(TRACE, SPAN, True)))
    (resource,) = body["resourceSpans"]
    (scope,) = resource["scopeSpans"]
    server, first, decode = scope["spans"]

    assert kind == "application/json"
    assert {"key": "service.name", "value": {"stringValue": "ascendd"}} in resource["resource"]["attributes"]
    assert (server["traceId"], server["parentSpanId"], server["kind"], server["status"]) == (TRACE, SPAN, 2, {})
    assert {"key": "gen_ai.usage.output_tokens", "value": {"intValue": "7"}} in server["attributes"]
    assert {"key": "ratio", "value": {"doubleValue": 0.5}} in server["attributes"]
    assert [part["parentSpanId"] for part in (first, decode)] == [server["spanId"]] * 2
    lengths = [int(s["endTimeUnixNano"]) - int(s["startTimeUnixNano"]) for s in (server, first, decode)]
    assert [round(length / 1e9, 3) for length in lengths] == [3.5, 0.5, 3.0]
    assert told == {"sent": 3.0}


def test_what_the_client_does_not_sample_is_not_sent():
    """A context whose flag is off has no span."""
    assert asyncio.run(collected(200, TraceContext(TRACE, SPAN, False))) == ([], {})


def test_a_failure_is_told_with_its_code():
    """The status of the span is an error, with the code that the client got."""
    span = REQUEST._replace(error="ASD-R06", first_token_s=None)
    ((_, body),), _told = asyncio.run(collected(200, TraceContext(TRACE, "", True), span=span))

    (only,) = body["resourceSpans"][0]["scopeSpans"][0]["spans"]
    assert only["status"] == {"code": 2, "message": "ASD-R06"}
    assert only["parentSpanId"] == ""


def test_a_collector_that_refuses_costs_spans_only():
    """Spans that it does not take are dropped and counted."""
    bodies, told = asyncio.run(collected(503, TraceContext(TRACE, SPAN, True)))

    assert len(bodies) == 1
    assert told == {"dropped": 3.0}


def test_spans_that_wait_are_bounded():
    """Beyond 4,096 waiting spans more are dropped and counted, so that a collector that is gone takes no memory."""
    traces, metrics = tracer()
    for _ in range(1400):
        traces.record(TraceContext(TRACE, SPAN, True), REQUEST)

    assert counts(metrics) == {"dropped": 1400 * 3 - 4096}


def test_without_a_collector_nothing_is_kept():
    """Tracing is off unless an endpoint is written."""
    traces, metrics = tracer(None)
    traces.record(TraceContext(TRACE, SPAN, True), REQUEST)

    assert not traces.is_on
    assert counts(metrics) == {}
