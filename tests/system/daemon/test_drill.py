"""`ascendd drill` on real instances: every kind is noticed, and service is back; nothing is broken where drills are off."""

from __future__ import annotations

import contextlib
import json
import os
import runpy
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytestmark = [pytest.mark.system, pytest.mark.timeout(1800)]

CONFIG = """
model: {{path: {model}, name: m, max_model_len: 1024}}
listen: {{port: 0}}
metrics: {{port: 0}}
parallel: {{tensor_parallel_size: {ranks}}}
engine: {{device: cpu, max_num_seqs: 4, max_num_blocks: 640, num_threads: 1}}
health: {{step_deadline_s: 6}}
log: {{file: {folder}/log}}
recovery: {{drills: {drills}, backoff_min_s: 0.1, backoff_max_s: 1}}
"""
# What the instance is to notice, by a part of its words. A hang is told first as a state, then as the incident of the
# kill; who looks ten times a second may see either.
NOTICED = {
    "kill-engine": ("engine was killed by SIGKILL",),
    "kill-api": ("api was killed by SIGKILL",),
    "hang": ("engine hangs (step", "engine made no progress and was killed"),
    "oom": ("step without memory, tried again",),
    "device-lost": ("ASD-D04",),
    "leak": ("engine grows by",),
    "full-disk": ("log.file took none of the last",),
    "slow-disk": ("logwriter made no progress",),
}


class Drilled:
    """`ascendd run`, and the commands of its operator."""

    def __init__(self, folder: Path, *, drills: bool = True, ranks: int = 1) -> None:
        model = runpy.run_path(str(Path(__file__).parent.parent / "tiny_qwen2.py"))["write"](folder / "m")
        config = folder / "instance.yaml"
        config.write_text(CONFIG.format(model=model, folder=folder, drills=str(drills).lower(), ranks=ranks))
        self._environ = {**os.environ, "XDG_RUNTIME_DIR": str(folder), "OMP_NUM_THREADS": "1"}
        self._stderr = folder / "stderr"
        self.log = folder / "log"
        with self._stderr.open("wb") as stderr:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "ascendd", "run", "--instance", "d", "--config", str(config)],
                env=self._environ, stderr=stderr,
            )  # fmt: skip

    def run(self, *args: str) -> subprocess.CompletedProcess[str]:
        """Run `ascendd` as the operator does."""
        return subprocess.run(
            [sys.executable, "-m", "ascendd", *args],
            env=self._environ, capture_output=True, text=True, timeout=900, check=False,
        )  # fmt: skip

    def wait_serving(self) -> None:
        deadline = time.monotonic() + 240
        while time.monotonic() < deadline:
            assert self.process.poll() is None, self.log.read_text()[-4000:]
            done = self.run("status", "d", "--json")
            if done.returncode == 0 and json.loads(done.stdout)[0]["phase"] == "serving":
                return
            time.sleep(0.5)
        raise AssertionError(self.log.read_text()[-4000:])

    def drill(self, kind: str, *options: str) -> dict:
        """Drill and return the report."""
        done = self.run("drill", kind, "d", "--json", *options)
        assert done.returncode == 0, f"{done.stdout}{done.stderr}\n{self.log.read_text()[-4000:]}"
        report: dict = json.loads(done.stdout)
        print(f"| {kind} | {report['detected_s']} s | {report['clients']['requests']} | {report['back_s']} s |")
        return report


@pytest.fixture
def start(tmp_path):
    """Start instances, and end them."""
    made: list[Drilled] = []

    def begin(**options) -> Drilled:
        folder = tmp_path / str(len(made))
        folder.mkdir()
        made.append(Drilled(folder, **options))
        made[-1].wait_serving()
        return made[-1]

    yield begin
    for drilled in made:
        drilled.process.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            drilled.process.wait(120)
        drilled.process.kill()
        drilled.process.wait(120)


def test_a_killed_engine_is_noticed_and_back(start) -> None:
    """The report says what was noticed when, that no request was lost, and when an answer came again."""
    report = start().drill("kill-engine")

    assert "engine was killed by SIGKILL" in report["detected"]
    assert 0 <= report["detected_s"] < report["back_s"]
    # An answer that had begun ends with an error event in a stream, and with 503 where it was asked for as a whole.
    assert set(report["clients"]["requests"]) <= {"finished", "error event", "status 503"}
    assert report["clients"]["requests"]["finished"] >= 1


def test_without_the_switch_nothing_is_broken(start) -> None:
    """recovery.drills is false: the order is refused, and so is a kind that does not exist where it is true."""
    drilled = start(drills=False)

    refused = drilled.run("drill", "kill-engine", "d")

    assert refused.returncode == 71
    assert "recovery.drills is false" in refused.stderr
    assert "supervisor.child_ended" not in drilled.log.read_text()


@pytest.mark.slow
def test_every_kind_is_noticed_and_over(start) -> None:
    """One instance, one drill after another; only those that end the API lose a request."""
    drilled = start()

    for kind, words in NOTICED.items():
        report = drilled.drill(kind, *(["--seconds", "60"] if kind == "slow-disk" else []))
        assert any(part in report["detected"] for part in words), report
        assert report["back_s"] is not None
        assert kind == "kill-api" or "lost" not in report["clients"]["requests"], report
        if kind in ("oom", "leak", "full-disk", "slow-disk"):
            assert set(report["clients"]["requests"]) == {"finished"}, report
    unknown = drilled.run("drill", "kill-everything", "d")

    assert unknown.returncode == 64
    assert "there is no drill 'kill-everything'" in unknown.stderr


@pytest.mark.slow
def test_a_rank_and_a_group_without_memory(start) -> None:
    """Two ranks: one killed ends the group as one; a step without memory restarts it with a smaller cache."""
    drilled = start(ranks=2)

    killed = drilled.drill("kill-rank")
    short = drilled.drill("oom")

    assert "engine failed with ASD-E04" in killed["detected"]
    assert "ASD-D03" in short["detected"]
    assert "supervisor.cache_limited" in drilled.log.read_text()
