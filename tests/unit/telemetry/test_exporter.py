"""The page that Prometheus scrapes."""

from __future__ import annotations

import shutil
import socket
import subprocess
import threading
import time
import urllib.error
import urllib.request

import pytest
from prometheus_client.parser import text_string_to_metric_families

from ascendd.ipc.messages import Sample
from ascendd.telemetry.compatibility import ALIASES
from ascendd.telemetry.exporter import MetricsServer
from ascendd.telemetry.exposition import Exposition
from ascendd.telemetry.metric_spec import MetricKind
from ascendd.telemetry.metrics import EXPORTER_METRICS, METRICS, SPECS
from ascendd.telemetry.scrape_limit import ScrapeLimit


def every_metric():
    """Return one sample of each declared metric."""
    samples = []
    for number, spec in enumerate(METRICS):
        labels = tuple("x" for _ in spec.labels)
        buckets = tuple(range(len(spec.buckets) + 1)) if spec.kind is MetricKind.HISTOGRAM else ()
        samples.append(Sample(spec.name, float(number), labels, buckets))
    made_by_the_page = {spec.name for spec in EXPORTER_METRICS}
    return [sample for sample in samples if sample.name not in made_by_the_page]


def page(exposition):
    """Return the text of `exposition`."""
    return exposition.render().decode()


def scraped(exposition):
    """Return the page of `exposition` as values by name and labels."""
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(page(exposition))
        for sample in family.samples
    }


def test_every_metric_and_alias_is_on_the_page():
    """Each declared metric is exported under its name, and each alias beside its source."""
    exposition = Exposition("qwen2")

    exposition.replace(every_metric())
    text = page(exposition)

    for name in [spec.name for spec in METRICS] + [alias.name for alias in ALIASES]:
        assert f"# TYPE {name} " in text


def test_aliases_carry_the_value_of_their_source():
    """A compatibility name shows the very figure it stands for, with vLLM's model_name label."""
    exposition = Exposition("qwen2")

    exposition.replace(
        [Sample("ascendd_requests_total", 3.0, ("stop",)), Sample("ascendd_engine_sequences_waiting", 2.0)]
    )
    values = scraped(exposition)

    assert values["ascendd_requests_total", (("finish_reason", "stop"),)] == 3
    common = (("engine", "0"), ("model_name", "qwen2"))
    assert values["vllm:request_success_total", (common[0], ("finished_reason", "stop"), common[1])] == 3
    assert values["vllm:num_requests_waiting", common] == 2
    assert values["vllm:request_queue_size", common] == 2


def test_histograms_are_cumulative():
    """Counts per bucket become Prometheus' cumulative ones, with +Inf, _sum and _count."""
    exposition = Exposition("qwen2")
    buckets = (1, 2, *[0] * 14, 4)

    exposition.replace([Sample("ascendd_request_queue_seconds", 9.5, (), buckets)])
    values = scraped(exposition)

    assert values["ascendd_request_queue_seconds_bucket", (("le", "0.005"),)] == 1
    assert values["ascendd_request_queue_seconds_bucket", (("le", "0.01"),)] == 3
    assert values["ascendd_request_queue_seconds_bucket", (("le", "+Inf"),)] == 7
    assert values["ascendd_request_queue_seconds_count", ()] == 7
    assert values["ascendd_request_queue_seconds_sum", ()] == 9.5


def test_a_compatibility_histogram_counts_at_its_own_bounds():
    """An alias has vLLM's bounds, and at each of them exactly the count that ours has there."""
    exposition = Exposition("qwen2")
    bounds = SPECS["ascendd_request_duration_seconds"].buckets
    counts = tuple(range(1, len(bounds) + 2))

    exposition.replace([Sample("ascendd_request_duration_seconds", 9.5, (), counts)])
    values = scraped(exposition)

    ours = {
        dict(labels)["le"]: value
        for (name, labels), value in values.items()
        if name.startswith("ascendd_request_duration_seconds_b")
    }
    theirs = {
        dict(labels)["le"]: value
        for (name, labels), value in values.items()
        if name == "vllm:e2e_request_latency_seconds_bucket"
    }
    assert list(map(float, theirs))[:5] == [0.3, 0.5, 0.8, 1.0, 1.5]
    assert len(theirs) == 22
    assert theirs == {bound: ours[bound] for bound in theirs}
    assert theirs["+Inf"] == sum(counts)


