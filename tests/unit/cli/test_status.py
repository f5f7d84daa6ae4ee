"""What `ascendd status` shows people of an instance."""

from __future__ import annotations

from typing import Any

from ascendd.cli.status import render
from ascendd.ipc.rank_row import RankRow
from ascendd.supervisor.operations import rank_facts


def facts(*processes: dict[str, Any]) -> dict[str, Any]:
    """Return an instance that serves."""
    return {
        "instance": "q", "phase": "serving", "held": False, "text": "serving", "model": "m", "address": "127.0.0.1:1",
        "uptime_s": 61.0, "version": "0", "load": {"running": 1, "waiting": 0, "kv_usage": 0.5}, "degraded": "",
        "doctor": {"verdict": "pass"}, "last_incident": None, "last_reload": None, "processes": list(processes),
    }  # fmt: skip


def test_a_rank_has_a_row_of_its_own() -> None:
    """Its number, what it does, its process, its step, and how long ago it was heard."""
    waiting = rank_facts(RankRow(3, 2**31 - 1, 812, 4.2, 0.6, "all_reduce"))
    idle = rank_facts(RankRow(0, 2**31 - 1, 812, 0.0, 7.0))
    lines = render(facts(waiting, idle)).splitlines()

    assert "rank 3" in lines[-2]
    assert lines[-2].endswith("waits in all_reduce at step 812, heard 1 s ago")
    assert lines[-1].split()[:3] == ["rank", "0", "ready"]
    assert lines[-1].endswith("idle at step 812, heard 7 s ago")
