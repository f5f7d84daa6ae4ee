"""
Five minutes of a daemon under `ascendd bench` with a real Prometheus and the shipped rules. Prints what it saw.

    python tests/bench/prometheus_run.py [--load-s 200] [--quiet-s 100] [--record FILE]

A tiny model with 8 places serves 64 clients, so that the queue is above the alert's 32, then nobody. Seen must be: the
alert of the queue fires after its shipped 2 minutes, not before, and clears after the load; no other alert fires; what
the client counted is what the metrics counted, and its percentiles lie within a bucket of theirs. --record writes the
series as a test for promtool. Exit status 1 where something else is seen.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import subprocess
import sys
import tempfile
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from safetensors.numpy import load_file, save_file

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/tools"))
from loopback_ports import free_ports  # noqa: E402 - found through the line above

RULES = ROOT / "packaging/prometheus/ascendd-alerts.yml"
ALERT = "AscenddQueueLong"
STEP_S = 15
RECORDED = (
    "up", "ascendd_instance_ready", "ascendd_snapshot_age_seconds", "vllm:request_queue_size",
    "vllm:gpu_cache_usage_ratio", "vllm:time_per_output_token_seconds_sum", "vllm:time_per_output_token_seconds_count",
    "ascendd_request_inter_token_seconds_sum", "ascendd_request_inter_token_seconds_count", "ascendd_requests_total",
    "ascendd_child_restarts_total", "ascendd_degraded",
)  # fmt: skip
COMPARED = {
    "time_to_first_token": "ascendd_request_time_to_first_token_seconds",
    "inter_token": "ascendd_request_inter_token_seconds",
    "whole_request": "ascendd_request_duration_seconds",
}


def fetch(url: str, timeout_s: float = 60.0) -> str:
    """GET."""
    with urllib.request.urlopen(url, timeout=timeout_s) as answer:
        return str(answer.read().decode())


def await_true(ask: Callable[[], Any], what: str, patience_s: float = 300.0) -> Any:
    """Return the first true answer; connection errors are none."""
    deadline = time.monotonic() + patience_s
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError):
            if answer := ask():
                return answer
        time.sleep(0.5)
    raise SystemExit(f"{what} did not happen within {patience_s:g} s")


@contextlib.contextmanager
def running(*command: str, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run `command` for the length of the block."""
    with log.open("wb") as out, subprocess.Popen(command, stdout=out, stderr=out) as process:
        try:
            yield process
        finally:
            process.terminate()


class Prometheus:
    """Questions to a Prometheus on `port`."""

    def __init__(self, port: int) -> None:
        self._url = f"http://127.0.0.1:{port}/api/v1"

    def now(self, expression: str) -> list[dict[str, Any]]:
        """Return the series of an instant query."""
        return self._ask("query", query=expression)

    def over(self, expression: str, start_s: float, end_s: float) -> list[dict[str, Any]]:
        """Return the series of a range query."""
        return self._ask("query_range", query=expression, start=str(start_s), end=str(end_s), step=str(STEP_S))

    def _ask(self, path: str, **words: str) -> list[dict[str, Any]]:
        found = json.loads(fetch(f"{self._url}/{path}?{urllib.parse.urlencode(words)}"))["data"]["result"]
        return list(found)


def totals(page: str) -> dict[str, float]:
    """Return the values of a page by series."""
    return {
        line.rpartition(" ")[0]: float(line.rpartition(" ")[2])
        for line in page.splitlines()
        if line and not line.startswith("#")
    }


def bucket_of(before: dict[str, float], after: dict[str, float], name: str, percent: float) -> tuple[float, float]:
    """Return the bounds of the bucket that `percent` of the observations between two pages lie in."""
    start = f'{name}_bucket{{le="'
    rows = [
        (float(key[len(start) : -2]), value - before.get(key, 0.0))
        for key, value in after.items()
        if key.startswith(start)
    ]
    rows.sort()
    wanted, low = rows[-1][1] * percent / 100, 0.0
    for bound, count in rows:
        if count >= wanted:
            return low, bound
        low = bound
    raise AssertionError("the last bucket holds all")


