"""Watch: what the supervisor looks at once a second: hangs, memory, figures, and systemd's watchdog."""

from __future__ import annotations

import asyncio
import os
import signal
import time

from ascendd.ipc.messages import Role
from ascendd.supervisor import event as ev
from ascendd.supervisor.health import HealthMonitor
from ascendd.supervisor.phase import Phase
from ascendd.supervisor.runtime import Runtime


class Watch:
    """Judges children, reads their memory, sends snapshots and feeds the watchdog while its own verdict is fresh."""

    def __init__(self, runtime: Runtime, monitor: HealthMonitor, watchdog_s: float | None) -> None:
        self._run = runtime
        self._monitor = monitor
        self._watchdog_s = watchdog_s
        self._stats_at_s = time.monotonic()
        self._measured_at_s = -runtime.timing.measure_s

    def on_tick(self) -> None:
        """Do everything that is due and come back after a second."""
        run = self._run
        now_s = time.monotonic()
        self._end_hung(now_s)
        run.notifier.settle()
        if run.phase is Phase.STARTING:
            run.notifier.extend_timeout(run.timing.extend_s)
        if now_s - self._measured_at_s >= run.timing.measure_s:
            self._measured_at_s = now_s
            run.board.measure(os.getpid(), {process.spec.role: process.pid for process in run.table})
        self._log_stats(now_s)
        run.board.set_states(run.children, run.phase is Phase.SERVING)
        metrics = run.table.get(Role.METRICS)
        # A metrics process that does not read gets no second snapshot on top of the first.
        if metrics is not None and run.children[Role.METRICS].configured and not metrics.channel.num_pending_bytes:
            metrics.send(run.board.snapshot())
        run.later(run.timing.tick_s, ev.Tick())

    def beat(self) -> None:
        """Feed the watchdog, unless the health monitor has not judged lately; again and again from then on."""
        if self._watchdog_s is None:
            return
        if self._monitor.is_fresh(time.monotonic(), 5 * self._run.timing.tick_s):
            self._run.notifier.watchdog()
        asyncio.get_running_loop().call_later(self._watchdog_s / 2, self.beat)

    def _end_hung(self, now_s: float) -> None:
        run = self._run
        watched = [run.children[process.spec.role] for process in run.table if not process.hung]
        for child, reason in self._monitor.judge(watched, now_s):
            process = run.table.get(child.role)
            assert process is not None
            process.hung = True
            run.log.error("supervisor.child_hung", child=child.role.value, pid=process.pid, reason=reason)
            process.signal(signal.SIGABRT)
            run.later(run.timing.abort_grace_s, ev.KillDue(child.role, process.run))

    def _log_stats(self, now_s: float) -> None:
        interval_s = self._run.config.log.stats_interval_s
        if interval_s and now_s - self._stats_at_s >= interval_s:
            self._stats_at_s = now_s
            if (line := self._run.board.stats_line(now_s)) is not None:
                self._run.log.info("supervisor.stats", **line)
