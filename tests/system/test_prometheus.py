"""A real Prometheus scrapes a real daemon, and promtool reads its page."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, TypeVar

import pytest
from loopback_ports import free_ports

pytestmark = pytest.mark.system

TINY_MODEL = Path(__file__).resolve().parent / "tiny_qwen2.py"
# Names that people's dashboards ask for; the colon is theirs, and promtool says so of each.
VLLM_NAMES = {
    "vllm:e2e_request_latency_seconds", "vllm:generation_tokens_total", "vllm:gpu_cache_usage_ratio",
    "vllm:inter_token_latency_seconds", "vllm:iteration_tokens_total", "vllm:kv_cache_usage_perc",
    "vllm:num_preemptions_total", "vllm:num_requests_running", "vllm:num_requests_waiting",
    "vllm:prefix_cache_hits_total", "vllm:prefix_cache_queries_total", "vllm:prompt_tokens_total",
    "vllm:request_decode_time_seconds", "vllm:request_generation_tokens", "vllm:request_params_n",
    "vllm:request_prefill_time_seconds", "vllm:request_prompt_tokens", "vllm:request_queue_size",
    "vllm:request_queue_time_seconds", "vllm:request_success_total", "vllm:time_per_output_token_seconds",
    "vllm:time_to_first_token_seconds",
}  # fmt: skip

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
GATEWAY_TRACE = "0af7651916cd43dd8448eb211c80319c"
T = TypeVar("T")


@dataclass(frozen=True)
class Daemon:
    """Ports of a running instance."""

    api_port: int
    metrics_port: int
    spans: list[dict[str, Any]]


def fetch(url: str, body: dict[str, object] | None = None, headers: dict[str, str] | None = None) -> str:
    """GET, or POST `body` as JSON."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json", **(headers or {})})
    with urllib.request.urlopen(request, timeout=120) as response:
        return str(response.read().decode())


def eventually(ask: Callable[[], T | None], what: str, timeout_s: float = 90.0) -> T:
    """Call `ask` until it returns something; connection errors count as nothing."""
    deadline, last = time.monotonic() + timeout_s, "nothing"
    while time.monotonic() < deadline:
        try:
            answer = ask()
        except OSError as error:
            answer, last = None, str(error)
        if answer is not None:
            return answer
        time.sleep(0.2)
    raise AssertionError(f"{what} did not happen within {timeout_s:g} s; last: {last}")