def compare(report: dict[str, Any], before: dict[str, float], after: dict[str, float]) -> bool:
    """Print the client's figures beside the metrics' and return whether they agree."""

    def grown(start: str) -> float:
        return sum(value - before.get(key, 0.0) for key, value in after.items() if key.startswith(start))

    # Two requests of one token each teach the client how many tokens words are.
    counts = [
        ("requests", report["requests"]["succeeded"] + 2, grown("ascendd_requests_total{")),
        ("output tokens", report["tokens"]["output"] + 2, grown("ascendd_request_generation_tokens_sum")),
    ]
    fine = True
    for what, client, metrics in counts:
        print(f"{what:<30} client {client:>9} metrics {metrics:>9.0f}")
        fine &= client == metrics
    for key, name in COMPARED.items():
        bounds = sorted({float(k.split('"')[1]) for k in after if k.startswith(f"{name}_bucket")})
        for percent in (50, 90, 95, 99):
            client_s = report[key][f"p{percent}_s"]
            low, high = bucket_of(before, after, name, percent)
            index = bounds.index(high)
            wide_low = bounds[index - 2] if index >= 2 else 0.0
            wide_high = bounds[min(index + 1, len(bounds) - 1)]
            within = low < client_s <= high
            near = wide_low < client_s <= wide_high
            word = "same bucket" if within else "next bucket" if near else "ELSEWHERE"
            print(
                f"{key + f' p{percent}':<30} client {client_s * 1e3:>7.1f} ms metrics {low * 1e3:g}..{high * 1e3:g} ms  {word}"
            )
            fine &= near
    return fine


def speak_ascii(model: Path) -> None:
    """
    Have the random model choose among the first 94 tokens, which are the printable characters of ASCII.

    Others are pieces of characters: a client would see the text of several tokens at once, and no gap between them.
    """
    file = model / "model.safetensors"
    weights = dict(load_file(file))
    weights["lm_head.weight"] = weights["lm_head.weight"] * (np.arange(len(weights["lm_head.weight"])) < 94)[:, None]
    save_file({name: np.ascontiguousarray(one) for name, one in weights.items()}, file, metadata={"format": "pt"})


def record(prometheus: Prometheus, start_s: float, end_s: float, path: Path, fired: tuple[float, float]) -> None:
    """Write the series of the run, and what the alert did, as a test for promtool."""
    series = []
    for name in RECORDED:
        for found in prometheus.over(name, start_s, end_s):
            by_time = {int(float(at)): value for at, value in found["values"]}
            labels = {k: v for k, v in found["metric"].items() if k != "__name__"} | {"instance": "npu1:9475"}
            words = ",".join(f'{k}="{v}"' for k, v in sorted(labels.items()))
            times = range(int(start_s), int(end_s) + 1, STEP_S)
            values = " ".join(f"{float(by_time[at]):g}" if at in by_time else "_" for at in times)
            series.append({"series": f"{name}{{{words}}}", "values": values})
    depth = next(s for s in prometheus.over("vllm:request_queue_size", start_s, end_s))
    at = int((fired[0] + fired[1]) / 2 - start_s) // STEP_S * STEP_S
    value = float({int(float(t)) - int(start_s): v for t, v in depth["values"]}[at])
    rule = next(
        rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]
        if rule.get("alert") == ALERT
    )  # fmt: skip
    alerts = {
        "exp_labels": {"severity": "ticket", "instance": "npu1:9475", "job": "ascendd"} | _labels(depth["metric"]),
        "exp_annotations": {
            "summary": f"{value:g} sequences wait at npu1:9475",
            "action": rule["annotations"]["action"],
        },
    }
    quiet = [name for group in yaml.safe_load(RULES.read_text())["groups"] for r in group["rules"]
             if (name := r.get("alert")) and name != ALERT]  # fmt: skip
    tests = [
        {"eval_time": f"{max(0, int(fired[0] - start_s) - 45)}s", "alertname": ALERT, "exp_alerts": []},
        {"eval_time": f"{at}s", "alertname": ALERT, "exp_alerts": [alerts]},
        {"eval_time": f"{int(end_s - start_s) // STEP_S * STEP_S}s", "alertname": ALERT, "exp_alerts": []},
        *({"eval_time": f"{at}s", "alertname": name, "exp_alerts": []} for name in quiet),
    ]
    body = {
        "rule_files": ["../../packaging/prometheus/ascendd-alerts.yml"],
        "evaluation_interval": f"{STEP_S}s",
        "tests": [
            {"name": "a recorded run", "interval": f"{STEP_S}s", "input_series": series, "alert_rule_test": tests}
        ],
    }
    head = "# Series of a real daemon under ascendd bench, recorded by a real Prometheus: tests/bench/prometheus_run.py --record.\n"
    path.write_text(head + yaml.safe_dump(body, sort_keys=False, width=1000), encoding="utf-8")
    print(f"{len(series)} series written to {path}")


