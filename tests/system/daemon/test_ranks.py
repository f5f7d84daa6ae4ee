"""A whole daemon over four ranks, tensor 2 x pipeline 2, and what its clients see when a rank fails."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

pytestmark = [pytest.mark.system, pytest.mark.slow, pytest.mark.timeout(900)]

STEP_DEADLINE_S = 5.0
CONFIG = """
model: {{path: {folder}, name: qwen2, max_model_len: 2048}}
listen: {{port: 0}}
metrics: {{port: 0}}
parallel: {{tensor_parallel_size: 2, pipeline_parallel_size: 2}}
engine: {{device: cpu, max_num_seqs: 4, num_threads: 1}}
health: {{step_deadline_s: {deadline}}}
recovery: {{backoff_min_s: 0.1, backoff_max_s: 1}}
"""


class RankedDaemon:
    """`ascendd run` with four ranks, its ports taken from its own log."""

    def __init__(self, folder: Path, work: Path) -> None:
        (work / "instance.yaml").write_text(CONFIG.format(folder=folder, deadline=STEP_DEADLINE_S))
        self.log_path = work / "log"
        command = [
            sys.executable,
            "-m",
            "ascendd",
            "run",
            "--instance",
            "ranks",
            "--config",
            str(work / "instance.yaml"),
        ]
        self._environ = {**os.environ, "XDG_RUNTIME_DIR": str(work)}
        with self.log_path.open("wb") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log, env=self._environ)

    def rank_rows(self) -> list[dict[str, Any]]:
        """Return the ranks as the operator sees them."""
        done = subprocess.run(
            [sys.executable, "-m", "ascendd", "status", "ranks", "--json"],
            env=self._environ, capture_output=True, text=True, timeout=120, check=True,
        )  # fmt: skip
        rows = json.loads(done.stdout)[0]["processes"]
        return [row for row in rows if row["role"].startswith("rank ")]

    def events(self, name: str) -> list[dict[str, object]]:
        """Return the log lines of one event."""
        found = []
        for line in self.log_path.read_text(errors="replace").splitlines():
            with contextlib.suppress(ValueError):
                event = json.loads(line)
                if event.get("event") == name:
                    found.append(event)
        return found

    def url(self, path: str) -> str:
        address = next(e["address"] for e in self.events("supervisor.listening") if e["listener"] == "api")
        return f"http://{address}{path}"

    def status(self, path: str) -> int:
        with urllib.request.urlopen(self.url(path), timeout=120) as response:
            return int(response.status)

    def ranks(self) -> dict[int, psutil.Process]:
        """Return rank -> process, as the ranks' memory was logged last."""
        return {int(e["of_rank"]): psutil.Process(int(e["pid"])) for e in self.events("engine.rank_memory")[-4:]}  # type: ignore[call-overload]

    def stream(self, num_tokens: int = 1500) -> subprocess.Popen[bytes]:
        """Ask for a long answer and leave it to a process of its own."""
        body = {"model": "qwen2", "prompt": [1, 2, 3], "max_tokens": num_tokens, "ignore_eos": True, "stream": True}
        command = [
            "curl",
            "-sN",
            self.url("/v1/completions"),
            "-H",
            "Content-Type: application/json",
            "-d",
            json.dumps(body),
        ]
        return subprocess.Popen(command, stdout=subprocess.PIPE)


@pytest.fixture(scope="module")
def daemon(qwen2_folder: Path, tmp_path_factory: pytest.TempPathFactory, eventually) -> Iterator[RankedDaemon]:
    daemon = RankedDaemon(qwen2_folder, tmp_path_factory.mktemp("ranks"))
    try:
        eventually(lambda: daemon.status("/readyz") == 200, f"ready of {daemon.log_path}")
        yield daemon
    finally:
        daemon.process.send_signal(signal.SIGTERM)
        daemon.process.wait(240)
    assert daemon.process.returncode == 0


def test_four_ranks_start_with_progress_and_their_memory_beside_the_plan(daemon, eventually) -> None:
    """Each rank's memory is logged beside its plan, and `ascendd status` has a row of each."""
    told = daemon.events("engine.rank_memory")

    assert {event["of_rank"] for event in told} == {0, 1, 2, 3}
    assert all(
        {"weights_bytes", "planned_weights_bytes", "activation_bytes", "kv_bytes"} <= event.keys() for event in told
    )
    (loaded,) = daemon.events("engine.loaded")
    assert (loaded["tensor_parallel_size"], loaded["pipeline_parallel_size"]) == (2, 2)
    eventually(lambda: len(daemon.rank_rows()) == 4, "four ranks in the status")
    rows = daemon.rank_rows()
    assert [row["role"] for row in rows] == ["rank 0", "rank 1", "rank 2", "rank 3"]
    assert {row["pid"] for row in rows} == {process.pid for process in daemon.ranks().values()}
    assert all(row["rss_bytes"] > 0 and row["silent_s"] < 60 for row in rows)
    assert daemon.status("/readyz") == 200


@pytest.mark.parametrize(
    ("number", "rank", "code"), [(signal.SIGKILL, 1, "ASD-E04"), (signal.SIGSTOP, 2, "ASD-E03")], ids=["kill-9", "stop"]
)
def test_a_rank_that_fails_is_named_and_the_service_comes_back(daemon, eventually, number, rank, code) -> None:
    """The stream ends with an error event, the log names rank and code, the old group is gone, a new one serves."""
    before, num_failures = daemon.ranks(), len(daemon.events("engine.group_failed") + daemon.events("engine.rank_hung"))
    with daemon.stream() as client:
        assert client.stdout is not None
        client.stdout.readline()
        before[rank].send_signal(number)
        sent = time.monotonic()
        rest = client.stdout.read().decode()
    told_s = time.monotonic() - sent
    eventually(lambda: not any(process.is_running() for process in before.values()), "the old group gone")
    gone_s = time.monotonic() - sent
    eventually(lambda: daemon.status("/readyz") == 200, "ready again")
    back_s = time.monotonic() - sent

    failures = daemon.events("engine.group_failed") + daemon.events("engine.rank_hung")
    print(
        f"{number.name} of rank {rank}: told after {told_s:.1f} s, group gone after {gone_s:.1f} s, back after {back_s:.1f} s"
    )
    assert len(failures) == num_failures + 1
    named = [event for event in failures if event["code"] == code]
    assert [event["failed_rank"] for event in named] == [rank]
    assert '"error"' in rest
    assert "[DONE]" not in rest
    assert {p.pid for p in daemon.ranks().values()}.isdisjoint(p.pid for p in before.values())
    if number is signal.SIGSTOP:
        stacks = {event["of_rank"]: str(event["stacks"]) for event in daemon.events("engine.rank_stacks")}
        assert set(stacks) == {0, 1, 2, 3}
        assert "does not answer" in stacks[2]
    with urllib.request.urlopen(
        urllib.request.Request(
            daemon.url("/v1/completions"),
            json.dumps({"model": "qwen2", "prompt": [1, 2, 3], "max_tokens": 2}).encode(),
            {"Content-Type": "application/json"},
        ),
        timeout=120,
    ) as answer:
        assert answer.status == 200
