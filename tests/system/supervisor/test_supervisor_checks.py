"""The doctor's live checks while an instance serves: the real suite on a fake host, round after round."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from fake_machine import FakeMachine, build_acl
from fault_cases import CASES

pytestmark = pytest.mark.system

CHECK = 'ascendd_check_verdict{check="npu-ecc"'
COUNTERS = ".answers/npu-smi/info -t ecc -i 5"


@pytest.fixture
def server(tmp_path: Path) -> FakeMachine:
    """A server of eight chips without a fault."""
    return FakeMachine(tmp_path / "host", build_acl(tmp_path))


def verdict(daemon) -> float | None:
    """The verdict of npu-ecc on /metrics, None before the first round; asked slowly, since more is refused with 429."""
    time.sleep(0.5)
    return next((value for sample, value in daemon.metrics().items() if sample.startswith(CHECK)), None)


def test_a_fault_of_a_later_round_degrades_and_its_end_clears(start, eventually, server):
    """Rounds see a chip sound, then with memory errors, then sound again; the instance serves all the time."""
    daemon = start(timing={"checks_s": 0.5}, fake_host=str(server.root)).wait_ready()

    eventually(lambda: verdict(daemon) == 0.0, detail=daemon.log_text)
    sound = (daemon.statuses[-1], [line["check"] for line in daemon.events("supervisor.check")])
    healthy = (server.root / COUNTERS).read_text()
    CASES["double-bit errors of now"].damage(server)
    eventually(lambda: verdict(daemon) == 2.0, detail=daemon.log_text)
    degraded = eventually(lambda: "npu-ecc failed" in daemon.statuses[-1] and daemon.statuses[-1])
    during = daemon.ask()
    server.write(COUNTERS, healthy)
    eventually(lambda: verdict(daemon) == 0.0 and daemon.statuses[-1] == sound[0], detail=daemon.log_text)

    assert "npu-ecc" not in sound[1]
    assert sound[0] == f"serving tiny on 127.0.0.1:{daemon.api_port}"
    assert "npu-ecc failed: ascendd doctor --only npu-ecc" in degraded
    assert during["ready"] is True
    said = [line for line in daemon.events("supervisor.check") if line["check"] == "npu-ecc"]
    assert [(line["level"], line["verdict"]) for line in said] == [("warning", "FAIL"), ("info", "PASS")]
    assert (said[0]["code"], "HBM Double Bit Error Count 2" in said[0]["summary"]) == ("ASD-D05", True)
    assert [state for state in daemon.states if state.startswith("READY=")] == ["READY=1"]
    assert daemon.process.poll() is None
