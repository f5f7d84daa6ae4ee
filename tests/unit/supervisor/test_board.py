"""The figures of a whole instance."""

from __future__ import annotations

import os
import time

import pytest

from ascendd.cost.power import Power
from ascendd.host.anonymous_memory import AnonymousMemory
from ascendd.host.proc import ProcessUsage
from ascendd.ipc.messages import Role, Sample, Stats
from ascendd.preflight.check import CheckResult, Verdict
from ascendd.supervisor import board as board_module
from ascendd.supervisor.board import StatsBoard
from ascendd.supervisor.child import Child, ChildState
from ascendd.supervisor.degradation import Degradation, Degradations
from ascendd.supervisor.failure import FailureClass
from ascendd.supervisor.phase import Phase
from ascendd.telemetry.log_budget import Sweep

GENERATED, RUNNING = "ascendd_engine_generation_tokens_total", "ascendd_engine_sequences_running"


def values(board):
    """Return the snapshot's values by name and labels."""
    return {(sample.name, sample.labels): sample.value for sample in board.snapshot().samples}


def test_the_snapshot_has_children_and_supervisor():
    """What a child counted, who is up, what runs and whether it serves are on one page."""
    board = StatsBoard("blue", "qwen2")
    engine, api = Child(Role.ENGINE), Child(Role.API)
    engine.state = ChildState.READY
    degradations = Degradations()
    degradations.set(Degradation.KV_CACHE, "KV cache of 90 blocks")

    board.take(Role.ENGINE, Stats([Sample(GENERATED, 7.0)]))
    board.set_states({Role.ENGINE: engine, Role.API: api}, Phase.DEGRADED, degradations)
    board.count_restart(Role.API, FailureClass.HANG)
    found = values(board)

    assert found[GENERATED, ()] == 7
    assert (found["ascendd_child_up", ("engine",)], found["ascendd_child_up", ("api",)]) == (1, 0)
    assert found["ascendd_instance_ready", ()] == 0
    assert found["ascendd_child_restarts_total", ("api",)] == 1
    assert found["ascendd_child_failures_total", ("api", "hang")] == 1
    states = {labels[0]: value for (name, labels), value in found.items() if name == "ascendd_instance_state"}
    assert [state for state, value in states.items() if value] == ["degraded"]
    assert (found["ascendd_degraded", ("kv_cache",)], found["ascendd_degraded", ("device",)]) == (1, 0)
    (info,) = [labels for name, labels in found if name == "ascendd_build_info"]
    assert info[1:] == ("blue", "qwen2")


def test_memory_of_a_dead_child_vanishes_and_its_cpu_time_stays():
    """A gauge of a process that is gone would be a lie; a counter that went back would be one, too."""
    board = StatsBoard("blue", "qwen2")
    board.measure(os.getpid(), {Role.API: os.getpid()})
    before = values(board)

    board.child_ended(Role.API)
    after = values(board)

    assert ("ascendd_process_resident_memory_bytes", ("api",)) in before
    assert ("ascendd_process_resident_memory_bytes", ("api",)) not in after
    cpu = ("ascendd_process_cpu_seconds_total", ("api",))
    assert after[cpu] == before[cpu] > 0


def test_the_stats_line_is_a_rate_since_the_last_one():
    """Tokens are divided by the time since the line before, whatever the totals are."""
    board = StatsBoard("blue", "qwen2")
    now_s = time.monotonic()
    board.take(Role.ENGINE, Stats([Sample(GENERATED, 100.0), Sample(RUNNING, 2.0)]))
    board.stats_line(now_s + 10)

    board.take(Role.ENGINE, Stats([Sample(GENERATED, 160.0), Sample(RUNNING, 3.0)]))
    line = board.stats_line(now_s + 40)

    assert line is not None
    assert (line["generation_tokens_per_s"], line["running"], line["waiting"]) == (2.0, 3, 0)


@pytest.mark.parametrize(("mb_per_hour", "leaks"), [(0.0, False), (30.0, True)])
def test_a_cache_that_fills_for_hours_is_no_leak(monkeypatch, mb_per_hour, leaks):
    """The KV cache of a CPU comes page by page with first use: it is planned; what grows beside it, in a rank, is told."""
    now_s = 0.0
    board = StatsBoard("blue", "qwen2", clock=lambda: now_s)

    def memory(pid):
        grown = mb_per_hour * 1e6 * now_s / 3600 if pid == 2 else 0.0
        return AnonymousMemory(private_bytes=int(10**8 + grown), mapped_zero_bytes=int(now_s * 10**6))

    monkeypatch.setattr(board_module, "usage", lambda _pid: ProcessUsage(int(now_s * 10**6), 1.0, 2))
    monkeypatch.setattr(board_module, "descendants", lambda _pid: [2])
    monkeypatch.setattr(board_module, "anonymous_memory", memory)
    for reading in range(1200):
        now_s = 5.0 * reading
        board.measure(os.getpid(), {Role.ENGINE: 1})
    found = values(board)

    growth = found["ascendd_process_memory_growth_bytes_per_hour", ("engine",)]
    assert growth == pytest.approx(mb_per_hour * 1e6, abs=1000)
    assert found["ascendd_process_private_memory_bytes", ("engine",)] == pytest.approx(2e8 + mb_per_hour * 1.65e6, 1e-3)
    assert ("engine" in board.leaks()) is leaks