@contextmanager
def running(command: list[str], log_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run `command` for the length of the block, then stop it with SIGTERM."""
    with log_path.open("wb") as log, subprocess.Popen(command, stdout=log, stderr=log) as process:
        try:
            yield process
        finally:
            process.terminate()
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()


@contextmanager
def collector(spans: list[dict[str, Any]]) -> Iterator[int]:
    """An OTLP collector that puts what it gets into `spans`; yields its port."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            for resource in body["resourceSpans"]:
                for scope in resource["scopeSpans"]:
                    spans.extend(scope["spans"])
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_args: object) -> None:
            """Stay silent."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_port
        server.shutdown()


@pytest.fixture(scope="module")
def stack() -> Iterator[ExitStack]:
    """What ends with the module."""
    with ExitStack() as own:
        yield own


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory, stack: ExitStack) -> Iterator[Daemon]:
    """An instance with a tiny model that has answered one request."""
    folder = tmp_path_factory.mktemp("prometheus")
    subprocess.run(
        [sys.executable, str(TINY_MODEL), str(folder / "tiny")], check=True, capture_output=True, timeout=120
    )
    api_port, metrics_port = free_ports(2)
    spans: list[dict[str, Any]] = []
    collector_port = stack.enter_context(collector(spans))
    (folder / "instance.yaml").write_text(
        f"model: {{path: {folder / 'tiny'}}}\n"
        f"listen: {{port: {api_port}}}\n"
        f"metrics: {{port: {metrics_port}}}\n"
        "engine: {device: cpu, max_num_blocks: 64, num_threads: 1, max_num_seqs: 16}\n"
        "tuning: {enabled: true, policy: queue, min_num_seqs: 8, interval_s: 1}\n"
        f"tracing: {{endpoint: 'http://127.0.0.1:{collector_port}/v1/traces', sample_ratio: 0}}\n"
        "cost: {price_per_kwh: 0.5, hardware_price: 8766, amortisation_years: 1, power_w: 400}\n"
    )
    command = [sys.executable, "-m", "ascendd", "run", "--instance", "prom", "--config", str(folder / "instance.yaml")]
    with running(command, folder / "daemon.log") as process:
        base = f"http://127.0.0.1:{api_port}"

        def ready() -> str | None:
            assert process.poll() is None, (folder / "daemon.log").read_text()
            return fetch(f"{base}/readyz")

        eventually(ready, "/readyz")
        body = {"model": "tiny", "prompt": "hello", "max_tokens": 8, "temperature": 0}
        fetch(f"{base}/v1/completions", body, {"traceparent": f"00-{TRACE}-00f067aa0ba902b7-01"})
        yield Daemon(api_port, metrics_port, spans)


@pytest.fixture(scope="module")
def prometheus(daemon: Daemon, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], list[float]]]:
    """A Prometheus that scrapes the daemon once a second; a function from PromQL to the values of its answer."""
    if shutil.which("prometheus") is None:
        pytest.skip("prometheus is not installed; on Debian: apt install prometheus")
    folder = tmp_path_factory.mktemp("server")
    (port,) = free_ports(1)
    (folder / "prometheus.yml").write_text(
        "global: {scrape_interval: 1s, scrape_timeout: 1s}\n"
        "scrape_configs:\n"
        "  - job_name: ascendd\n"
        f"    static_configs: [{{targets: ['127.0.0.1:{daemon.metrics_port}']}}]\n"
    )
    command = [
        "prometheus", f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data",
        f"--web.listen-address=127.0.0.1:{port}", "--log.level=warn",
    ]  # fmt: skip

    def query(expression: str) -> list[float]:
        url = f"http://127.0.0.1:{port}/api/v1/query?" + urllib.parse.urlencode({"query": expression})
        answer = json.loads(fetch(url))
        assert answer["status"] == "success", answer
        return [float(series["value"][1]) for series in answer["data"]["result"]]

    with running(command, folder / "prometheus.log"):
        eventually(lambda: query("up") or None, "the first scrape")
        yield query


def test_prometheus_sees_the_instance_up(prometheus: Callable[[str], list[float]]) -> None:
    """The scrape succeeds: `up` is 1, and the instance says of itself that it is ready."""
    assert eventually(lambda: prometheus("up == 1") or None, "up == 1") == [1.0]
    assert eventually(lambda: prometheus("ascendd_instance_ready == 1") or None, "readiness") == [1.0]


def test_prometheus_stores_what_the_request_caused(prometheus: Callable[[str], list[float]]) -> None:
    """The tokens of the one request arrive as a counter, under our name and under vLLM's, each counted once."""
    ours = eventually(lambda: prometheus("ascendd_engine_generation_tokens_total > 8") or None, "generated tokens")
    theirs = eventually(lambda: prometheus("vllm:generation_tokens_total > 8") or None, "generated tokens, vLLM's name")

    # 8 for the request and 1 for the self-test at the start
    assert ours == theirs == [9.0]
    assert prometheus("sum(ascendd_requests_total)") == [1.0]


def test_every_figure_has_its_age(prometheus: Callable[[str], list[float]]) -> None:
    """The page, what each process told, and what is read now and then: processes, their memory, logs and power."""
    ages = (
        "ascendd_snapshot_age_seconds < 60",
        'ascendd_stats_age_seconds{role=~"engine|api"} < 60',
        'ascendd_reading_age_seconds{what=~"processes|power"} < 120',
    )

    seen = [eventually(lambda e=age: prometheus(e) or None, age) for age in ages]  # type: ignore[misc]

    assert [len(values) for values in seen] == [1, 2, 2]


