"""StatsBoard: the figures of the whole instance, from the children's Stats and the supervisor's own view of them."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ascendd import __version__
from ascendd.cost.power import Power
from ascendd.host.anonymous_memory import anonymous_memory
from ascendd.host.proc import descendants, own_usage, usage
from ascendd.ipc.messages import MetricsSnapshot, Role, Sample, Stats
from ascendd.preflight.check import CheckResult, Verdict
from ascendd.supervisor.child import Child, ChildState
from ascendd.supervisor.chip_table import chip_rows
from ascendd.supervisor.degradation import Degradation, Degradations
from ascendd.supervisor.failure import FailureClass
from ascendd.supervisor.memory_trend import Growth, MemoryTrend
from ascendd.supervisor.phase import Phase
from ascendd.telemetry.log_budget import Sweep
from ascendd.telemetry.merge import Accumulator
from ascendd.telemetry.metrics import SUPERVISOR_METRICS, MetricStore
from ascendd.tuning.policy import Limits

_SUPERVISOR = "supervisor"
# Ten minutes at the supervisor's own interval.
_CURVE_POINTS = 120
_VERDICTS = {Verdict.PASS: 0.0, Verdict.SKIPPED: 0.0, Verdict.WARN: 1.0, Verdict.FAIL: 2.0, Verdict.ERROR: 3.0}
# What a trend of a drill must span.
_HASTY_SPAN_S = 10.0
_NUM_CHANGES = 50
_SERVING = (ChildState.READY, ChildState.DRAINING)


@dataclass(frozen=True)
class _Hastened:
    """A trend that a drill judges by, and until when (monotonic seconds)."""

    trend: MemoryTrend
    until_s: float


class StatsBoard:
    """Takes what the children count, adds what only the supervisor sees, and renders snapshots."""

    def __init__(self, instance: str, model: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock  # monotonic seconds
        self._store = MetricStore(SUPERVISOR_METRICS)
        self._store.set("ascendd_build_info", 1.0, (__version__, instance, model))
        self._accumulator = Accumulator()
        # Resident bytes by role at each measurement, for incident bundles.
        self.memory_curve: deque[tuple[float, dict[str, int]]] = deque(maxlen=_CURVE_POINTS)
        # The last changes of self-tuning, for `ascendd tune --explain`.
        self.tuning_changes: deque[dict[str, Any]] = deque(maxlen=_NUM_CHANGES)
        # The last round of live checks, for the status page; None before the first.
        self.checks: dict[str, Any] | None = None
        self._chip_power_w: dict[int, float] = {}
        self._cost_told = 0.0
        self._priced: set[str] = set()
        self._trends: dict[str, MemoryTrend] = {}
        self._hastened: dict[str, _Hastened] = {}
        self._cpu_s: dict[tuple[str, int], float] = {}
        self._told_at_s: dict[str, float] = {}
        # When the supervisor last read what it does not read for each snapshot.
        self._read_at_s: dict[str, float] = {}
        # Pages of engines that count by themselves, by role.
        self._foreign: dict[str, bytes] = {}
        self._last_line: tuple[float, tuple[int, ...]] = (self._clock(), (0, 0))

    def take(self, role: Role, stats: Stats) -> None:
        """Take the running totals of a child."""
        self._accumulator.update(role.value, stats.samples)
        self._told_at_s[role.value] = self._clock()

    def take_foreign(self, role: Role, text: bytes) -> None:
        """Take the page of a child's engine that counts by itself; its counters start anew with the next one."""
        self._foreign[role.value] = text

    def child_ended(self, role: Role) -> None:
        """Keep the counts of a child that ended and forget its gauges."""
        self._accumulator.retire(role.value)
        self._told_at_s.pop(role.value, None)
        self._foreign.pop(role.value, None)
        self._store.remove("ascendd_stats_age_seconds", (role.value,))
        self._store.remove("ascendd_process_resident_memory_bytes", (role.value,))
        self._store.remove("ascendd_process_private_memory_bytes", (role.value,))
        self._store.remove("ascendd_process_memory_growth_bytes_per_hour", (role.value,))
        self._trends.pop(role.value, None)
        self._hastened.pop(role.value, None)

    def count_restart(self, role: Role, failure: FailureClass) -> None:
        """Count one restart, and the failure that made it necessary."""
        self._store.inc("ascendd_child_failures_total", 1.0, (role.value, failure.value))
        self._store.inc("ascendd_child_restarts_total", 1.0, (role.value,))

    def count_memory_restart(self) -> None:
        """Count one restart of the engine for want of device memory."""
        self._store.inc("ascendd_memory_restarts_total")

    def count_reset(self, outcome: str) -> None:
        """Count one reset of chips that was asked for: `done`, `held` or `failed`."""
        self._store.inc("ascendd_chip_resets_total", 1.0, (outcome,))

    def count_incident(self, role: str, cause: str) -> None:
        """Count one unasked end of a process."""
        self._store.inc("ascendd_incidents_total", 1.0, (role, cause))

    def take_bundles(self, num_bytes: int | None) -> None:
        """Take the size of all bundles after one was written; None where it could not be."""
        self._store.inc("ascendd_incident_bundles_lost_total", float(num_bytes is None))
        if num_bytes is not None:
            self._store.set("ascendd_incident_bundle_bytes", float(num_bytes))

    def take_sweep(self, sweep: Sweep, max_bytes: int) -> None:
        """Take what the logs have on the disk, of `max_bytes` that they may."""
        self._read_at_s["log"] = self._clock()
        self._store.set("ascendd_log_bytes", float(sweep.total_bytes))
        self._store.set("ascendd_log_budget_bytes", float(max_bytes))
        self._store.inc("ascendd_log_files_removed_total", float(sweep.num_removed))

    def set_states(self, children: Mapping[Role, Child], phase: Phase, degradations: Degradations) -> None:
        """Take which children are ready, where the instance is in its life, and what it does without."""
        for role, child in children.items():
            self._store.set("ascendd_child_up", float(child.state in _SERVING), (role.value,))
        self._store.set("ascendd_instance_ready", float(phase is Phase.SERVING))
        for state in Phase:
            self._store.set("ascendd_instance_state", float(phase is state), (state.value,))
        for what in Degradation:
            self._store.set("ascendd_degraded", float(what in degradations), (what.value,))

    def take_checks(self, results: Sequence[CheckResult]) -> None:
        """Take the verdicts of a round of live checks."""
        for result in results:
            self._store.set("ascendd_check_verdict", _VERDICTS[result.verdict], (result.check_id,))
            if result.check_id == "npu-sensors":
                rows = enumerate(result.evidence.get("chips", ()))
                # Half of the dies of A3 have no power of their own: it is that of the pair, told with the first.
                self._chip_power_w = {number: row.get("power_w") or 0.0 for number, row in rows}
        self._store.set("ascendd_checks_timestamp_seconds", time.time())
        self._read_at_s["checks"] = self._clock()
        self.checks = {
            "unix_s": round(time.time(), 1),
            "results": [
                {"check": result.check_id, "verdict": result.verdict.name.lower(), "summary": result.summary}
                for result in results
            ],
            "chips": chip_rows(results),
        }

    def leaks(self) -> dict[str, Growth]:
        """Return the processes whose memory has grown for hours, and how fast."""
        now_s = self._clock()
        self._hastened = {role: drill for role, drill in self._hastened.items() if drill.until_s > now_s}
        trends = self._trends | {role: drill.trend for role, drill in self._hastened.items()}
        growths = {role: trend.growth() for role, trend in trends.items()}
        return {role: growth for role, growth in growths.items() if growth is not None and growth.is_leak}

    def hasten(self, role: Role, seconds: float) -> None:
        """Judge the growth of `role` by seconds in place of hours, for the `seconds` of a drill and a moment more."""
        trend = MemoryTrend(warm_up_s=0.0, every_s=0.0, min_span_s=_HASTY_SPAN_S)
        self._hastened[role.value] = _Hastened(trend, self._clock() + seconds + _HASTY_SPAN_S)

    def measure(self, own_pid: int, child_pids: Mapping[Role, int]) -> None:
        """Read memory and CPU time of the supervisor and of each child with its workers."""
        now_s = self._read_at_s["processes"] = self._clock()
        # Finding descendants reads the whole process table; only the engine has workers.
        readings = {
            (role.value, pid): usage(pid) if role is Role.ENGINE else own_usage(pid) for role, pid in child_pids.items()
        }
        readings[_SUPERVISOR, own_pid] = own_usage(own_pid)
        for key, reading in readings.items():
            if reading is None:
                continue
            role = (key[0],)
            if reading.rss_bytes:  # else it has ended and is not reaped: what it had is over, and 0 would be a lie
                self._store.set("ascendd_process_resident_memory_bytes", float(reading.rss_bytes), role)
                self._follow(*key, now_s)
            # A worker that ended takes its CPU time out of the sum; the total must not go back for it.
            grown_s = max(0.0, reading.cpu_s - self._cpu_s.get(key, 0.0))
            self._store.inc("ascendd_process_cpu_seconds_total", grown_s, role)
        self._cpu_s = {key: reading.cpu_s for key, reading in readings.items() if reading is not None}
        sizes = {role: reading.rss_bytes for (role, _), reading in readings.items() if reading and reading.rss_bytes}
        self.memory_curve.append((time.time(), sizes))

    def _follow(self, role: str, pid: int, now_s: float) -> None:
        """Go on with the trends of a process whose next reading is due."""
        trends = [self._trends.setdefault(role, MemoryTrend())]
        if (drill := self._hastened.get(role)) is not None:
            trends.append(drill.trend)
        if not any(trend.is_due(now_s) for trend in trends):
            return
        pids = [pid, *descendants(pid)] if role == Role.ENGINE.value else [pid]
        readings = [reading for one in pids if (reading := anonymous_memory(one)) is not None]
        if not readings:
            return
        private_bytes = float(sum(reading.private_bytes for reading in readings))
        self._store.set("ascendd_process_private_memory_bytes", private_bytes, (role,))
        self._read_at_s["private_memory"] = now_s
        for trend in trends:
            trend.add(now_s, private_bytes)
        if (growth := trends[0].growth()) is not None:
            self._store.set("ascendd_process_memory_growth_bytes_per_hour", growth.bytes_per_hour, (role,))

    def stats_line(self, now_s: float) -> dict[str, float | int] | None:
        """
        Return throughput since the last call and the load now, for the log; None while nothing was asked or waits.

        `now_s` is monotonic seconds.
        """
        totals = {sample.name: sample.value for sample in self._accumulator.merged() if not sample.labels}
        tokens = tuple(int(totals.get(f"ascendd_engine_{kind}_tokens_total", 0)) for kind in ("prompt", "generation"))
        (last_s, last_tokens), self._last_line = self._last_line, (now_s, tokens)
        running, waiting = (int(totals.get(f"ascendd_engine_sequences_{what}", 0)) for what in ("running", "waiting"))
        took_s = now_s - last_s
        if took_s <= 0 or (tokens == last_tokens and not running and not waiting):
            return None
        return {
            "prompt_tokens_per_s": round((tokens[0] - last_tokens[0]) / took_s, 1),
            "generation_tokens_per_s": round((tokens[1] - last_tokens[1]) / took_s, 1),
            "running": running,
            "waiting": waiting,
            "kv_usage": round(totals.get("ascendd_engine_kv_usage_ratio", 0.0), 4),
        }

    def load(self) -> dict[str, float | int]:
        """Return what is in work now, for `ascendd status`."""
        totals = {sample.name: sample.value for sample in self._accumulator.merged() if not sample.labels}
        return {
            "running": int(totals.get("ascendd_engine_sequences_running", 0)),
            "waiting": int(totals.get("ascendd_engine_sequences_waiting", 0)),
            "kv_usage": round(totals.get("ascendd_engine_kv_usage_ratio", 0.0), 4),
            "generation_tokens": int(totals.get("ascendd_engine_generation_tokens_total", 0)),
            "out_of_memory_steps": self._out_of_memory_steps(),
        }

    def _out_of_memory_steps(self) -> int:
        name = "ascendd_engine_out_of_memory_total"
        return int(sum(sample.value for sample in self._accumulator.merged() if sample.name == name))

    def cpu_seconds(self) -> float:
        """Return the CPU time that all processes have used."""
        name = "ascendd_process_cpu_seconds_total"
        return sum(sample.value for sample in self._store.samples() if sample.name == name)

    def chips_power_w(self, devices: Sequence[int]) -> float | None:
        """Return the power of the chips `devices` (logical) by the last live checks; None where one is not known."""
        known = [self._chip_power_w.get(number) for number in devices]
        watts = [value for value in known if value is not None]
        return sum(watts) if watts and len(watts) == len(known) else None

    def set_costs(
        self, power: Power, before: Power | None, currency: str, total: float, prices: Mapping[str, float]
    ) -> None:
        """Take the power now and the one shown before, the cost since the start, and the price by model."""
        if before is not None and before.source != power.source:
            self._store.remove("ascendd_power_watts", (before.source,))
        self._store.set("ascendd_power_watts", power.watts, (power.source,))
        self._read_at_s["power"] = self._clock()
        self._store.inc("ascendd_cost_total", max(0.0, total - self._cost_told), (currency,))
        self._cost_told = total
        name = "ascendd_cost_per_million_tokens"
        for model in self._priced - prices.keys():
            self._store.remove(name, (model, currency))
        for model, price in prices.items():
            self._store.set(name, price, (model, currency))
        self._priced = set(prices)

    def count_tuning(self, direction: str, limits: Limits, reason: str) -> None:
        """Count one change of limits, `up` or `down`, and remember it."""
        self._store.inc("ascendd_tuning_changes_total", 1.0, (direction,))
        self.tuning_changes.append(
            {
                "unix_s": round(time.time(), 1),
                "max_num_seqs": limits.max_num_seqs,
                "prefill_tokens": limits.prefill_tokens,
                "reason": reason,
            }
        )

    def totals(self) -> list[Sample]:
        """Return what the children told, merged over restarts."""
        return self._accumulator.merged()

    def snapshot(self) -> MetricsSnapshot:
        """Return everything that /metrics shows, merged over restarts."""
        now_s = self._clock()
        for role, told_at_s in self._told_at_s.items():
            self._store.set("ascendd_stats_age_seconds", now_s - told_at_s, (role,))
        for what, read_at_s in self._read_at_s.items():
            self._store.set("ascendd_reading_age_seconds", now_s - read_at_s, (what,))
        self._accumulator.update(_SUPERVISOR, self._store.samples())
        return MetricsSnapshot(self._accumulator.merged(), time.time(), b"".join(self._foreign.values()))
