"""`ascendd bench` against a server whose every answer is known."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from .conftest import ScriptedServer  # type: ignore[import-not-found]

pytestmark = pytest.mark.system
Ascendd = Callable[..., subprocess.CompletedProcess[str]]


def test_figures_are_those_of_the_server(scripted: ScriptedServer, ascendd: Ascendd, tmp_path: Path) -> None:
    """Counts are exact, times are at least what the server waits, and prompts have the asked length by its own count."""
    scripted.pause_s = 0.02
    done = ascendd(
        "bench", scripted.url, "--requests", "6", "--concurrency", "3", "--lengths", "100x5", "--warm-up", "2", "--json",
        "--slo", "ttft=30s", "--output", str(tmp_path / "report.json"),
    )  # fmt: skip
    report = json.loads(done.stdout)

    assert done.returncode == 0, done.stderr
    assert report == json.loads((tmp_path / "report.json").read_text())
    assert report["model"] == "scripted"
    assert report["requests"] == {"sent": 6, "succeeded": 6, "failed": 0, "errors": {}}
    assert report["tokens"] == {"prompt": 600, "output": 30, "counted_by": "server"}
    assert report["time_to_first_token"]["min_s"] >= 0.02
    assert report["inter_token"]["count"] == 24
    assert report["whole_request"]["min_s"] >= 0.1
    assert report["goodput"]["share"] == 1.0
    assert len(scripted.bodies) == 2 + 2 + 6
    assert scripted.most_active <= 3


def test_a_rate_is_kept_whatever_the_server_does(scripted: ScriptedServer, ascendd: Ascendd) -> None:
    """At 40 a second requests overlap although each takes a third of a second: nobody waits for an answer to send."""
    scripted.pause_s = 0.3
    done = ascendd(
        "bench", scripted.url, "--rate", "40", "--constant", "--requests", "20", "--lengths", "20x1", "--warm-up", "0",
        "--json",
    )  # fmt: skip
    report = json.loads(done.stdout)

    assert done.returncode == 0, done.stderr
    assert report["requests"]["succeeded"] == 20
    assert report["load"]["arrivals"] == "constant"
    assert scripted.most_active >= 5


def test_failures_are_counted_by_kind_and_in_the_exit_status(scripted: ScriptedServer, ascendd: Ascendd) -> None:
    """A status, an error event and a stream without an end are three kinds; none of them counts as an answer."""
    scripted.fail = {3: "status", 4: "event", 5: "cut"}.get
    done = ascendd("bench", scripted.url, "--requests", "5", "--concurrency", "1", "--lengths", "10x2", "--warm-up", "0",
                   "--slo", "e2e=30s")  # fmt: skip

    assert done.returncode == 1
    assert "requests   2 of 5 succeeded" in done.stdout
    for kind in ("HTTP 500", "error event: the engine died", "the stream ended without [DONE]"):
        assert f"failed     1 x {kind}" in done.stdout
    assert "40.0% of all kept e2e <= 30.0 s" in done.stdout
    assert "time to first token, requests" in done.stdout


def test_goodput_below_the_asked_share_is_exit_1(scripted: ScriptedServer, ascendd: Ascendd) -> None:
    """All requests succeed, and none keeps a limit that the server's own pause breaks."""
    scripted.pause_s = 0.05
    done = ascendd("bench", scripted.url, "--requests", "2", "--lengths", "10x2", "--warm-up", "0",
                   "--slo", "ttft=10ms", "--min-goodput", "0.5", "--no-plot")  # fmt: skip

    assert done.returncode == 1
    assert "2 of 2 succeeded" in done.stdout
    assert "0.0% of all kept ttft <= 10.0 ms" in done.stdout


def test_the_key_comes_from_a_file_or_variable(scripted: ScriptedServer, ascendd: Ascendd, tmp_path: Path) -> None:
    """It is in the header of every request, and in nothing that is printed."""
    key_file = tmp_path / "key"
    key_file.write_text("# mine\nkey-from-file\n")
    common = ("bench", scripted.url, "--requests", "1", "--lengths", "10x1", "--warm-up", "0")
    first = ascendd(*common, "--api-key-file", str(key_file))
    second = ascendd(*common, "--api-key-env", "BENCH_KEY", env={"BENCH_KEY": "key-from-env"})

    assert (first.returncode, second.returncode) == (0, 0), first.stderr + second.stderr
    assert set(scripted.keys) == {"Bearer key-from-file", "Bearer key-from-env"}
    assert "key-from" not in first.stdout + first.stderr + second.stdout + second.stderr


def test_a_server_that_is_not_there_is_one_error(ascendd: Ascendd) -> None:
    """The message names the address; there is no traceback."""
    done = ascendd("bench", "http://127.0.0.1:9")

    assert done.returncode == 70
    assert done.stderr.startswith("error ASD-I09: http://127.0.0.1:9/v1/models")
    assert "Traceback" not in done.stderr
