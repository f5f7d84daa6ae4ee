"""
The `_metrics` role: serves /metrics from the supervisor's last snapshot, on a loopback listener of its own.

It outlives the API and the engine, so a scrape tells of their death. Only the age of the snapshot is measured here.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import socket
import socketserver
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from prometheus_client import CollectorRegistry, make_wsgi_app
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from ascendd.errors import ListenFailed
from ascendd.ipc.channel import BlockingChannel
from ascendd.ipc.child import ChildArguments, receive_config, run_role
from ascendd.ipc.messages import ControlMessage, Heartbeat, MetricsSnapshot, Ready, Role, Sample, Shutdown
from ascendd.telemetry import log
from ascendd.telemetry.metrics import ALIASES, SPECS, Alias, MetricKind, MetricSpec

_AGE = SPECS["ascendd_snapshot_age_seconds"]
_HEARTBEAT_S = 1.0
_CLIENT_TIMEOUT_S = 10.0


class SnapshotCollector(Collector):
    """The last snapshot as metric families, built once per snapshot; the age is computed at every scrape."""

    def __init__(self, model_name: str) -> None:
        self._model_name = model_name
        self._families: list[Metric] = []
        self._received_at_s: float | None = None

    def replace(self, samples: Sequence[Sample], age_s: float = 0.0) -> None:
        """Show `samples` from now on; they were `age_s` seconds old when they came."""
        self._families = list(families(samples, self._model_name))
        self._received_at_s = time.monotonic() - age_s

    def collect(self) -> Iterator[Metric]:
        """Yield the families of the snapshot and its age; nothing before the first one came."""
        if self._received_at_s is None:
            return
        age = GaugeMetricFamily(_AGE.name, _AGE.help)
        age.add_metric([], time.monotonic() - self._received_at_s)
        yield from self._families
        yield age


def families(samples: Iterable[Sample], model_name: str) -> Iterator[Metric]:
    """Yield one family per metric among `samples`, then the aliases, which carry vLLM's label `model_name`."""
    by_name = {
        name: list(group) for name, group in itertools.groupby(sorted(samples, key=_name), key=_name) if name in SPECS
    }
    for name, group in by_name.items():
        yield _family(SPECS[name], group)
    for alias in ALIASES:
        if alias.source in by_name:
            yield _family(_alias_spec(alias), by_name[alias.source], (model_name,))


def _name(sample: Sample) -> str:
    return sample.name


def _alias_spec(alias: Alias) -> MetricSpec:
    source = SPECS[alias.source]
    assert len(alias.labels) == len(source.labels)
    return MetricSpec(alias.name, source.kind, alias.help, ("model_name", *alias.labels), source.buckets)


def _family(spec: MetricSpec, samples: Iterable[Sample], prefix: tuple[str, ...] = ()) -> Metric:
    if spec.kind is MetricKind.HISTOGRAM:
        bounds = [*map(str, map(float, spec.buckets)), "+Inf"]
        histogram = HistogramMetricFamily(spec.name, spec.help, labels=spec.labels)
        for sample in samples:
            cumulative = list(zip(bounds, itertools.accumulate(map(float, sample.buckets)), strict=True))
            histogram.add_metric([*prefix, *sample.labels], cumulative, sum_value=sample.value)
        return histogram
    scalar: CounterMetricFamily | GaugeMetricFamily
    if spec.kind is MetricKind.COUNTER:
        scalar = CounterMetricFamily(spec.name, spec.help, labels=spec.labels)
    else:
        scalar = GaugeMetricFamily(spec.name, spec.help, labels=spec.labels)
    for sample in samples:
        scalar.add_metric([*prefix, *sample.labels], sample.value)
    return scalar


class _Handler(WSGIRequestHandler):
    timeout = _CLIENT_TIMEOUT_S

    def log_message(self, *_args: object) -> None:
        """Stay silent: a scrape every few seconds is no event."""


class MetricsServer(socketserver.ThreadingMixIn, WSGIServer):
    """A threaded WSGI server on a socket that somebody else bound."""

    daemon_threads = True

    def __init__(self, listener: socket.socket, collector: Collector) -> None:
        super().__init__(listener.getsockname()[:2], _Handler, bind_and_activate=False)
        self.socket.close()
        self.socket = listener
        self.server_name, self.server_port = listener.getsockname()[:2]
        self.setup_environ()
        registry = CollectorRegistry(auto_describe=False)
        registry.register(collector)
        self._exposition = make_wsgi_app(registry)
        self.set_app(self._route)

    def handle_error(self, _request: Any, _client_address: Any) -> None:
        """Log a client that broke off instead of printing a traceback."""
        log.get_logger("metrics").debug("metrics.client_failed", error=str(sys.exc_info()[1]))

    def _route(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        if environ.get("PATH_INFO") != "/metrics":
            return _plain(start_response, "404 Not Found", b"the metrics are at /metrics\n")
        if environ.get("REQUEST_METHOD") != "GET":
            return _plain(start_response, "405 Method Not Allowed", b"GET only\n", ("Allow", "GET"))
        # Prometheus asks for OpenMetrics first, and there the library writes `_` for the `:` of vLLM's names.
        classic = {**environ, "HTTP_ACCEPT": "text/plain; version=0.0.4"}
        body: Iterable[bytes] = self._exposition(classic, start_response)
        return body


def _plain(start_response: Any, status: str, body: bytes, *headers: tuple[str, str]) -> list[bytes]:
    start_response(status, [("Content-Type", "text/plain"), ("Content-Length", str(len(body))), *headers])
    return [body]


def main(argv: Sequence[str]) -> int:
    """Run the metrics process; it ends with the control link."""
    return run_role(Role.METRICS, argv, _serve)


def _serve(arguments: ChildArguments, channel: BlockingChannel[ControlMessage]) -> int:
    config, _episode = receive_config(channel, Role.METRICS)
    log.configure(config.log, role=Role.METRICS.value)
    if arguments.listen_fd is None:
        raise ListenFailed("the metrics process got no listener")
    os.set_inheritable(arguments.listen_fd, False)
    listener = socket.socket(fileno=arguments.listen_fd)
    # The supervisor's listener does not block; here a thread of its own waits in select and accepts.
    collector = SnapshotCollector(config.model.name or os.path.basename(config.model.path))  # noqa: PTH119 - a label, no file
    server = MetricsServer(listener, collector)
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 3600.0}, daemon=True, name="http").start()
    channel.send(Ready({"port": server.server_port}))
    due_s = time.monotonic()
    while True:
        now_s = time.monotonic()
        if now_s >= due_s:
            channel.send(Heartbeat())
            due_s = now_s + _HEARTBEAT_S
        match channel.recv(max(0.0, due_s - now_s)):
            case MetricsSnapshot(samples, unix_time_s):
                collector.replace(samples, max(0.0, time.time() - unix_time_s))
            case Shutdown():
                with contextlib.suppress(OSError):
                    listener.close()
                return 0
