"""What the gate of a start says of checks that failed."""

from __future__ import annotations

import pytest

from ascendd.errors import PreflightFailed
from ascendd.preflight import gate
from ascendd.preflight.check import CheckResult, Remedy, Verdict


def test_a_fault_that_two_checks_meet_is_told_once(monkeypatch):
    """Both are named before the one summary, and its remedy is not repeated."""
    same = {"verdict": Verdict.FAIL, "summary": "tp 2 does not fit", "remedy": Remedy("ASD-M04", "Use tp 1.")}
    other = CheckResult(Verdict.FAIL, "no chip", remedy=Remedy("ASD-D01", "Mount it."), check_id="npu-presence")
    results = [CheckResult(check_id=name, **same) for name in ("model-artefact", "host-memory")]
    monkeypatch.setattr(gate, "run_checks", lambda checks, request: [*results, other])

    with pytest.raises(PreflightFailed) as raised:
        gate.run_gate({"model": {"path": "/m"}})

    assert raised.value.message == "model-artefact, host-memory: tp 2 does not fit; npu-presence: no chip"
    assert raised.value.remedy == "Use tp 1. Mount it."