def test_alert_expressions_have_values(prometheus: Callable[[str], list[float]]) -> None:
    """The three classic alert conditions can be asked, and none of them holds on an idle instance."""
    for expression in (
        "vllm:gpu_cache_usage_ratio < 0.85",
        "vllm:request_queue_size < 32",
        "rate(vllm:time_per_output_token_seconds_count[1m]) >= 0",
        "histogram_quantile(0.95, sum(vllm:time_to_first_token_seconds_bucket) by (le)) >= 0",
    ):
        assert eventually(lambda e=expression: prometheus(e) or None, expression)  # type: ignore[misc]


def test_promtool_finds_only_the_names_of_others(daemon: Daemon) -> None:
    """Promtool has nothing to say of ascendd_ metrics; of vLLM's names it says that they have a colon, and no more."""
    if shutil.which("promtool") is None:
        pytest.skip("promtool is not installed; on Debian: apt install prometheus")
    page = fetch(f"http://127.0.0.1:{daemon.metrics_port}/metrics")

    done = subprocess.run(
        ["promtool", "check", "metrics"], input=page, capture_output=True, text=True, timeout=120, check=False
    )

    findings = set((done.stdout + done.stderr).strip().splitlines())
    suffix = 'vllm:iteration_tokens_total non-counter metrics should not have "_total" suffix'
    assert findings == {f"{name} metric names should not contain ':'" for name in VLLM_NAMES} | {suffix}
    assert "ascendd_engine_generation_tokens_total" in page


def test_promtool_parses_the_page(daemon: Daemon) -> None:
    """Without the names of others, promtool ends with 0: the page is well-formed."""
    if shutil.which("promtool") is None:
        pytest.skip("promtool is not installed; on Debian: apt install prometheus")
    page = fetch(f"http://127.0.0.1:{daemon.metrics_port}/metrics")
    ours = "".join(line for line in page.splitlines(keepends=True) if "vllm:" not in line)

    done = subprocess.run(
        ["promtool", "check", "metrics"], input=ours, capture_output=True, text=True, timeout=120, check=False
    )

    assert (done.returncode, done.stdout + done.stderr) == (0, "")


def test_tuning_changes_the_batch_of_a_running_engine(prometheus: Callable[[str], list[float]]) -> None:
    """With nobody waiting, the queue policy lowers the batch of 16 to its least, 8, in the engine and without a restart."""
    assert eventually(lambda: prometheus("ascendd_engine_sequence_limit == 8") or None, "the lower limit") == [8.0]

    assert prometheus('ascendd_tuning_changes_total{direction="down"}') == [1.0]
    assert prometheus("sum(ascendd_child_restarts_total) or vector(0)") == [0.0]