def test_the_age_grows_while_no_snapshot_comes():
    """The age counts from when the supervisor made the snapshot, not from when it was shown."""
    exposition = Exposition("qwen2")

    exposition.replace([], age_s=12.0)

    assert scraped(exposition)["ascendd_snapshot_age_seconds", ()] >= 12.0


def test_the_age_of_each_process_counts_from_its_own_words():
    """What a process told 3 s before a snapshot that is 12 s old is 15 s old."""
    exposition = Exposition("qwen2")

    exposition.replace(
        [
            Sample("ascendd_stats_age_seconds", 3.0, ("engine",)),
            Sample("ascendd_reading_age_seconds", 4.0, ("power",)),
        ],
        age_s=12.0,
    )
    values = scraped(exposition)

    assert 15.0 <= values["ascendd_stats_age_seconds", (("role", "engine"),)] < 25.0
    assert 16.0 <= values["ascendd_reading_age_seconds", (("what", "power"),)] < 26.0


def test_a_page_is_rendered_once_for_each_snapshot(monkeypatch):
    """Between two snapshots a scrape renders only the ages again, whatever the number of scrapes."""
    from ascendd.telemetry import exposition as room

    rendered = []
    monkeypatch.setattr(
        room,
        "families",
        lambda samples, model, told=frozenset(), real=room.families: (
            rendered.append(len(list(samples))) or real([], model, told)
        ),
    )
    exposition = Exposition("qwen2")
    exposition.replace(every_metric())

    for _ in range(5):
        exposition.render()

    assert [count for count in rendered if count > 5] == [len(every_metric()) - 2]


def test_promtool_finds_nothing_in_our_names():
    """The lint of promtool is clean for every ascendd_ name; for the compatibility names its findings are known."""
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not installed (Debian package prometheus)")
    exposition = Exposition("qwen2")
    exposition.replace(every_metric())

    done = subprocess.run(
        [promtool, "check", "metrics"], input=page(exposition), capture_output=True, text=True, check=False
    )

    findings = {tuple(line.split(" ", 1)) for line in (done.stdout + done.stderr).splitlines()}
    colon = "metric names should not contain ':'"
    suffix = ("vllm:iteration_tokens_total", 'non-counter metrics should not have "_total" suffix')
    assert findings == {(alias.name, colon) for alias in ALIASES} | {suffix}


@pytest.fixture
def url():
    """Serve one sample and return the address."""
    listener = socket.create_server(("127.0.0.1", 0))
    listener.setblocking(False)
    exposition = Exposition("qwen2")
    exposition.replace([Sample("ascendd_engine_steps_total", 4.0)])
    server = MetricsServer(listener, exposition, ScrapeLimit(10.0))
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


def scrape(url):
    """GET /metrics; return the status, the Retry-After header and the text."""
    try:
        with urllib.request.urlopen(f"{url}/metrics", timeout=5) as response:
            return response.status, None, response.read().decode()
    except urllib.error.HTTPError as refusal:
        with refusal:
            return refusal.code, refusal.headers["Retry-After"], refusal.read().decode()


def test_scrapes_beyond_the_limit_are_429_and_counted(url):
    """Of 60 scrapes at once the first 20 are answered and later ones get 429; the page tells how many were refused."""
    answers = [scrape(url) for _ in range(60)]
    refusals = [answer for answer in answers if answer[0] != 200]
    time.sleep(0.3)  # the limit counts real seconds: a token must come back
    _, _, text = scrape(url)

    assert [status for status, _, _ in answers[:20]] == [200] * 20
    assert set(refusals) == {(429, "1", "too many scrapes, wait a second\n")}
    assert f"\nascendd_scrapes_refused_total {len(refusals):.1f}\n" in text


def test_the_limit_lets_two_seconds_worth_in_at_once():
    """A bucket of 10 a second admits 20 at one moment and 10 more after a second, and counts those it refused."""
    limit = ScrapeLimit(10.0)

    assert sum(limit.admit(100.0) for _ in range(60)) == 20
    assert sum(limit.admit(101.0) for _ in range(60)) == 10
    assert limit.num_refused == 90
