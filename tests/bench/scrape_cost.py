"""
What scrapes cost a daemon under load, and what a flood of them does. Prints figures.

    python tests/bench/scrape_cost.py [--pairs 40] [--window-s 2] [--rate 20] [--flood-pairs 8]

A tiny model answers 8 clients without a pause. Short windows with and without scrapes take turns, first the one, then
the other of them first, so that a machine that is busy with other things is so for both. The scrapes of a window come
RATE times a second, so that what one a second costs is seen RATE times as large: a loss that this machine's noise would
hide. Told are the loss of tokens a second with a 95 % bootstrap interval, and the CPU time that the metrics process
takes for a scrape, beside that of serving. Then 1,000 attempts a second come and go in the same way while /livez is
asked; where there are two cores or more the engine has one to itself then, as it has beside attackers on other machines.
A step by the clock still has in it what they take of the caches and the memory that all share. Exit status 1 where a scrape a second may cost 1 % of throughput (the end of the interval) or of the CPU,
where the excess of a flood is not answered 429, where p99 of /livez reaches 1 s, or where the engine takes more CPU for
a token in the flood.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.error
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

sys.path.insert(0, str(Path(__file__).resolve().parent))
from prometheus_run import ROOT, await_true, fetch, running, totals
from scrape_load import Load, scrape

sys.path.insert(0, str(ROOT / "tests/tools"))
from loopback_ports import free_ports

FLOOD_PER_S = 1000
FLOOD_S = 8.0
FLOOD = Path(__file__).resolve().parent / "scrape_load.py"
# Less than this is no change: shared caches and what else the machine does.
UNCHANGED = 1.05


@dataclass(frozen=True)
class Window:
    """A span of time: tokens a second as clients got them, and CPU seconds a second by role."""

    tokens_per_s: float
    cpu: dict[str, float]


def keep_to(pid: int, cpus: set[int]) -> None:
    """Keep every thread of a process, and those it starts later, to `cpus`."""
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(ProcessLookupError):
            os.sched_setaffinity(int(task.name), cpus)


class Daemon:
    """A running instance under `load`, of which windows are taken."""

    def __init__(self, pid: int, metrics: int, api: int, load: Load) -> None:
        self.metrics, self.api, self._load, self._supervisor = metrics, api, load, pid
        children = psutil.Process(pid).children()
        self._roles = {
            role: next(c for c in children if f"_{role}" in c.cmdline()) for role in ("engine", "api", "metrics")
        }

    def set_engine_apart(self) -> None:
        """Give the engine a core to itself: the other processes, and the clients in this one, keep to the rest."""
        first, *rest = sorted(os.sched_getaffinity(0))
        if not rest:
            print("one core: the engine shares it with the flood")
            return
        keep_to(self._roles["engine"].pid, {first})
        for pid in (os.getpid(), self._supervisor, self._roles["api"].pid, self._roles["metrics"].pid):
            keep_to(pid, set(rest))

    def _cpu(self) -> dict[str, float]:
        return {role: sum(process.cpu_times()[:2]) for role, process in self._roles.items()}

    @contextlib.contextmanager
    def window(self, into: list[Window]) -> Iterator[None]:
        """Take what happens in the block as a window."""
        cpu, started_s = self._cpu(), time.monotonic()
        yield
        ended_s, later = time.monotonic(), self._cpu()
        span_s = ended_s - started_s
        num = self._load.between(started_s, ended_s)
        into.append(
            Window(
                num / span_s,
                {role: (later[role] - cpu[role]) / span_s for role in cpu},
            )
        )

    def steps(self) -> tuple[float, float]:
        """Return the seconds of all steps and their number, by the engine; in a flood it takes a few tries."""
        name = "ascendd_engine_step_duration_seconds"

        def page() -> str:
            time.sleep(0.02)
            with contextlib.suppress(urllib.error.HTTPError):
                return fetch(f"http://127.0.0.1:{self.metrics}/metrics")
            return ""

        seen = totals(next(text for text in iter(page, None) if text))
        return seen[f"{name}_sum"], seen[f"{name}_count"]


def interval(ratios: Sequence[float]) -> tuple[float, float, float]:
    """Return the median of `ratios` and the ends of its 95 % bootstrap interval."""
    draw = random.Random(0)
    medians = sorted(statistics.median(draw.choices(ratios, k=len(ratios))) for _ in range(4000))
    return statistics.median(ratios), medians[99], medians[3899]


def mean_cpu(windows: Sequence[Window], *roles: str) -> float:
    """Return CPU seconds a second of `roles` over all windows."""
    return statistics.fmean(sum(window.cpu[role] for role in roles) for window in windows)


def measure_scrapes(daemon: Daemon, pairs: int, window_s: float, rate: float) -> bool:
    """Take the windows and print what one scrape a second costs."""
    without: list[Window] = []
    with_: list[Window] = []
    took: list[float] = []
    for pair in range(pairs):
        for scraped in (False, True) if pair % 2 else (True, False):
            with daemon.window(with_ if scraped else without):
                end_s = time.monotonic() + window_s
                due_s = time.monotonic()
                while (now_s := time.monotonic()) < end_s:
                    if not scraped or now_s < due_s:
                        time.sleep(max(0.0, min(end_s, due_s if scraped else end_s) - now_s))
                        continue
                    due_s += 1 / rate
                    status, seconds = scrape(daemon.metrics, "/metrics")
                    assert status == 200, status
                    took.append(seconds)
    ratio, low, high = interval([w.tokens_per_s / o.tokens_per_s for w, o in zip(with_, without, strict=True)])
    done = len(took) / (len(with_) * window_s)
    loss, least, most = ((1 - value) / done for value in (ratio, high, low))
    cpu_s = (mean_cpu(with_, "metrics") - mean_cpu(without, "metrics")) / done
    share = cpu_s / mean_cpu(without, "engine", "api")
    print(f"{pairs} pairs of {window_s:g} s, {done:.1f} scrapes a second in one of each, {len(took)} in all")
    print(
        f"tokens a second      {statistics.median(w.tokens_per_s for w in without):.0f} without scrapes; with them "
        f"x {ratio:.4f} (95 %: {low:.4f} to {high:.4f})"
    )
    print(f"one scrape a second  costs {loss:.3%} of throughput (95 %: {least:.3%} to {most:.3%})")
    print(
        f"CPU of a scrape      {1e3 * cpu_s:.2f} ms in the metrics process: one a second is {share:.3%} of what "
        f"serving takes ({mean_cpu(without, 'engine', 'api'):.2f} s a second)"
    )
    print(
        f"time of a scrape     {1e3 * statistics.median(took):.2f} ms median, {1e3 * max(took):.1f} ms most, seen by the client"
    )
    return most < 0.01 and share < 0.01


def measure_flood(daemon: Daemon, pairs: int) -> bool:
    """Take windows in and out of a flood and print what it does."""
    windows: dict[bool, list[Window]] = {False: [], True: []}
    took: dict[bool, list[float]] = {False: [], True: []}
    used: dict[bool, list[float]] = {False: [], True: []}
    counts: Counter[str] = Counter()
    lives: list[float] = []
    daemon.set_engine_apart()
    for pair in range(pairs):
        for is_flood in (False, True) if pair % 2 else (True, False):
            attacker = None
            if is_flood:
                command = [
                    sys.executable,
                    str(FLOOD),
                    str(daemon.metrics),
                    str(FLOOD_PER_S),
                    str(FLOOD_S),
                ]
                attacker = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
            # A page is up to a second old, and the attacker must have begun.
            time.sleep(2.0)
            with daemon.window(windows[is_flood]):
                before = daemon.steps()
                end_s = time.monotonic() + FLOOD_S - 4.0
                while time.monotonic() < end_s:
                    status, seconds = scrape(daemon.api, "/livez")
                    if is_flood:
                        lives.append(seconds if status == 200 else 30.0)
                    time.sleep(0.05)
                after = daemon.steps()
            took[is_flood].append((after[0] - before[0]) / (after[1] - before[1]))
            seen = windows[is_flood][-1]
            used[is_flood].append(seen.cpu["engine"] / seen.tokens_per_s)
            if attacker is not None:
                counts.update(json.loads(attacker.communicate()[0]))
    attempts = sum(counts.values())
    p99_s = sorted(lives)[int(0.99 * (len(lives) - 1))]
    print(
        f"flood                {attempts / (pairs * FLOOD_S):.0f} attempts a second, {dict(sorted(counts.items()))} "
        f"by status; {counts['429'] / attempts:.1%} got 429"
    )
    print(f"/livez in it         p99 {1e3 * p99_s:.1f} ms of {len(lives)}")
    for what, seconds in (("a step by the clock", took), ("CPU time of a token", used)):
        ratio, low, high = interval([f / c for f, c in zip(seconds[True], seconds[False], strict=True)])
        print(
            f"engine, {what}  {1e3 * statistics.median(seconds[False]):.2f} ms without, x {ratio:.3f} in the flood "
            f"(95 %: {low:.3f} to {high:.3f})"
        )
    calm, flooded = (mean_cpu(windows[is_flood], "metrics") for is_flood in (False, True))
    print(f"metrics process      {calm:.3f} s of CPU a second without, {flooded:.3f} s in the flood")
    # Ten a second, and two seconds' worth that the bucket holds at the begin of each window.
    admitted = counts["200"] / (pairs * FLOOD_S)
    answered = counts["429"] + counts["200"] == attempts
    return answered and admitted <= 13 and p99_s < 1.0 and (low <= 1.0 or high < UNCHANGED)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=40)
    parser.add_argument("--window-s", type=float, default=2.0)
    parser.add_argument("--rate", type=float, default=20.0)
    parser.add_argument("--flood-pairs", type=int, default=8)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        tiny = folder / "tiny"
        subprocess.run(
            [sys.executable, str(ROOT / "tests/system/tiny_qwen2.py"), str(tiny)],
            check=True,
        )
        fine = True
        # The second daemon has the default limit, 10 a second.
        for limit, measure in (
            (
                4 * args.rate,
                lambda daemon: measure_scrapes(daemon, args.pairs, args.window_s, args.rate),
            ),
            (10.0, lambda daemon: measure_flood(daemon, args.flood_pairs)),
        ):
            with contextlib.ExitStack() as own:
                api, metrics = free_ports(2)
                (folder / "i.yaml").write_text(
                    f"model: {{path: {tiny}, name: m}}\nlisten: {{port: {api}}}\n"
                    f"metrics: {{port: {metrics}, max_scrapes_per_s: {limit}}}\n"
                    "engine: {device: cpu, num_threads: 1, max_num_seqs: 8, max_num_blocks: 512}\n"
                )
                command = [
                    sys.executable,
                    "-m",
                    "ascendd",
                    "run",
                    "--instance",
                    "cost",
                    "--config",
                    str(folder / "i.yaml"),
                ]
                process = own.enter_context(running(*command, log=folder / "log"))
                await_true(lambda api=api: fetch(f"http://127.0.0.1:{api}/readyz"), "readiness")
                load = own.enter_context(Load(api, num_clients=8))
                await_true(lambda load=load: load.num_tokens > 200, "load")
                fine &= measure(Daemon(process.pid, metrics, api, load))
        sys.exit(0 if fine else 1)


if __name__ == "__main__":
    main()
