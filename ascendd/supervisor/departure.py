"""Departure: how an instance ends: drain, then the children one after another, each with a time limit."""

from __future__ import annotations

import time

from ascendd.errors import AscenddError
from ascendd.ipc import messages as msg
from ascendd.ipc.messages import EngineState, Role
from ascendd.supervisor import event as ev
from ascendd.supervisor import status
from ascendd.supervisor.child import ChildState
from ascendd.supervisor.child_exit import exit_code_of
from ascendd.supervisor.phase import RUNNING, Outcome, Phase
from ascendd.supervisor.runtime import Runtime

# Engine first: nothing may be generated for an API that is gone. Log writer last: it takes everybody's last lines.
_STOP_ORDER = (Role.ENGINE, Role.API, Role.METRICS, Role.LOGWRITER)


class Departure:
    """Moves the instance through DRAINING and STOPPING to STOPPED."""

    def __init__(self, runtime: Runtime) -> None:
        self._run = runtime

    def ask(self) -> None:
        """Follow the wish to end: drain; asked again while draining, cut off what still runs."""
        run = self._run
        if run.phase in RUNNING:
            self.drain()
        elif run.phase is Phase.DRAINING:
            run.table.send(Role.API, msg.Drain(0.0))
            run.later(run.timing.drain_margin_s, ev.DrainOver())

    def drain(self) -> None:
        """Take nothing new and finish what runs, within recovery.drain_timeout_s."""
        run = self._run
        api = run.children[Role.API]
        if api.state is not ChildState.READY:
            self.stop_all()
            return
        run.phase = Phase.DRAINING
        limit_s = run.config.recovery.drain_timeout_s
        run.notifier.stopping()
        run.notifier.status("draining")
        run.notifier.extend_timeout(limit_s + run.timing.extend_s)
        self._cancel_starts()
        api.drain(time.monotonic())
        run.table.send(Role.API, msg.Drain(limit_s))
        run.tell_api(
            EngineState(ready=False, text="draining", retry_after_s=status.DEFAULT_RETRY_AFTER_S, is_final=True)
        )
        run.later(limit_s + run.timing.drain_margin_s, ev.DrainOver())

    def on_drained(self, num_aborted: int) -> None:
        """Go on once the API has nothing in work."""
        self._run.log.info("supervisor.drained", num_aborted=num_aborted)
        if self._run.phase is Phase.DRAINING:
            self.stop_all()

    def fail(self, error: AscenddError) -> None:
        """End the instance because of `error`."""
        run = self._run
        run.log.error("supervisor.failed", code=error.code, error=error.message, remedy=error.remedy)
        run.outcome = Outcome(exit_code_of(error), error)
        text = f"failed: {error.code} {error.message}"
        run.tell_api(EngineState(ready=False, text=text, retry_after_s=status.MAX_RETRY_AFTER_S, is_final=True))
        run.notifier.status(f"failed: {error.code} {error.message}")
        self.stop_all()

    def stop_all(self) -> None:
        """Tell every child to leave, one after another."""
        run = self._run
        if run.phase in (Phase.STOPPING, Phase.STOPPED):
            return
        run.phase = Phase.STOPPING
        run.log.info("supervisor.stopping", exit_status=run.outcome.exit_code)
        run.notifier.stopping()
        self._cancel_starts()
        self.stop_next()

    def stop_next(self) -> None:
        """Tell the next living child of the order to leave; the end of each leads here again."""
        run = self._run
        if run.phase is not Phase.STOPPING:
            return
        now_s = time.monotonic()
        for role in _STOP_ORDER:
            child, process = run.children.get(role), run.table.get(role)
            if child is None or process is None:
                continue
            if child.state is not ChildState.STOPPING:
                is_loading = child.state in (ChildState.STARTING, ChildState.LOADING)
                child.stop(now_s)
                process.send(msg.Shutdown())
                grace_s = run.timing.loading_stop_grace_s if is_loading else run.timing.stop_grace_s
                run.later(grace_s, ev.KillDue(role, process.run))
            return
        run.phase = Phase.STOPPED

    def _cancel_starts(self) -> None:
        for child in self._run.children.values():
            if child.state is ChildState.BACKOFF:
                child.cancel(time.monotonic())