def test_tune_explains_the_change_and_lacks_requests_for_advice(
    daemon: Daemon, prometheus: Callable[[str], list[float]]
) -> None:
    """`ascendd tune` of the running instance: the change from 16 to 8 with its reason, and no advice from one request."""
    eventually(lambda: prometheus("ascendd_engine_sequence_limit == 8") or None, "the lower limit")

    done = subprocess.run(
        [sys.executable, "-m", "ascendd", "tune", "prom", "--json"],
        capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    facts = json.loads(done.stdout)

    assert [(c["max_num_seqs"], c["reason"]) for c in facts["changes"]] == [
        (8, "0 sequences wait, fewer than 8: max_num_seqs 16 -> 8")
    ]
    assert (facts["max_num_seqs"], facts["num_requests"], facts["advice"]) == (8, 1, [])


def test_tokens_have_a_price(daemon: Daemon, prometheus: Callable[[str], list[float]]) -> None:
    """400 W at 0.5 a kWh and 1 an hour for the hardware are 1.2 an hour, and the one model that was asked bears it."""
    assert eventually(lambda: prometheus("ascendd_cost_per_million_tokens > 0") or None, "a price")

    done = subprocess.run(
        [sys.executable, "-m", "ascendd", "cost", "prom", "--json"],
        capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    facts = json.loads(done.stdout)
    (model,) = facts["models"]

    assert facts["cost_per_hour"] == pytest.approx(1.2)
    assert (facts["power_w"], facts["power_source"], model["model"]) == (400.0, "configured", "tiny")
    assert model["generated_tokens"] == 8
    expected = 1.2 * facts["window_s"] / 3600 / 8 * 1e6
    assert model["cost_per_million_tokens"] == pytest.approx(expected, rel=0.02)
    assert facts["what_if"][0]["cost_per_million"] == pytest.approx(model["cost_per_million_tokens"], rel=0.02)
    assert any("batch 128" in row["what"] for row in facts["what_if"])
    assert prometheus('ascendd_power_watts{source="configured"}') == [400.0]


def of_trace(daemon: Daemon, trace_id: str) -> list[dict[str, Any]] | None:
    """Return the spans of a trace once all three have come."""
    spans = [span for span in list(daemon.spans) if span["traceId"] == trace_id]
    return spans if len(spans) >= 3 else None


def test_a_collector_gets_the_request_in_the_trace_of_its_client(daemon: Daemon) -> None:
    """The one request with a traceparent is three spans of that trace; others are not sampled at a ratio of 0."""
    spans = eventually(lambda: of_trace(daemon, TRACE), "three spans")
    server = next(span for span in spans if span["parentSpanId"] == "00f067aa0ba902b7")
    values = {item["key"]: next(iter(item["value"].values())) for item in server["attributes"]}

    assert {span["traceId"] for span in daemon.spans} <= {TRACE, GATEWAY_TRACE}
    assert [span["name"] for span in spans] == ["POST /v1/completions", "first token", "decode"]
    assert values["gen_ai.request.model"] == "tiny"
    assert values["gen_ai.usage.output_tokens"] == "8"
    assert values["http.response.status_code"] == "200"
    assert "hello" not in json.dumps(spans)


def test_a_trace_goes_through_the_gateway(daemon: Daemon, tmp_path: Path) -> None:
    """A client's traceparent reaches the instance behind a gateway: its spans are of that trace, below the client's."""
    config = {
        "listen": {"port": 0},
        "metrics": {"port": 0},
        "instances": [{"name": "tiny", "url": f"http://127.0.0.1:{daemon.api_port}"}],
        "rules": [{"name": "all", "to": ["tiny"]}],
    }
    (tmp_path / "gateway.yaml").write_text(json.dumps(config))
    command = [sys.executable, "-m", "ascendd", "gateway", "--config", str(tmp_path / "gateway.yaml")]
    with running(command, tmp_path / "gateway.log") as process:

        def port() -> int | None:
            assert process.poll() is None, (tmp_path / "gateway.log").read_text()
            lines = (tmp_path / "gateway.log").read_text().splitlines()
            found = [json.loads(line) for line in lines if '"gateway.listening"' in line and line.endswith("}")]
            return int(found[0]["port"]) if found else None

        base = f"http://127.0.0.1:{eventually(port, 'a gateway that listens')}"
        eventually(lambda: fetch(f"{base}/readyz"), "the instance, seen by the gateway")
        body = {"model": "auto", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 4}
        fetch(f"{base}/v1/chat/completions", body, {"traceparent": f"00-{GATEWAY_TRACE}-b7ad6b7169203331-01"})

    spans = eventually(lambda: of_trace(daemon, GATEWAY_TRACE), "three spans")
    server, first, decode = spans

    assert [span["name"] for span in spans] == ["POST /v1/chat/completions", "first token", "decode"]
    assert server["parentSpanId"] == "b7ad6b7169203331"
    assert {first["parentSpanId"], decode["parentSpanId"]} == {server["spanId"]}
    starts, ends = ([int(span[f"{what}TimeUnixNano"]) for span in spans] for what in ("start", "end"))
    assert starts[0] == starts[1] <= ends[1] == starts[2] <= ends[2] <= ends[0]