def _labels(metric: dict[str, str]) -> dict[str, str]:
    return {key: value for key, value in metric.items() if key not in ("__name__", "instance", "job")}


def main() -> None:
    """Run it all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--load-s", type=float, default=200.0)
    parser.add_argument("--quiet-s", type=float, default=100.0)
    parser.add_argument("--record", type=Path)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as place, contextlib.ExitStack() as stack:
        folder = Path(place)
        api, metrics, port = free_ports(3)
        tiny = folder / "tiny"
        subprocess.run([sys.executable, str(ROOT / "tests/system/tiny_qwen2.py"), str(tiny)], check=True)
        speak_ascii(tiny)
        (folder / "i.yaml").write_text(
            f"model: {{path: {tiny}}}\nlisten: {{port: {api}}}\nmetrics: {{port: {metrics}}}\n"
            "engine: {device: cpu, num_threads: 1, max_num_seqs: 8, max_num_blocks: 512}\n"
        )
        (folder / "p.yml").write_text(
            f"global: {{scrape_interval: 5s, evaluation_interval: 5s}}\nrule_files: ['{RULES}']\nscrape_configs:\n"
            f"  - job_name: ascendd\n    static_configs: [{{targets: ['127.0.0.1:{metrics}']}}]\n"
        )
        # As the unit has it (Nice=5): on a machine that is busy with other things a client that comes late to its own
        # sockets would measure itself.
        stack.enter_context(
            running(
                "nice", "-n", "5", sys.executable, "-m", "ascendd", "run", "--instance", "run", "--config", str(folder / "i.yaml"),
                log=folder / "daemon.log",
            )
        )  # fmt: skip
        url, page = f"http://127.0.0.1:{api}", f"http://127.0.0.1:{metrics}/metrics"
        await_true(lambda: fetch(f"{url}/readyz"), "readiness")
        stack.enter_context(
            running(
                "prometheus", f"--config.file={folder}/p.yml", f"--storage.tsdb.path={folder}/data",
                f"--web.listen-address=127.0.0.1:{port}", "--log.level=warn", log=folder / "prometheus.log",
            )
        )  # fmt: skip
        prometheus = Prometheus(port)
        await_true(lambda: prometheus.now("up == 1"), "the first scrape")
        started_s = time.time()
        before = totals(fetch(page))
        # Where it may, before all others: it is to see when a token came, not when it had its turn.
        command = [
            "nice", "-n", "-10", sys.executable, "-m", "ascendd", "bench", url, "--concurrency", "64", "--duration", str(args.load_s),
            "--lengths", "64x64", "--ignore-eos", "--warm-up", "0", "--no-plot", "--completions",
            "--output", str(folder / "bench.json"),
        ]  # fmt: skip
        fired: dict[str, list[float]] = {}
        with subprocess.Popen(command, stdout=subprocess.DEVNULL) as bench:
            while bench.poll() is None:
                _look(prometheus, fired)
                time.sleep(2)
        load_ended_s = time.time()
        after = await_true(
            lambda: (now := totals(fetch(page)))["ascendd_engine_sequences_running"] == 0 and now, "the end of the load"
        )
        while time.time() < load_ended_s + args.quiet_s:
            _look(prometheus, fired)
            time.sleep(2)
        ended_s = time.time()
        print(f"scraped for {ended_s - started_s:.0f} s, of them {load_ended_s - started_s:.0f} s under load")
        for name, (first_s, last_s) in fired.items():
            print(f"alert {name} fired from {first_s - started_s:.0f} s to {last_s - started_s:.0f} s")
        fine = compare(json.loads((folder / "bench.json").read_text()), before, after)
        first_s, last_s = fired.get(ALERT, (0.0, 0.0))
        fine &= set(fired) == {ALERT} and first_s - started_s >= 120 and last_s < load_ended_s + 60
        fine &= not prometheus.now(f'ALERTS{{alertname="{ALERT}"}}')
        if args.record is not None and fine:
            start_s = float(int(started_s))
            record(prometheus, start_s, ended_s, args.record, (first_s, load_ended_s))
        print("as it must be" if fine else "NOT as it must be")
        sys.exit(0 if fine else 1)


def _look(prometheus: Prometheus, fired: dict[str, list[float]]) -> None:
    now_s = time.time()
    for series in prometheus.now('ALERTS{alertstate="firing"}'):
        fired.setdefault(series["metric"]["alertname"], [now_s, now_s])[1] = now_s


if __name__ == "__main__":
    main()
