"""The page that Prometheus scrapes."""

from __future__ import annotations

import shutil
import socket
import subprocess
import threading
import urllib.error
import urllib.request

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from ascendd.ipc.messages import Sample
from ascendd.telemetry.exporter import MetricsServer, SnapshotCollector
from ascendd.telemetry.metrics import ALIASES, METRICS, MetricKind


def every_metric():
    """Return one sample of each declared metric."""
    samples = []
    for number, spec in enumerate(METRICS):
        labels = tuple("x" for _ in spec.labels)
        buckets = tuple(range(len(spec.buckets) + 1)) if spec.kind is MetricKind.HISTOGRAM else ()
        samples.append(Sample(spec.name, float(number), labels, buckets))
    return [sample for sample in samples if sample.name != "ascendd_snapshot_age_seconds"]


def page(collector):
    """Return the exposition of `collector`."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(collector)
    return generate_latest(registry).decode()


def scraped(collector):
    """Return the page of `collector` as values by name and labels."""
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(page(collector))
        for sample in family.samples
    }


def test_every_metric_and_alias_is_on_the_page():
    """Each declared metric is exported under its name, and each alias beside its source."""
    collector = SnapshotCollector("qwen2")

    collector.replace(every_metric())
    text = page(collector)

    for name in [spec.name for spec in METRICS] + [alias.name for alias in ALIASES]:
        assert f"# TYPE {name} " in text


def test_aliases_carry_the_value_of_their_source():
    """A compatibility name shows the very figure it stands for, with vLLM's model_name label."""
    collector = SnapshotCollector("qwen2")

    collector.replace(
        [Sample("ascendd_requests_total", 3.0, ("stop",)), Sample("ascendd_engine_sequences_waiting", 2.0)]
    )
    values = scraped(collector)

    assert values["ascendd_requests_total", (("finish_reason", "stop"),)] == 3
    assert values["vllm:request_success_total", (("finished_reason", "stop"), ("model_name", "qwen2"))] == 3
    assert values["vllm:num_requests_waiting", (("model_name", "qwen2"),)] == 2
    assert values["vllm:request_queue_size", (("model_name", "qwen2"),)] == 2


def test_histograms_are_cumulative():
    """Counts per bucket become Prometheus' cumulative ones, with +Inf, _sum and _count."""
    collector = SnapshotCollector("qwen2")
    buckets = (1, 2, *[0] * 14, 4)

    collector.replace([Sample("ascendd_request_queue_seconds", 9.5, (), buckets)])
    values = scraped(collector)

    assert values["ascendd_request_queue_seconds_bucket", (("le", "0.005"),)] == 1
    assert values["ascendd_request_queue_seconds_bucket", (("le", "0.01"),)] == 3
    assert values["ascendd_request_queue_seconds_bucket", (("le", "+Inf"),)] == 7
    assert values["ascendd_request_queue_seconds_count", ()] == 7
    assert values["ascendd_request_queue_seconds_sum", ()] == 9.5


def test_the_age_grows_while_no_snapshot_comes():
    """The age counts from when the supervisor made the snapshot, not from when it was shown."""
    collector = SnapshotCollector("qwen2")

    collector.replace([], age_s=12.0)

    assert scraped(collector)["ascendd_snapshot_age_seconds", ()] >= 12.0


def test_promtool_finds_nothing_in_our_names():
    """The lint of promtool is clean for every ascendd_ name; for the compatibility names its findings are known."""
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not installed (Debian package prometheus)")
    collector = SnapshotCollector("qwen2")
    collector.replace(every_metric())

    done = subprocess.run(
        [promtool, "check", "metrics"], input=page(collector), capture_output=True, text=True, check=False
    )

    findings = {tuple(line.split(" ", 1)) for line in (done.stdout + done.stderr).splitlines()}
    colon = "metric names should not contain ':'"
    assert findings == {(alias.name, colon) for alias in ALIASES}


@pytest.fixture
def url():
    """Serve one sample and return the address."""
    listener = socket.create_server(("127.0.0.1", 0))
    listener.setblocking(False)
    collector = SnapshotCollector("qwen2")
    collector.replace([Sample("ascendd_engine_steps_total", 4.0)])
    server = MetricsServer(listener, collector)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    server.shutdown()
    thread.join()
    server.server_close()


def test_metrics_are_served_on_an_inherited_listener(url):
    """GET /metrics on the socket that somebody else bound answers the page."""
    with urllib.request.urlopen(f"{url}/metrics", timeout=5) as response:
        assert response.status == 200
        assert b"ascendd_engine_steps_total 4.0" in response.read()


@pytest.mark.parametrize(
    ("path", "method", "status"), [("/", "GET", 404), ("/other", "GET", 404), ("/metrics", "POST", 405)]
)
def test_nothing_else_is_served(url, path, method, status):
    """Other paths are 404 and other methods 405."""
    with pytest.raises(urllib.error.HTTPError) as caught:
        urllib.request.urlopen(urllib.request.Request(url + path, method=method), timeout=5)

    assert caught.value.code == status
    caught.value.close()
