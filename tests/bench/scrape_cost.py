"""
What scrapes cost a daemon under load, and what a flood of them does. Prints figures.

    python tests/bench/scrape_cost.py [--seconds 12] [--rounds 4]

A tiny model answers 8 clients without a pause. In turn nobody scrapes, then somebody once a second; then 1,000 attempts
a second come while /livez is asked. Exit status 1 where a scrape a second takes 1 % of the CPU that serving has, where
the excess of a flood is not answered 429, or where p99 of /livez reaches 1 s.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from prometheus_run import ROOT, await_true, fetch, running, totals

sys.path.insert(0, str(ROOT / "tests/tools"))
from loopback_ports import free_ports

FLOOD_PER_S = 1000
NUM_FLOODERS = 8


def status(port: int, path: str) -> tuple[int, float]:
    """GET on a connection of its own: the status (0 where none came) and the seconds it took."""
    started_s = time.monotonic()
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        answer.read()
        return answer.status, time.monotonic() - started_s
    except (OSError, http.client.HTTPException):
        return 0, time.monotonic() - started_s
    finally:
        connection.close()


class Segment:
    """What the daemon did in a span of time, from two pages; the pages themselves are two scrapes."""

    def __init__(self, port: int) -> None:
        self._url = f"http://127.0.0.1:{port}/metrics"
        self._page, self._at_s = totals(fetch(self._url)), time.monotonic()

    def end(self) -> None:
        """Read the page again."""
        self._later, self.span_s = totals(fetch(self._url)), time.monotonic() - self._at_s

    def grown(self, name: str) -> float:
        """Return by how much a counter grew."""
        return self._later[name] - self._page[name]

    @property
    def tokens_per_s(self) -> float:
        """Tokens generated a second."""
        return self.grown("ascendd_engine_generation_tokens_total") / self.span_s

    @property
    def step_ms(self) -> float:
        """Mean time of a step."""
        name = "ascendd_engine_step_duration_seconds"
        return 1e3 * self.grown(f"{name}_sum") / max(1.0, self.grown(f"{name}_count"))

    def cpu_s(self, role: str) -> float:
        """CPU time of a role."""
        return self.grown(f'ascendd_process_cpu_seconds_total{{role="{role}"}}')


def flood(metrics: int, api: int, seconds: float) -> tuple[Counter[int], list[float], Segment]:
    """Attempt FLOOD_PER_S scrapes a second from several threads and ask /livez ten times a second."""
    counts: Counter[int] = Counter()
    lives: list[float] = []
    lock = threading.Lock()
    end_s = time.monotonic() + seconds

    def attack(number: int) -> None:
        period_s = NUM_FLOODERS / FLOOD_PER_S
        due_s = time.monotonic() + period_s * number / NUM_FLOODERS
        while (now_s := time.monotonic()) < end_s:
            if now_s < due_s:
                time.sleep(due_s - now_s)
            due_s += period_s
            code, _ = status(metrics, "/metrics")
            with lock:
                counts[code] += 1

    segment = Segment(metrics)
    threads = [threading.Thread(target=attack, args=(number,)) for number in range(NUM_FLOODERS)]
    for thread in threads:
        thread.start()
    while time.monotonic() < end_s:
        code, took_s = status(api, "/livez")
        lives.append(took_s if code == 200 else 30.0)
        time.sleep(0.1)
    for thread in threads:
        thread.join()
    time.sleep(3)  # the limit holds two seconds' worth, and one is for us
    segment.end()
    return counts, lives, segment


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=12.0)
    parser.add_argument("--rounds", type=int, default=4)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as place, contextlib.ExitStack() as stack:
        folder = Path(place)
        api, metrics = free_ports(2)
        tiny = folder / "tiny"
        subprocess.run([sys.executable, str(ROOT / "tests/system/tiny_qwen2.py"), str(tiny)], check=True)
        (folder / "i.yaml").write_text(
            f"model: {{path: {tiny}}}\nlisten: {{port: {api}}}\nmetrics: {{port: {metrics}}}\n"
            "engine: {device: cpu, num_threads: 1, max_num_seqs: 8, max_num_blocks: 512}\n"
        )
        command = [sys.executable, "-m", "ascendd", "run", "--instance", "cost", "--config", str(folder / "i.yaml")]
        stack.enter_context(running(*command, log=folder / "log"))
        url = f"http://127.0.0.1:{api}"
        await_true(lambda: fetch(f"{url}/readyz"), "readiness")
        long_s = 2 * args.rounds * (args.seconds + 2) + 60
        load = [
            sys.executable, "-m", "ascendd", "bench", url, "--concurrency", "8", "--duration", str(long_s),
            "--lengths", "32x128", "--ignore-eos", "--no-plot", "--completions",
        ]  # fmt: skip
        stack.enter_context(running(*load, log=folder / "bench.log"))
        await_true(
            lambda: (
                totals(fetch(f"http://127.0.0.1:{metrics}/metrics")).get("ascendd_engine_sequences_running", 0) >= 4
            ),
            "load",
        )
        alone, scraped, scrape_s = [], [], []
        for _ in range(args.rounds):
            for group in (alone, scraped):
                segment = Segment(metrics)
                end_s = time.monotonic() + args.seconds
                while time.monotonic() < end_s:
                    time.sleep(1.0)
                    if group is scraped:
                        scrape_s.append(status(metrics, "/metrics")[1])
                segment.end()
                group.append(segment)
        fine = report(alone, scraped, scrape_s)
        fine &= report_flood(*flood(metrics, api, args.seconds), alone)
        sys.exit(0 if fine else 1)


def report(alone: list[Segment], scraped: list[Segment], scrape_s: list[float]) -> bool:
    """Print what a scrape a second costs."""
    without, with_ = (statistics.median(s.tokens_per_s for s in group) for group in (alone, scraped))
    per_s = [sum(s.cpu_s("metrics") for s in group) / sum(s.span_s for s in group) for group in (alone, scraped)]
    serving = sum(s.cpu_s("engine") + s.cpu_s("api") for s in scraped) / sum(s.span_s for s in scraped)
    share = (per_s[1] - per_s[0]) / serving
    print(
        f"tokens a second      {without:8.1f} without scrapes, {with_:8.1f} with one a second ({with_ / without - 1:+.2%})"
    )
    print(
        f"CPU of the metrics process a second {1e3 * per_s[0]:.2f} ms without, {1e3 * per_s[1]:.2f} ms with: {share:.3%} of serving"
    )
    print(
        f"time of a scrape     {1e3 * statistics.median(scrape_s):.2f} ms median, {1e3 * max(scrape_s):.2f} ms most, seen by the client"
    )
    return share < 0.01


def report_flood(counts: Counter[int], lives: list[float], during: Segment, alone: list[Segment]) -> bool:
    """Print what a flood does."""
    p99_s = sorted(lives)[int(0.99 * (len(lives) - 1))]
    step_ms = statistics.median(s.step_ms for s in alone)
    attempts = sum(counts.values())
    print(f"flood                {attempts} attempts: {dict(sorted(counts.items()))} by status, 0 is no answer")
    print(f"/livez               p99 {1e3 * p99_s:.1f} ms of {len(lives)}")
    print(f"step                 {step_ms:.2f} ms alone, {during.step_ms:.2f} ms in the flood")
    return counts[429] > 0.5 * attempts and p99_s < 1.0


if __name__ == "__main__":
    main()