def test_an_idle_instance_writes_no_stats():
    """A journal of a quiet night holds no line every 30 seconds."""
    board = StatsBoard("blue", "qwen2")
    board.take(Role.ENGINE, Stats([Sample(GENERATED, 100.0), Sample(RUNNING, 0.0)]))
    board.stats_line(time.monotonic() + 10)

    assert board.stats_line(time.monotonic() + 40) is None


def test_the_power_of_the_instance_is_that_of_its_own_chips():
    """Live checks tell the power of every chip; an instance sums its own, and knows none where one was not read."""
    board = StatsBoard("blue", "qwen2")
    chips = [{"chip": f"NPU {n}", "power_w": watts} for n, watts in enumerate((100.0, 161.9, None))]
    before = board.chips_power_w((0, 1))
    board.take_checks([CheckResult(Verdict.PASS, "", {"chips": chips}, check_id="npu-sensors")])

    assert before is None
    assert board.chips_power_w((0,)) == 100.0
    # The second die of a pair has no power of its own.
    assert board.chips_power_w((1, 2)) == 161.9
    assert board.chips_power_w((0, 7)) is None


def test_a_price_that_is_over_is_gone():
    """Models without tokens in the last hour, and a source of power that is no longer used, leave the page."""
    board = StatsBoard("blue", "qwen2")
    board.set_costs(Power(16.0, "estimate"), None, "EUR", 1.0, {"qwen2": 3.0, "law": 9.0})
    board.set_costs(Power(50.0, "rapl"), Power(16.0, "estimate"), "EUR", 1.5, {"qwen2": 4.0})
    found = values(board)

    assert found["ascendd_cost_total", ("EUR",)] == 1.5
    prices = {labels[0]: value for (name, labels), value in found.items() if name == "ascendd_cost_per_million_tokens"}
    power = {labels[0]: value for (name, labels), value in found.items() if name == "ascendd_power_watts"}
    assert prices == {"qwen2": 4.0}
    assert power == {"rapl": 50.0}


def test_incidents_and_the_room_of_the_logs_are_figures():
    """Each unasked end counts, what bundles and logs take is shown beside the budget, and what was lost is counted."""
    board = StatsBoard("blue", "qwen2")

    board.count_incident("engine", "signal")
    board.take_bundles(4096)
    board.count_incident("engine", "signal")
    board.take_bundles(None)
    board.take_sweep(Sweep(total_bytes=700, num_removed=2, freed_bytes=300, over=False), 1000)
    board.take_sweep(Sweep(total_bytes=650, num_removed=1, freed_bytes=50, over=False), 1000)
    found = values(board)

    assert found["ascendd_incidents_total", ("engine", "signal")] == 2
    assert found["ascendd_incident_bundle_bytes", ()] == 4096
    assert found["ascendd_incident_bundles_lost_total", ()] == 1
    assert (found["ascendd_log_bytes", ()], found["ascendd_log_budget_bytes", ()]) == (650, 1000)
    assert found["ascendd_log_files_removed_total", ()] == 3


def test_a_process_that_ended_and_is_not_reaped_has_no_size(monkeypatch):
    """Its last figure stays: 0 would be a lie, on the page as in the curve of an incident."""
    board = StatsBoard("blue", "qwen2")
    monkeypatch.setattr(board_module, "usage", lambda _pid: ProcessUsage(7_000_000, 1.0, 1))
    board.measure(os.getpid(), {Role.ENGINE: 1})

    monkeypatch.setattr(board_module, "usage", lambda _pid: ProcessUsage(0, 3.0, 1))
    board.measure(os.getpid(), {Role.ENGINE: 1})

    found = values(board)
    assert found["ascendd_process_resident_memory_bytes", ("engine",)] == 7_000_000
    assert found["ascendd_process_cpu_seconds_total", ("engine",)] == 3.0
    assert [sizes.get("engine") for _, sizes in board.memory_curve] == [7_000_000, None]


def test_what_is_read_now_and_then_has_its_age():
    """Processes, checks, power and the log have the seconds since they were read, and nothing that was never read."""
    now_s = 100.0
    board = StatsBoard("blue", "qwen2", clock=lambda: now_s)

    before = {sample.labels for sample in board.snapshot().samples if sample.name == "ascendd_reading_age_seconds"}
    board.take_checks([])
    now_s = 103.0
    board.measure(os.getpid(), {})
    board.set_costs(Power(10.0, "configured"), None, "EUR", 0.0, {})
    now_s = 110.0
    ages = {s.labels[0]: s.value for s in board.snapshot().samples if s.name == "ascendd_reading_age_seconds"}

    assert before == set()
    assert ages == {"checks": 10.0, "processes": 7.0, "private_memory": 7.0, "power": 7.0}
